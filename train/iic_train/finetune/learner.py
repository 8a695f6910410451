"""Training of a whole network on labelled crops: the loop of one network, for a fold or for all places.

Weights are averaged over steps, and batch norm is calibrated with the averaged ones.
"""

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from iic_geotools.errors import DataError
from iic_train.config import TrainConfig
from iic_train.data.loader import Batch, Loader, Source
from iic_train.finetune.chips import Chip, LabelledChips
from iic_train.finetune.heldout import class_logs
from iic_train.finetune.linear_head import correct_logits
from iic_train.finetune.settings import FinetuneConfig
from iic_train.loop import Loop, Loss, cosine
from iic_train.losses.set_loss import set_loss
from iic_train.losses.step import Step, pair_terms, seed_of
from iic_train.models.layers import fresh_statistics
from iic_train.models.networks import Network
from iic_train.views.random_numbers import Draw, to_device
from iic_train.views.settings import Light

CALIBRATION_STEPS = 40
CALIBRATION, UNLABELLED_PASS, SHARES = 2_000_001, 2_000_003, 1_000_001
"""Numbers of passes that are not epochs."""
SHARE_CROPS = 200
"""Number of crops from which the shares of the classes are found."""
LEAST_SHARE = 1e-3
"""Added to the share of a class, so that one that hardly occurs does not weigh without bound."""


class Crop(NamedTuple):
    """A batch of crops.

    Attributes:
        pixels: Values `[N, C, S, S]` in the range that the network takes, as floats.
        codes: Codes of the sets of classes `[N, S, S]`.
        inside: Which pixels lie in a chip, `[N, 1, S, S]`.
    """

    pixels: Tensor
    codes: Tensor
    inside: Tensor


class Crops:
    """Draws a source by its weight, a place, a chip, a window and a turn, all of it from a key.

    Args:
        data: The labelled chips.
        config: The settings of the run.
        fold: The places that are left out; None learns from all of them.
    """

    def __init__(self, data: LabelledChips, config: TrainConfig, fold: int | None = None) -> None:
        if config.finetune is None or config.size is None:
            raise ValueError("Crops are drawn for runs that learn from labels.")
        self.settings: FinetuneConfig = config.finetune
        self.size, self.seed, self.batch = config.size, config.seed, config.batch
        self.fill = torch.tensor(config.network.offset).view(-1, 1, 1)
        self.members = torch.from_numpy(data.legend.members())
        self._places: list[list[list[tuple[Chip, NDArray[np.uint8]]]]] = []
        weights = []
        for number, source in enumerate(self.settings.sources):
            places: dict[str, list[tuple[Chip, NDArray[np.uint8]]]] = {}
            for chip in data.chips:
                codes = chip.codes_without(fold)
                if chip.source == number and codes.any():
                    places.setdefault(chip.place, []).append((chip, codes))
            if places and source.weight > 0:
                self._places.append(list(places.values()))
                weights.append(source.weight)
        if not weights:
            raise DataError("No labelled place is left to learn from: label more places.")
        self._weights = np.array(weights) / np.sum(weights)

    def class_weights(self) -> Tensor:
        """Return the weight of each class: its share of the labelled pixels to the power of minus `balance`."""
        counts = torch.zeros(len(self.members))
        for number in range(SHARE_CROPS):
            rng = np.random.default_rng((self.seed, SHARES, number))
            codes = self._crop(rng)[1]
            counts += torch.bincount(codes.flatten().long(), minlength=len(self.members))
        single = self.members.sum(1) == 1
        share = (counts[single, None] * self.members[single]).sum(0)
        share = share / share.sum().clamp_min(1.0)
        weights = (share + LEAST_SHARE) ** -self.settings.balance
        return weights / (weights * share).sum().clamp_min(1e-6)

    def read(self, key: tuple[int, ...], count: int | None = None) -> Crop:
        """Return a batch of crops that follows from a key."""
        rng = np.random.default_rng((self.seed, *key))
        parts = [self._crop(rng) for _ in range(count or self.batch)]
        return Crop(*(torch.stack(part) for part in zip(*parts, strict=True)))

    def _crop(self, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        places = self._places[rng.choice(len(self._places), p=self._weights)]
        shares = np.sqrt([len(place) for place in places])
        place = places[rng.choice(len(places), p=shares / shares.sum())]
        chip, codes = place[rng.integers(len(place))]
        rooms = [max(0, length - self.size) for length in codes.shape]
        top, left = (int(rng.integers(room + 1)) for room in rooms)
        window = np.s_[top : top + self.size, left : left + self.size]
        turns, flip = int(rng.integers(4)), -1 if rng.random() < 0.5 else 1
        values = np.rot90(chip.pixels[:, *window], turns, (1, 2))[:, :, ::flip]
        labels = np.rot90(codes[window], turns)[:, ::flip]
        border = (0, self.size - labels.shape[1], 0, self.size - labels.shape[0])
        inside = F.pad(torch.ones(1, *labels.shape, dtype=torch.bool), border)
        pixels = F.pad(torch.from_numpy(np.ascontiguousarray(values, np.float32)), border)
        masks = F.pad(torch.from_numpy(np.ascontiguousarray(labels)), border)
        return torch.where(inside, pixels, self.fill), masks, inside


def change_light(settings: Light, images: Tensor, draw: Draw) -> Tensor:
    """Change the light of a batch of scaled images; some stay as they are, as the settings say.

    Unlike `photometry`, which makes views that must share a cluster, these changes keep what a label means: most of
    them are small, and all of them happen to imagery in practice.
    """
    count, bands = images.shape[:2]
    whole = torch.ones(count, 1, 1, 1, device=images.device)
    strength = draw.uniform((count, 1, 1, 1), 0.0, 1.0) if settings.varied else whole

    def normal(channels: int) -> Tensor:
        return draw.normal(images.new_zeros(count, channels, 1, 1)) * strength

    lit = images.clamp(-0.2, 1.2)
    if settings.gamma:
        lit = lit.clamp_min(0.0) ** torch.exp(settings.gamma * normal(1))
    lit = lit * torch.exp(settings.gain * normal(1) + settings.band_gain * normal(bands))
    if settings.offset:
        lit = lit + settings.offset * normal(1)
    if settings.noise:
        level = settings.noise * draw.uniform((count, 1, 1, 1), 0.0, 1.0).square() * strength
        lit = lit + level * draw.normal(lit)
    unchanged = draw.chance(count, settings.plain).view(-1, 1, 1, 1)
    return torch.where(unchanged, images, lit)


class Learner:
    """A network that learns from labelled crops.

    Args:
        network: The network; its weights are changed.
        data: The labelled chips.
        config: The settings of the run.
        fold: The places that are left out; None learns from all of them.
        unlabelled: Windows for the IIC objective next to the labels, if there is one.
    """

    def __init__(
        self,
        network: Network,
        data: LabelledChips,
        config: TrainConfig,
        fold: int | None = None,
        unlabelled: Source | None = None,
    ) -> None:
        if config.finetune is None or config.steps is None:
            raise ValueError("The config does not say how to learn from labels.")
        # A quarter faster on CPUs, and what tensor cores take.
        self.network = network.to(memory_format=torch.channels_last)
        self.config, self.unlabelled = config, unlabelled
        self.settings: FinetuneConfig = config.finetune
        self.steps = config.steps
        self.crops = Crops(data, config, fold)
        self.device = next(network.parameters()).device
        self.class_weights = self.crops.class_weights().to(self.device)
        self.members = self.crops.members.to(self.device)
        trained = [p for p in self.network.parameters() if p.requires_grad]
        heads = {id(p) for p in self.network.heads.parameters()}
        groups: list[dict[str, Any]] = [
            {
                "params": [p for p in trained if id(p) not in heads],
                "weight_decay": self.settings.weight_decay,
            },
            {"params": [p for p in trained if id(p) in heads]},
        ]
        self.loop = Loop(groups, config.lr, self.device, amp=config.amp, clip=self.settings.clip)
        self.mean = {name: value.clone() for name, value in self.network.state_dict().items()}

    def train_epoch(self, epoch: int) -> float:
        """Train for the steps of an epoch, counted from 1, and return the mean loss."""
        torch.manual_seed(seed_of((self.config.seed, epoch)))  # for dropout
        self.network.train()
        taken = self.loop.descend(
            self._unlabelled_batches(epoch),
            lambda batch, index: Loss(self._step_loss((epoch, index), batch)),
            self.steps,
            f"epoch {epoch}",
            rate=lambda index: self._rate(self._step(epoch, index)),
        )
        for index, _ in taken:
            self._average(self._step(epoch, index))
        return self.loop.mean_loss()

    def averaged(self) -> Network:
        """Return the network with the averaged weights, calibrated, corrected and in eval mode."""
        network = Network(self.network.config).to(self.device)
        network.load_state_dict(self.mean)
        self._calibrate(network)
        correct_logits(network, self.settings.bias, self.settings.temperature or 1.0)
        return network.eval()

    def state(self) -> dict[str, Any]:
        """Return what resuming needs."""
        return {
            "network": self.network.state_dict(),
            "mean": self.mean,
            **self.loop.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.network.load_state_dict(state["network"])
        self.mean = {name: value.to(self.device) for name, value in state["mean"].items()}
        self.loop.restore(state)

    def _step(self, epoch: int, index: int) -> int:
        return (epoch - 1) * self.steps + index

    def _rate(self, step: int) -> float:
        rise = min(1.0, (step + 1) / max(1, self.settings.warmup))
        return self.config.lr * rise * cosine(step / (self.config.epochs * self.steps))

    def _view(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return a batch in changed light, and its codes."""
        crop = self.crops.read(key)
        draw = Draw(seed_of((self.config.seed, *key)), self.device)
        pixels = to_device(crop.pixels, self.device).contiguous(memory_format=torch.channels_last)
        lit = change_light(self.settings.light, self.network.scale(pixels), draw)
        return lit.where(to_device(crop.inside, self.device), 0.0), crop.codes

    def _step_loss(self, key: tuple[int, int], unlabelled: Batch | None) -> Tensor:
        view, codes = self._view(key)
        with self.loop.autocast():
            features = self.network.features(view)
            if self.settings.dropout:
                features = F.dropout2d(features, self.settings.dropout)
            logs = class_logs(self.network, view, features).permute(0, 2, 3, 1)
        # Found on the CPU, so that a GPU does not wait.
        labelled = codes.flatten().nonzero()[:, 0]
        places, found = (to_device(part, self.device) for part in (labelled, codes.flatten()[labelled]))
        loss = self._loss(logs.flatten(0, 2).index_select(0, places).float(), found)
        if unlabelled is None:
            return loss
        return loss + self.settings.iic_weight * self._iic_loss(unlabelled, key)

    def _loss(self, logs: Tensor, codes: Tensor) -> Tensor:
        return set_loss(
            logs,
            self.members[codes.long()],
            self.class_weights,
            self.settings.set_weight,
            self.settings.smoothing,
        )

    def _iic_loss(self, batch: Batch, key: tuple[int, int]) -> Tensor:
        terms = pair_terms(
            self.network,
            self.network.features,
            batch.to(self.device),
            "a",
            self.config,
            Step((self.config.seed, UNLABELLED_PASS, *key), self.loop.autocast()),
        )["a"]
        return torch.stack([part.loss for part in terms]).mean()

    def _unlabelled_batches(self, epoch: int) -> Iterator[Batch | None]:
        if self.unlabelled is None or not self.settings.iic_weight:
            return repeat(None, self.steps)
        key = (self.config.seed, UNLABELLED_PASS, epoch)
        return Loader([self.unlabelled], self.config.batch).batches(0, key, self.steps)

    @torch.no_grad()
    def _average(self, step: int) -> None:
        decay = min(self.settings.average, (1 + step) / (10 + step))
        for name, value in self.network.state_dict().items():
            if value.dtype.is_floating_point:
                self.mean[name].lerp_(value, 1.0 - decay)
            else:
                self.mean[name].copy_(value)

    @torch.no_grad()
    def _calibrate(self, network: Network) -> None:
        """Recompute the statistics of batch norm on crops as they are trained on."""
        with fresh_statistics(network):
            for step in range(CALIBRATION_STEPS):
                network.features(self._view((CALIBRATION, step))[0])
