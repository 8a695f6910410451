"""Training of a whole network on labelled crops: the loop of one network, for a fold or for all places.

If the network has a path that sees one pixel, that path may be trained first, on pixels alone, and kept; the context
then learns on its own as a second opinion, and logits are a weighted mean of both. Weights are averaged over steps, and
batch norm is calibrated with the averaged ones.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import TrainingError
from iic_train.config import TrainConfig
from iic_train.data.loader import Batch, Source, batches
from iic_train.finetune.chips import LabelledChips
from iic_train.finetune.crops import Crops
from iic_train.finetune.heldout import class_logs
from iic_train.finetune.linear_head import class_head, correct_logits
from iic_train.finetune.settings import FinetuneConfig
from iic_train.losses.set_loss import set_loss
from iic_train.losses.step import pair_terms, seed_of
from iic_train.models.context import PixelContext
from iic_train.models.networks import Network
from iic_train.views.light import change_light
from iic_train.views.random_numbers import Draw
from iic_train.views.settings import Light

CALIBRATION_STEPS = 40
CALIBRATION, PIXEL_PASS, UNLABELLED_PASS = 2_000_001, 2_000_002, 2_000_003
"""Numbers of passes that are not epochs."""
PIXELS_PER_CROP = 150
"""Number of pixels of each crop that the path of single pixels is trained on."""
PIXEL_DECAY = 1e-3


class Learner:
    """A network that learns from labelled crops.

    Args:
        network: The network; its weights are changed.
        data: The labelled chips.
        config: The settings of the run.
        fold: The places that are left out; None learns from all of them.
        unlabelled: Windows for the IIC objective beside the labels, if there is one.
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
        self.frozen_norms: set[nn.Module] = set()
        self.pixel_bias = torch.zeros(len(self.settings.classes), device=self.device)
        self._begin()

    @property
    def _apart(self) -> bool:
        """Whether the path that sees one pixel and the context learn on their own."""
        return bool(self.network.pixel_features and self.settings.pixel_steps)

    def _begin(self) -> None:
        trunk = self.network.trunk
        if isinstance(trunk, PixelContext) and self._apart:
            self.frozen_norms |= {m for m in trunk.pixel.modules() if isinstance(m, nn.BatchNorm2d)}
            trunk.pixel.requires_grad_(False)
        parameters: list[nn.Parameter] = [p for p in self.network.parameters() if p.requires_grad]
        heads = {id(p) for p in self.network.heads.parameters()}
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if id(p) not in heads]},
            {"params": [p for p in parameters if id(p) in heads], "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(
            groups,
            lr=self.config.lr,
            weight_decay=self.settings.weight_decay,
        )
        self.mean = {name: value.clone() for name, value in self.network.state_dict().items()}

    def train_pixel_path(self) -> None:
        """Train the path that sees one pixel on single pixels, if there is one and the settings ask for it."""
        network, settings, trunk = self.network, self.settings, self.network.trunk
        if not isinstance(trunk, PixelContext) or not self._apart:
            return
        first = network.pixel_features
        pixels, codes, through_air = self.crops.single_pixels(settings.pixel_crops, PIXELS_PER_CROP)
        trunk.pixel.requires_grad_(True).train()
        start = torch.zeros(len(settings.classes), first)
        weight = nn.Parameter(nn.init.kaiming_normal_(start)[..., None, None].to(self.device))
        bias = nn.Parameter(torch.zeros(len(settings.classes), device=self.device))
        optimiser = torch.optim.AdamW(
            [*trunk.pixel.parameters(), weight, bias], lr=settings.pixel_rate, weight_decay=PIXEL_DECAY
        )
        for step in range(settings.pixel_steps):
            _set_rate(optimiser, settings.pixel_rate * _cosine(step / settings.pixel_steps))
            draw = Draw(seed_of((self.config.seed, PIXEL_PASS, step)), self.device)
            chosen = draw.integers(settings.pixel_batch, 0, len(pixels)).cpu()
            scaled = network.scale(pixels[chosen, :, None, None].to(self.device))
            if step % 2:  # every other batch in unchanged light, which is what most pixels are seen in
                scaled = change_light(
                    settings.light, scaled, network.config.channels, draw, through_air[chosen]
                )
            features = trunk.pixel(network.front.filter(scaled))
            logs = F.conv2d(features, weight, bias)[..., 0, 0].log_softmax(1)
            loss = self._loss(logs, codes[chosen].to(self.device))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        trunk.pixel.requires_grad_(False).eval()
        with torch.no_grad():
            head_weight, _ = class_head(network)
            head_weight.zero_()
            head_weight[:, :first] = weight
            self.pixel_bias.copy_(bias)  # the context begins with constants of its own
        self.mean = {name: value.clone() for name, value in network.state_dict().items()}

    def train_epoch(self, epoch: int) -> float:
        """Train for the steps of an epoch, counted from 1, and return the mean loss.

        Raises:
            TrainingError: The loss is not finite.
        """
        total = 0.0
        torch.manual_seed(seed_of((self.config.seed, epoch)))  # for dropout
        unlabelled = self._unlabelled_batches(epoch)
        for index in range(self.steps):
            step = self._step(epoch, index)
            self._set_modes()
            _set_rate(self.optimiser, self._rate(step))
            loss = self._step_loss((epoch, index))
            if self.settings.iic_weight and unlabelled is not None:
                loss = loss + self.settings.iic_weight * self._iic_loss(next(unlabelled), (epoch, index))
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
            self.optimiser.step()
            self._average(step)
            total += float(loss.detach())
            if not math.isfinite(total):
                raise TrainingError(
                    f"The loss is not finite in epoch {epoch}: try a learning rate below {self.config.lr:g}."
                )
        return total / self.steps

    def averaged(self) -> Network:
        """Return the network with the averaged weights, calibrated, corrected and in eval mode."""
        network = Network(self.network.config).to(self.device)
        network.load_state_dict(self.mean)
        self._calibrate(network)
        self._join_opinions(network)
        correct_logits(network, self.settings.bias, self.settings.temperature or 1.0)
        return network.eval()

    @torch.no_grad()
    def _join_opinions(self, network: Network) -> None:
        """Make the logits the weighted mean of those of the pixel and those of its context, if both learnt alone."""
        if not self._apart:
            return
        share, first = self.settings.pixel_share, network.pixel_features
        weight, bias = class_head(network)
        own, around = weight[:, :first], weight[:, first:]
        around *= 1.0 - share
        own *= share
        if network.config.smoothed:
            around[:, :first] = self.settings.smoothed_share * own
            own *= 1.0 - self.settings.smoothed_share
        bias.lerp_(self.pixel_bias, share)

    def state(self) -> dict[str, Any]:
        """Return what resuming needs."""
        return {
            "network": self.network.state_dict(),
            "mean": self.mean,
            "pixel_bias": self.pixel_bias,
            "optimiser": self.optimiser.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.network.load_state_dict(state["network"])
        self.mean = {name: value.to(self.device) for name, value in state["mean"].items()}
        self.pixel_bias = state["pixel_bias"].to(self.device)
        self.optimiser.load_state_dict(state["optimiser"])

    def _step(self, epoch: int, index: int) -> int:
        return (epoch - 1) * self.steps + index

    def _rate(self, step: int) -> float:
        rise = min(1.0, (step + 1) / max(1, self.settings.warmup))
        return self.config.lr * rise * _cosine(step / (self.config.epochs * self.steps))

    def _set_modes(self) -> None:
        self.network.train()
        for module in self.frozen_norms:
            module.eval()

    def _view(self, key: tuple[int, int], light: Light) -> tuple[Tensor, Tensor]:
        """Return a batch in changed light, and its codes."""
        crop = self.crops.read(key)
        draw = Draw(seed_of((self.config.seed, *key)), self.device)
        pixels = crop.pixels.to(self.device, memory_format=torch.channels_last)
        scaled, inside = self.network.scale(pixels), crop.inside.to(self.device)
        lit = change_light(light, scaled, self.network.config.channels, draw, crop.through_air)
        return lit.where(inside, torch.zeros(())), crop.codes.to(self.device)

    def _step_loss(self, key: tuple[int, int]) -> Tensor:
        network, settings, trunk = self.network, self.settings, self.network.trunk
        first = network.pixel_features
        if self._apart and isinstance(trunk, PixelContext):
            view, codes = self._view(key, settings.around or settings.light)
            context = trunk.context(network.front.filter(view))
            absent = trunk.out_channels - context.shape[1]
            own = context.new_zeros(len(context), absent, *context.shape[2:])
        else:
            view, codes = self._view(key, settings.light)
            features = network.features(view)
            own, context = features[:, :first], features[:, first:]
        if settings.dropout:
            context = F.dropout2d(context, settings.dropout)
        logs = class_logs(network, view, torch.cat([own, context], 1)).permute(0, 2, 3, 1)
        labelled = codes > 0
        return self._loss(logs[labelled], codes[labelled])

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
            Batch(batch.pixels.to(self.device), None if batch.valid is None else batch.valid.to(self.device)),
            "a",
            self.config,
            key=(self.config.seed, UNLABELLED_PASS, *key),
            autocast=torch.autocast(self.device.type, enabled=False),
        )["a"]
        return torch.stack([part.loss for part in terms]).mean()

    def _unlabelled_batches(self, epoch: int) -> Any:
        if self.unlabelled is None or not self.settings.iic_weight:
            return None
        key = (self.config.seed, UNLABELLED_PASS, epoch)
        return batches(self.unlabelled, self.config.batch, key, steps=self.steps)

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
        """Compute the statistics of batch norm anew, on crops as they are trained on."""
        own = {id(module) for module in self.frozen_norms}
        frozen = {name for name, module in self.network.named_modules() if id(module) in own}
        norms = [
            module
            for name, module in network.named_modules()
            if isinstance(module, nn.BatchNorm2d) and name not in frozen
        ]
        momenta = [norm.momentum for norm in norms]
        network.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        for step in range(CALIBRATION_STEPS):
            network.features(self._view((CALIBRATION, step), self.settings.light)[0])
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def _cosine(part_done: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * part_done))


def _set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate
