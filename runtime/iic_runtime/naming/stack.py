"""The features that clicks are fitted on: the bank of a scene, and a model's features and probabilities.

A stack is a model file like any other, whose head is still to be fitted. It is made in about a second, without
PyTorch: the bank's constants come from a sample of the scene.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import MapClass, distinct_colours
from iic_geotools.errors import IICError, ModelError, SceneError
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.bands import match_bands, positional_name
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.multiscale import REACH, SIDES
from iic_geotools.scene.radiometry import robust_ranges
from iic_geotools.scene.scene import Pixels, SceneSource, value_sample
from iic_geotools.tiling import Tile, TileGrid
from iic_runtime.engine.base import OUTPUTS
from iic_runtime.engine.onnx import OnnxEngine
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.openvino import OpenVinoEngine
from iic_runtime.model.card import Card, FeatureGroup, Origin, PixelType
from iic_runtime.model.file import ModelFile, put_card
from iic_runtime.model.onnx_head import (
    FEATURES,
    PROBABILITIES,
    Bank,
    Codebook,
    bank_graph,
    bank_halo,
    bank_memory,
    has_features,
    with_probabilities,
)
from iic_runtime.model.select import bundled_models, choose_bundled, ground_resolution
from iic_runtime.model.validate import validate_model
from iic_runtime.naming.kmeans import kmeans
from iic_runtime.naming.regression import Floats, one_thread
from iic_runtime.options import Device, EngineSettings
from iic_runtime.raster.model_input import choose_reading

_LOG = logging.getLogger(__name__)
TILE, SAMPLED_TILES = 64, 48
"""Side in pixels, and number, of the tiles spread over a scene that show how it varies."""
WORDS, CODED_PIXELS = 32, 125
"""Size of the codebook, and pixels of each tile that it is found by."""
POOLED, AXES = (27,), 8
"""Sides of the squares over which what the codebook says is averaged, and how many principal components of it: all of
them take longer, and classify worse."""
WHITENING, LEAST_VARIANCE, RIDGE = 0.5, 0.02, 1e-3
"""Power to which features are whitened for a codebook, the least variance of an axis in parts of the largest, and what
is added to all of them."""
Outputs = Callable[[NDArray[Any]], Floats]
"""A model as a function: pixels `[bands, H, W]` to features or probabilities `[F, H, W]`."""
PIXEL_TYPES: Mapping[str, PixelType] = {
    "uint8": "uint8",
    "int8": "int16",
    "uint16": "uint16",
    "int16": "int16",
}
"""Types of pixels that are taken as they are, and the one that holds 8 bits with a sign; others become float32."""


@one_thread()
def make_stack(
    info: SceneInfo, base: ModelFile | None = None, **reading: Any
) -> tuple[ModelFile, SceneSource]:
    """Make the stack of a scene.

    Args:
        base: The model whose features and probabilities are joined to the bank; None for the bundled model that suits
            the scene, or the bank alone of all bands if none does.
        reading: `bands`, `nodata`, `rescale`, `reflectance` and `match_gsd` as in `choose_reading`.

    Returns:
        The model file, which is not written, and how the scene is read for it.

    Raises:
        IICError: The scene cannot be read, holds no data, or does not suit the model that is given.
    """
    if base is not None:
        card, source = base.card, choose_reading(info, base.card, **reading)
    elif (suitable := suitable_model(info, **reading)) is not None:
        base, source = suitable
        card = base.card
    else:
        return make_bank(info, **reading)
    grid = source.grid or info.grid
    bank = Bank.of(card, sample_pixels(source, grid))
    return join_bank(card, with_codebook(bank, card, source, grid), base), source


@one_thread()
def make_bank(
    info: SceneInfo, bands: Sequence[str | int] | None = None, words: int = WORDS, **reading: Any
) -> tuple[ModelFile, SceneSource]:
    """Make the stack of a scene's own features.

    Arguments, result and errors are those of `make_stack`; `words` is the size of the codebook, 0 for none.
    """
    numbers = data_bands(info, bands)
    card = scene_card(info, numbers, reading.get("nodata"))
    source = choose_reading(info, card, bands=numbers, **reading)
    grid = source.grid or info.grid
    bank = Bank.of(card, sample_pixels(source, grid))
    return join_bank(card, with_codebook(bank, card, source, grid, words) if words else bank, None), source


def with_codebook(bank: Bank, card: Card, source: SceneSource, grid: GeoBox, words: int = WORDS) -> Bank:
    """Return a bank with a codebook of close surroundings, found without labels over a scene."""
    rng = np.random.default_rng(0)
    outputs = open_outputs(join_bank(card, bank, None))
    rows = []
    for tile, pixels in read_spread(source, TileGrid(grid.width, grid.height, TILE, REACH, 1)):
        valid = np.ones(pixels.values.shape[1:], bool) if pixels.valid is None else pixels.valid
        places = np.argwhere(valid[tile.crop])
        if len(places):
            some = places[rng.integers(0, len(places), CODED_PIXELS)]
            rows.append(outputs(pixels.values)[:, *tile.crop][:, some[:, 0], some[:, 1]].T)
    features = np.concatenate(rows).astype(np.float64)
    size = sum(group.size for group in bank.groups[:2])  # single pixels and the finest squares
    return replace(bank, codebooks=(make_codebook(features[:, :size], words, rng),))


def make_codebook(features: NDArray[np.float64], words: int, rng: np.random.Generator) -> Codebook:
    """Return the codebook of a bank's first features `[N, n]`, whitened in part: k-means."""
    mean = features.mean(0)
    variances, axes = np.linalg.eigh(np.cov((features - mean).T) + RIDGE * np.eye(features.shape[1]))
    rotation = (axes * np.maximum(variances, LEAST_VARIANCE * variances.max()) ** (-WHITENING / 2)).T
    points = (features - mean) @ rotation.T
    centres = kmeans(points, words, np.ones(len(points)), rng, starts=1, steps=15)
    book = Codebook(0, SIDES[0], rotation, -rotation @ mean, centres)
    principal = np.linalg.eigh(np.cov(book.encode(points).T))[1][:, : -AXES - 1 : -1].T
    return replace(book, pooled=POOLED, axes=principal)


def open_outputs(file: ModelFile, device: Device = "auto", threads: int | None = None) -> Outputs:
    """Return a model as a function to its features, or to its probabilities if it outputs no features.

    Raises:
        IICError: The model cannot be opened on the device.
    """
    fitted = has_features(file.content)
    content = file.content if fitted else with_probabilities(file.content, len(file.card.classes))
    output = FEATURES if fitted else PROBABILITIES
    engine = open_engine(
        replace(file, content=content),
        EngineSettings(device=device, threads=threads),
        outputs=(*OUTPUTS, output),
    )
    if not isinstance(engine, OnnxEngine | OpenVinoEngine):
        raise ModelError(f"{file.path} outputs no features; name the .onnx file that it was made from.")

    def run(image: NDArray[Any]) -> Floats:
        values: Floats = engine.fetch(image[None], [output])[0][0]
        return values

    return run


def prove(out: Path, content: bytes) -> None:
    """Check a finished model against its card by running it, exact tiling included."""
    broken = [check for check in validate_model(ModelFile.parse(out, content)) if not check.kept]
    if broken:
        failures = "; ".join(f"not so: {check.promise} ({check.detail})" for check in broken)
        raise ModelError(f"{out} was not written, as the model does not match its card: {failures}.")


def join_bank(card: Card, bank: Bank, base: ModelFile | None) -> ModelFile:
    """Return a model whose features are those of a bank, and of a model next to it if there is one."""
    classes = 0 if base is None else len(card.classes)
    content, size = bank_graph(bank, card.dtype, None if base is None else base.content, classes)
    learnt = () if base is None else (size - bank.size - classes, classes)
    card = replace(
        card,
        classes=tuple(MapClass(f"class {index}", colour) for index, colour in enumerate(distinct_colours(2))),
        halo=bank_halo(None if base is None else base.card),
        memory_per_pixel=bank_memory(size, None if base is None else base.card),
        features=(*bank.groups, *(FeatureGroup(count, 1, True) for count in learnt)),
        precision="fp32",
        parity={},
        accuracy={},
        reliability={},
    )
    name = "bank" if base is None else f"{base.card.name} and bank"
    return ModelFile(Path(f"{name}.onnx"), put_card(content, card), card)


def suitable_model(info: SceneInfo, **reading: Any) -> tuple[ModelFile, SceneSource] | None:
    """Return the bundled model that is made for a scene, and how the scene is read for it; None if there is none.

    A model that would leave bands of the scene unused is not suitable, unless `bands` asks for those that it takes.
    Bands without names are taken for a picture's if their values are counts, not if they may be decibels.
    """
    size = ground_resolution(info.grid)
    if size is None or not bundled_models():
        _LOG.info("Features: those of the scene alone, which does not say its ground resolution.")
        return None
    model = choose_bundled(size)
    numbers = data_bands(info, reading.get("bands"))
    if len(numbers) > len(model.card.bands):
        _LOG.info("Features: those of the scene's %d bands; %s takes fewer.", len(numbers), model.card.name)
        return None
    unnamed = reading.get("bands") is None and not any(info.descriptions)
    if unnamed and not info.dtype_of(numbers).startswith("uint"):
        _LOG.info("Features: those of the scene alone, whose bands have no names.")
        return None
    try:
        source = choose_reading(info, model.card, **reading)
    except IICError as error:
        _LOG.info("Features: those of the scene alone, which %s is not made for. %s", model.card.name, error)
        return None
    _LOG.info("Features: those of the scene, and of the model %s.", model.card.name)
    return model, source


def data_bands(info: SceneInfo, bands: Sequence[str | int] | None = None) -> tuple[int, ...]:
    """Return the numbers of a scene's bands that hold data: those that are asked for, or all that are not alpha."""
    if bands is not None:
        return match_bands([str(band) for band in bands], info.descriptions, info.bands.certain, bands)
    names = zip(info.descriptions, info.interpretations, strict=True)
    numbers = [number for number, (name, colour) in enumerate(names, 1) if name or colour != "alpha"]
    return tuple(numbers) or (1,)


def scene_card(info: SceneInfo, bidx: tuple[int, ...], nodata: float | None = None) -> Card:
    """Return the card of a model that takes some bands of a scene as they are."""
    values = value_sample(SceneSource.of(info, bidx, nodata=nodata), info)
    if not values.shape[1]:
        raise SceneError(f"{info.title} holds no data; check its nodata value.")
    ranges = robust_ranges(values)
    return Card(
        name="scene",
        bands=_names(info, bidx),
        classes=(MapClass("class 0", "#000000"),),
        halo=bank_halo(None),
        stride=1,
        memory_per_pixel=1,
        dtype=PIXEL_TYPES.get(info.dtype_of(bidx), "float32"),
        offset=tuple(low for low, _ in ranges),
        scale=tuple(1 / (high - low) for low, high in ranges),
        gsd=ground_resolution(info.grid),
        origin=Origin(data=Path(info.title).name),
    )


def sample_pixels(source: SceneSource, grid: GeoBox) -> NDArray[Any]:
    """Return values `[bands, N]`, as a model takes them, of pixels that hold data, spread over a scene."""
    parts = []
    for _, pixels in read_spread(source, TileGrid(grid.width, grid.height, TILE, 0, 1)):
        flat = pixels.values.reshape(len(pixels.values), -1)
        parts.append(flat if pixels.valid is None else flat[:, pixels.valid.ravel()])
    if not sum(part.shape[1] for part in parts):
        raise SceneError(
            f"{source.name or source.path} holds no data on the sampled tiles; check its nodata value, or "
            "cut out the part that holds data."
        )
    return np.concatenate(parts, 1)


def read_spread(source: SceneSource, tiles: TileGrid) -> Iterator[tuple[Tile, Pixels]]:
    """Yield tiles spread evenly over a scene, and their pixels, halo included."""
    _, width = tiles.shape
    with source.open() as scene:
        for number in spread_numbers(tiles):
            tile = tiles.at(*divmod(number, width))
            if scene.may_hold_data(tile.core):
                yield tile, scene.read(tile.read)


def spread_numbers(tiles: TileGrid) -> list[int]:
    """Return the numbers of tiles spread evenly over a scene."""
    height, width = tiles.shape
    count = min(SAMPLED_TILES, height * width)
    return sorted(set(np.linspace(0, height * width - 1, count).round().astype(int).tolist()))


def _names(info: SceneInfo, bidx: tuple[int, ...]) -> tuple[str, ...]:
    """Return names by which the same bands are found again: their own, or their numbers if these are not distinct."""
    names = [
        info.descriptions[band - 1]
        or (
            info.interpretations[band - 1]
            if info.interpretations[band - 1] != "undefined"
            else positional_name(band)
        )
        for band in bidx
    ]
    try:
        if match_bands(names, info.descriptions, info.bands.certain) == bidx:
            return tuple(names)
    except IICError:
        pass
    return tuple(map(positional_name, bidx))
