"""Random crops of labelled chips, in any turn and at changed resolution, all of it from a key."""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from iic_geotools.errors import DataError
from iic_train.config import TrainConfig
from iic_train.finetune.chips import Chip, LabelledChips
from iic_train.finetune.settings import FinetuneConfig
from iic_train.views.painting import paint

SHARE_CROPS = 200
"""Number of crops from which the shares of the classes are found."""
LEAST_SHARE = 1e-3
"""Added to the share of a class, so that one that hardly occurs does not weigh without bound."""
DIAGONAL = 1.42
POINTS = 2000
"""Number of pixels of a class that are kept of each chip, for crops around them."""
SHARES, PIXELS = 1_000_001, 1_000_002
"""Numbers of the passes that find shares and collect pixels; no training has that many epochs."""


class Crop(NamedTuple):
    """A batch of crops.

    Attributes:
        pixels: Values `[N, C, S, S]` in the range that the network takes, as floats.
        codes: Codes of the sets of classes `[N, S, S]`.
        inside: Which pixels lie in a chip, `[N, 1, S, S]`.
        through_air: Which crops are top-of-atmosphere reflectance, `[N]`.
    """

    pixels: Tensor
    codes: Tensor
    inside: Tensor
    through_air: Tensor


class Crops:
    """Draws a source by its weight, a place, a chip, a window and a turn.

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
        self.scale = torch.tensor(config.network.scale).view(-1, 1, 1)
        if self.settings.painting is not None:
            self.painted_code = data.legend.code((self.settings.painting.name,))
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
        self._points = self._find_points()

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
        pixels, codes, inside, through_air = zip(*parts, strict=True)
        return Crop(torch.stack(pixels), torch.stack(codes), torch.stack(inside), torch.tensor(through_air))

    def single_pixels(self, crops: int, per_crop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return labelled pixels `[M, C]`, their codes and whether they are top-of-atmosphere reflectance."""
        pixels, codes, flags = [], [], []
        for number in range(crops):
            rng = np.random.default_rng((self.seed, PIXELS, number))
            values, labels, _, through_air = self._crop(rng)
            labelled = labels.flatten().nonzero().flatten().numpy()
            if len(labelled):
                chosen = torch.from_numpy(rng.choice(labelled, min(per_crop, len(labelled)), replace=False))
                pixels.append(values.flatten(1)[:, chosen].T)
                codes.append(labels.flatten()[chosen])
                flags.append(torch.full((len(chosen),), through_air))
        return torch.cat(pixels), torch.cat(codes), torch.cat(flags)

    def _crop(self, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, bool]:
        places = self._places[rng.choice(len(self._places), p=self._weights)]
        shares = np.sqrt([len(place) for place in places])
        place = places[rng.choice(len(places), p=shares / shares.sum())]
        chip, codes = place[rng.integers(len(place))]
        low, high = self.settings.zoom
        zoom = math.exp(rng.uniform(math.log(low), math.log(high)))  # above 1: shown coarser
        turned = rng.random() < self.settings.rotated and min(codes.shape) > self.size
        pixels, labels = (self._turned if turned else self._upright)(chip, codes, zoom, rng)
        painting = self.settings.painting
        if painting is not None and rng.random() < painting.share:
            scaled, painted = paint(painting, (pixels - self.fill) * self.scale, rng)
            pixels = (scaled.clamp(0.0, 1.0) / self.scale + self.fill).float()
            labels = labels.masked_fill(painted, self.painted_code)
        height, width = labels.shape
        border = (0, self.size - width, 0, self.size - height)
        inside = F.pad(torch.ones(1, height, width, dtype=torch.bool), border)
        pixels = torch.where(inside, F.pad(pixels, border), self.fill)
        return pixels, F.pad(labels, border), inside, self.settings.sources[chip.source].through_air

    def _upright(
        self, chip: Chip, codes: NDArray[np.uint8], zoom: float, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        sides = [min(max(1, round(self.size * zoom)), length) for length in codes.shape]
        top, left = self._corner(chip, codes, sides, rng)
        window = np.s_[top : top + sides[0], left : left + sides[1]]
        turns, flip = int(rng.integers(4)), -1 if rng.random() < 0.5 else 1
        values = np.rot90(chip.pixels[:, *window], turns, (1, 2))[:, :, ::flip]
        labels = np.rot90(codes[window], turns)[:, ::flip]
        pixels = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        masks = torch.from_numpy(np.ascontiguousarray(labels))
        shown = [min(self.size, max(1, round(length / zoom))) for length in labels.shape]
        if shown == list(labels.shape):
            return pixels, masks
        pixels = F.interpolate(
            pixels[None], shown, mode="bilinear", align_corners=False, antialias=zoom > 1.05
        )
        return pixels[0], F.interpolate(masks[None, None].float(), shown, mode="nearest-exact")[0, 0].byte()

    def _turned(
        self, chip: Chip, codes: NDArray[np.uint8], zoom: float, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        side = min(int(self.size * DIAGONAL * zoom) + 2, *codes.shape)
        top, left = self._corner(chip, codes, [side, side], rng)
        window = np.s_[top : top + side, left : left + side]
        angle, flip = rng.uniform(0.0, 2.0 * math.pi), -1.0 if rng.random() < 0.5 else 1.0
        x, y = (part * zoom * self.size / side for part in (math.cos(angle), math.sin(angle)))
        matrix = torch.tensor([[[flip * x, -y, 0.0], [flip * y, x, 0.0]]], dtype=torch.float32)
        grid = F.affine_grid(matrix, [1, 1, self.size, self.size], align_corners=False)
        values = torch.from_numpy(np.ascontiguousarray(chip.pixels[:, *window], np.float32))
        masks = torch.from_numpy(np.ascontiguousarray(codes[window], np.float32))
        pixels = F.grid_sample(
            values[None], grid, mode="bilinear", padding_mode="reflection", align_corners=False
        )
        labels = F.grid_sample(
            masks[None, None], grid, mode="nearest", padding_mode="zeros", align_corners=False
        )
        return pixels[0], labels[0, 0].byte()

    def _corner(
        self, chip: Chip, codes: NDArray[np.uint8], sides: list[int], rng: np.random.Generator
    ) -> tuple[int, int]:
        """Return the first pixel of a window anywhere, or around a pixel of a class that is drawn more often."""
        rooms = [length - side for length, side in zip(codes.shape, sides, strict=True)]
        chance = rng.random()
        for name, share in self.settings.centred:
            chance -= share
            points = self._points.get((id(chip), name))
            if chance < 0 and points is not None:
                point = points[rng.integers(len(points))] - rng.uniform(0.15, 0.85, 2) * sides
                top, left = (int(np.clip(start, 0, room)) for start, room in zip(point, rooms, strict=True))
                return top, left
            if chance < 0:
                break
        return int(rng.integers(rooms[0] + 1)), int(rng.integers(rooms[1] + 1))

    def _find_points(self) -> dict[tuple[int, str], NDArray[np.int64]]:
        """Find pixels of the classes that crops are drawn around, in every chip."""
        points = {}
        rng = np.random.default_rng(self.seed)
        for name, _ in self.settings.centred:
            column = self.settings.classes.index(name)
            only = (self.members[:, column] & (self.members.sum(1) == 1)).numpy()
            for chip, codes in (entry for places in self._places for place in places for entry in place):
                pixels = np.argwhere(only[codes])
                if len(pixels):
                    points[id(chip), name] = pixels[rng.integers(0, len(pixels), POINTS)]
        return points
