"""Labelled pixels of a scene, and what a model sees there: only the tiles that hold them are read and run."""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.errors import SceneError
from iic_geotools.geobox import GeoBox
from iic_geotools.progress import OnProgress, Progress
from iic_geotools.scene.labels import NOT_LABELLED, SceneLabels, open_labels
from iic_geotools.scene.scene import Pixels, SceneSource
from iic_geotools.tiling import Rect, Tile, TileGrid
from iic_runtime.model.card import Card
from iic_runtime.naming.fitting import Samples, choose_members, place_side
from iic_runtime.naming.regression import Floats, Ints

_LOG = logging.getLogger(__name__)
MOST_PER_CLASS = 1000
"""Labelled pixels of a class that are used; of polygons and rasters, which have more, an even sample."""
LABEL_TILE, TILE = 1024, 64
"""Sides in pixels of the squares in which labels are looked for, and of those that the model is run on."""
SAMPLED_TILES, SAMPLED_PIXELS = 48, 64
"""Tiles spread over the scene, and pixels of each, that tell how the features vary."""
REACH = 4
"""Pixels in each direction in which neighbours that look like a click count as part of it."""
MANY_CLICKS, SHORT_REACH = 200, 2
"""From this many clicks on, neighbours add little."""
ALIKE = 0.6
"""How far a neighbour still looks like a click: root mean square over bands, in the scene's standard deviations."""
Outputs = Callable[[NDArray[Any]], Floats]
"""A model as a function: pixels `[bands, H, W]` to features or probabilities `[F, H, W]`."""


@dataclass(frozen=True)
class Clicks:
    """Labelled pixels.

    Attributes:
        names: Names of the classes, in order.
        colours: Their colours in the file; None where it has none.
        labels: Class of each click `[N]`.
        places: Row and column of each click `[N, 2]`, on the grid that the scene is read on.
    """

    names: tuple[str, ...]
    colours: tuple[str | None, ...]
    labels: Ints
    places: Ints

    @property
    def counts(self) -> Ints:
        """Number of clicks per class."""
        return np.bincount(self.labels, minlength=len(self.names))


def read_clicks(path: str | os.PathLike[str], grid: GeoBox, label_field: str | None = None) -> Clicks:
    """Read labelled pixels from points, polygons or a raster.

    Args:
        path: The file of labels.
        grid: The grid that the scene is read on.
        label_field: The field that holds the class.

    Raises:
        SceneError: The labels cannot be read, none lies on the scene, or they are of one class or too many.
        UsageError: The field does not exist, or has to be named.
    """
    with open_labels(path, grid, label_field) as labels:
        drawn = _draw(labels, grid)
        values = sorted(drawn, key=labels.name)
        names, colours = tuple(map(labels.name, values)), tuple(map(labels.colour, values))
    if not values:
        raise SceneError(f"The labels {path} lie outside the scene; give those that were made for it.")
    if len(values) > MAX_CLASSES:
        raise SceneError(
            f"The labels {path} have {len(values)} classes on the scene, and a map holds at most {MAX_CLASSES}; check "
            "that they are labels."
        )
    if len(values) == 1:
        raise SceneError(
            f"The labels {path} on the scene are all {names[0]}; label at least two classes, as a map of one needs "
            "no model."
        )
    places = [np.stack(np.divmod(drawn[value], grid.width), 1) for value in values]
    counts = [len(place) for place in places]
    return Clicks(names, colours, np.repeat(np.arange(len(values)), counts), np.concatenate(places))


def _draw(labels: SceneLabels, grid: GeoBox) -> dict[int, Ints]:
    """Return positions of labelled pixels by value: all of them if they are few, else an even sample."""
    rng = np.random.default_rng(0)
    lots: dict[int, tuple[Floats, Ints]] = {}
    for tile in TileGrid(grid.width, grid.height, LABEL_TILE, 0, 1):
        values = labels.read(tile.core)
        rows, columns = np.nonzero(values != NOT_LABELLED)
        positions = (rows + tile.core.row) * grid.width + columns + tile.core.col
        marks = values[rows, columns]
        for value in np.unique(marks).tolist():
            here = positions[marks == value]
            draw = rng.random(len(here), np.float32)
            if value in lots:
                draw, here = np.concatenate([lots[value][0], draw]), np.concatenate([lots[value][1], here])
            kept = np.argsort(draw, kind="stable")[:MOST_PER_CLASS]
            lots[value] = draw[kept], here[kept]
    return {value: np.sort(positions) for value, (_, positions) in lots.items()}


@dataclass
class Statistics:
    """Features and raw values of some pixels of each tile.

    Attributes:
        features: Features of pixels of every tile, `[N, F]` each.
        values: Raw values of the same pixels, `[N, bands]` each.
        spread_features: Features of those tiles that are spread evenly over the scene.
    """

    features: list[Floats] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    spread_features: list[Floats] = field(default_factory=list)

    def add(self, features: Floats, values: Floats, *, is_spread: bool) -> None:
        """Add pixels `[N, F]` and `[N, bands]`."""
        self.features.append(features)
        self.values.append(values)
        if is_spread:
            self.spread_features.append(features)

    def standardisation(self) -> tuple[Floats, Floats]:
        """Return mean and inverse deviation of the features; 0 for one that does not vary."""
        rows = np.concatenate(self.features)
        deviation = rows.std(0)
        factor = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 0.0)
        return rows.mean(0), factor.astype(np.float32)

    def spread(self) -> Floats:
        """Return the deviation of each band."""
        return np.asarray(np.maximum(np.concatenate(self.values).std(0), 1e-6))


@dataclass(frozen=True)
class Observations:
    """What a model sees at clicks and over the scene.

    Attributes:
        clicks: The clicks that lie on data.
        samples: Their standardised features, with those of neighbours that look like them.
        own: Raw features of the clicked pixels `[N, F]`.
        scene: Raw features of pixels spread evenly over the scene `[M, F]`.
        mean: What was subtracted from the features.
        factor: What they were multiplied by then.
    """

    clicks: Clicks
    samples: Samples
    own: Floats
    scene: Floats
    mean: Floats
    factor: Floats

    @property
    def standardised_scene(self) -> Floats:
        """The features of `scene`, standardised as those of the samples."""
        return ((self.scene - self.mean) * self.factor).astype(np.float32)


def observe(
    clicks: Clicks, outputs: Outputs, reading: SceneSource, grid: GeoBox, card: Card, progress: OnProgress
) -> Observations:
    """Run a model where clicks are, and on some tiles spread over the scene.

    Args:
        clicks: The clicks.
        outputs: The model.
        reading: How the scene is read.
        grid: The grid that it is read on.
        card: The model's card.
        progress: Called with reports of how far the work is.

    Raises:
        SceneError: No click, or those of one class only, lies on data.
    """
    tiles = TileGrid(grid.width, grid.height, TILE, card.halo, card.stride)
    reach = REACH if len(clicks.labels) < MANY_CLICKS else SHORT_REACH
    statistics, windows, kept = Statistics(), [], []
    rng = np.random.default_rng(0)
    for tile, indices, is_spread, pixels in _read_tiles(clicks, tiles, reading, progress):
        values = np.moveaxis(pixels.values[:, *tile.crop], 0, -1).astype(np.float32)
        features = np.moveaxis(outputs(pixels.values)[:, *tile.crop], 0, -1)
        valid = np.ones(values.shape[:2], bool) if pixels.valid is None else pixels.valid[tile.crop]
        rows, columns = np.nonzero(valid)
        if not len(rows):
            continue
        some = rng.integers(0, len(rows), SAMPLED_PIXELS)
        statistics.add(
            features[rows[some], columns[some]], values[rows[some], columns[some]], is_spread=is_spread
        )
        for index in indices:
            row, column = clicks.places[index] - (tile.core.row, tile.core.col)
            if valid[row, column]:
                kept.append(index)
                windows.append(_window(features, values, valid, int(row), int(column), reach))
    return _observations(_only(clicks, np.array(kept, np.int64)), windows, statistics, card)


def _read_tiles(
    clicks: Clicks, tiles: TileGrid, reading: SceneSource, progress: OnProgress
) -> Iterator[tuple[Tile, Sequence[int], bool, Pixels]]:
    """Yield the tiles that hold clicks and some spread over the scene.

    With each come its clicks, whether it is one of those spread over the scene, and its pixels.
    """
    height, width = tiles.shape
    numbers = np.linspace(0, height * width - 1, min(SAMPLED_TILES, height * width)).round().astype(int)
    spread = set(numbers.tolist())
    members: dict[int, list[int]] = defaultdict(list, {number: [] for number in spread})
    for index, (row, column) in enumerate((clicks.places // TILE).tolist()):
        members[row * width + column].append(index)
    with ExitStack() as stack:
        scene = stack.enter_context(reading.open())
        for done, number in enumerate(sorted(members)):
            progress(Progress("look", done, len(members)))
            tile = tiles.at(*divmod(number, width))
            if scene.may_hold_data(tile.core):
                yield tile, members[number], number in spread, scene.read(tile.read)
        progress(Progress("look", len(members), len(members)))


@dataclass(frozen=True)
class _Window:
    """Features and raw values of a click's neighbours, and which of them is the click itself."""

    features: Floats
    values: Floats
    own: int


def _window(
    features: Floats, values: Floats, valid: NDArray[np.bool_], row: int, column: int, reach: int
) -> _Window:
    height, width = valid.shape
    area = Rect(column - reach, row - reach, 2 * reach + 1, 2 * reach + 1).intersection(
        Rect(0, 0, width, height)
    )
    rows, columns = np.mgrid[area.slices]
    near = ((rows - row) ** 2 + (columns - column) ** 2 <= reach * reach + 1) & valid[area.slices]
    rows, columns = rows[near], columns[near]
    own = int(np.flatnonzero((rows == row) & (columns == column))[0])
    return _Window(features[rows, columns], values[rows, columns], own)


def _only(clicks: Clicks, kept: Ints) -> Clicks:
    """Leave out clicks on pixels without data, and classes that have no other."""
    missing = len(clicks.labels) - len(kept)
    if missing:
        _LOG.warning(
            "%d of %d labels lie on pixels without data and are left out.", missing, len(clicks.labels)
        )
    present = np.unique(clicks.labels[kept])
    if len(present) < 2:
        raise SceneError(
            "Fewer than two classes are labelled on pixels with data; check the scene's nodata and the labels."
        )
    return Clicks(
        tuple(clicks.names[index] for index in present),
        tuple(clicks.colours[index] for index in present),
        np.searchsorted(present, clicks.labels[kept]),
        clicks.places[kept],
    )


def _observations(
    clicks: Clicks, windows: Sequence[_Window], statistics: Statistics, card: Card
) -> Observations:
    mean, factor = statistics.standardisation()
    spread = statistics.spread()
    weights = []
    for window in windows:
        distance = ((window.values - window.values[window.own]) / spread) ** 2
        likeness = np.exp(-0.5 * distance.mean(-1) / ALIKE**2)
        weights.append((likeness / likeness.sum()).astype(np.float32))
    sizes = np.array([len(window.features) for window in windows])
    raw = np.concatenate([window.features for window in windows])
    own_row = np.concatenate([[0], np.cumsum(sizes)[:-1]]) + np.array([window.own for window in windows])
    samples = Samples(
        rows=((raw - mean) * factor).astype(np.float32),
        weights=np.concatenate(weights),
        owner=np.repeat(np.arange(len(windows)), sizes),
        own_row=own_row,
        labels=clicks.labels,
        places=clicks.places,
        side=place_side(card.halo),
        classes=len(clicks.names),
        members=choose_members(card.features, raw.shape[1]),
    )
    # Where all of the spread tiles are empty, the tiles of the clicks are all that is known of the scene.
    scene = np.concatenate(statistics.spread_features or statistics.features)
    return Observations(clicks, samples, raw[own_row], scene, mean, factor)
