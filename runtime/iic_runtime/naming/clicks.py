"""Labelled pixels of a scene, and a model's features there: only tiles that hold labels are read and run."""

import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.errors import SceneError
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.labels import NOT_LABELLED, SceneLabels, open_labels
from iic_geotools.scene.multiscale import LEAST_DEVIATION
from iic_geotools.scene.scene import Scene, SceneSource
from iic_geotools.tiling import Rect, Tile, TileGrid
from iic_geotools.work import OnProgress, Progress, silent
from iic_runtime.model.card import Card
from iic_runtime.naming.fitting import Samples, choose_members, learnt_features, place_side
from iic_runtime.naming.regression import Floats, Ints
from iic_runtime.naming.stack import TILE, Outputs, spread_numbers

_LOG = logging.getLogger(__name__)
MOST_PER_CLASS = 1000
"""Labelled pixels of a class that are used; of polygons and rasters, which have more, an even sample."""
LABEL_TILE = 1024
"""Side in pixels of the squares in which labels are looked for."""
LARGEST_LOOK = 512
"""Side in pixels of the squares that the model is run on, at most."""
SAMPLED_PIXELS = 64
"""Pixels of each tile spread over the scene that show how the features vary."""
REACH = 4
"""Pixels in each direction in which neighbours that look like a click count as part of it."""
MANY_CLICKS, SHORT_REACH = 200, 2
"""From this many clicks on, neighbours add little."""
ALIKE = 0.6
"""How far a neighbour still looks like a click: root mean square over bands, in the scene's standard deviations."""


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
        grid: The grid that the scene is read on.

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


@dataclass(frozen=True)
class Statistics:
    """How features and values vary over a scene.

    Attributes:
        features: Features of pixels spread over it `[M, F]`.
        values: Raw values of the same pixels `[M, bands]`.
    """

    features: Floats
    values: Floats

    def standardisation(self) -> tuple[Floats, Floats]:
        """Return mean and inverse deviation of the features; 0 for one that does not vary."""
        deviation = self.features.std(0)
        factor = np.where(deviation > LEAST_DEVIATION, 1 / np.maximum(deviation, LEAST_DEVIATION), 0.0)
        return self.features.mean(0), factor.astype(np.float32)

    def spread(self) -> Floats:
        """Return the deviation of each band."""
        return np.asarray(np.maximum(self.values.std(0), 1e-6))


@dataclass(frozen=True)
class Observations:
    """A model's features at clicks and over the scene.

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


@dataclass(frozen=True)
class View:
    """A model's features of a part of a scene.

    Attributes:
        rect: The part, on the grid that the scene is read on.
        features: Features `[F, h, w]`.
        values: Raw values `[bands, h, w]`.
        valid: Which pixels hold data `[h, w]`.
    """

    rect: Rect
    features: Floats
    values: NDArray[Any]
    valid: NDArray[np.bool_]

    def sample(self, count: int, seed: int) -> tuple[Floats, Floats]:
        """Return features `[count, F]` and values `[count, bands]` of pixels at random; none if there is no data."""
        rows, columns = np.nonzero(self.valid)
        some = np.random.default_rng(seed).integers(0, max(1, len(rows)), count if len(rows) else 0)
        return (
            self.features[:, rows[some], columns[some]].T,
            self.values[:, rows[some], columns[some]].T.astype(np.float32),
        )


class Observer:
    """Computes a model's features at clicks and over the scene, and keeps them."""

    def __init__(self, outputs: Outputs, reading: SceneSource, grid: GeoBox, card: Card) -> None:
        self.reading, self.grid, self.card = reading, grid, card
        self._outputs = outputs
        self._tiles = TileGrid(grid.width, grid.height, TILE, card.halo, card.stride)
        self._windows: dict[tuple[int, int], _Window | None] = {}

    def look(self, rect: Rect) -> View:
        """Return the features of a part of the scene, which do not depend on how the part is chosen."""
        with self.reading.open() as scene:
            return self._look(scene, rect)

    @cached_property
    def statistics(self) -> Statistics:
        """How features vary over the scene, by tiles spread over it."""
        views = self.spread_views()
        samples = [view.sample(SAMPLED_PIXELS, number) for number, view in enumerate(views)]
        features, values = (np.concatenate(part) for part in zip(*samples, strict=True))
        return Statistics(features, values)

    def spread_views(self, progress: OnProgress = silent) -> list[View]:
        """Return views of tiles spread over the scene."""
        _, width = self._tiles.shape
        numbers = spread_numbers(self._tiles)
        views = []
        with self.reading.open() as scene:
            for done, number in enumerate(numbers):
                progress(Progress("look", done, len(numbers)))
                core = self._tiles.at(*divmod(number, width)).core
                if scene.may_hold_data(core):
                    views.append(self._look(scene, core))
        if not any(view.valid.any() for view in views):
            raise SceneError(
                f"{self.reading.name or self.reading.path} holds no data on the sampled tiles; check its "
                "nodata value, or cut out the part that holds data."
            )
        return views

    def observe(self, clicks: Clicks, progress: OnProgress = silent) -> "Observations":
        """Return the features at clicks and over the scene.

        Raises:
            SceneError: No click, or those of one class only, lies on data.
        """
        self._look_at(clicks.places, progress)
        windows = [self._windows[row, column] for row, column in clicks.places.tolist()]
        kept = np.flatnonzero([window is not None for window in windows])
        reach = REACH if len(clicks.labels) < MANY_CLICKS else SHORT_REACH
        return _observations(
            _only(clicks, kept),
            [window.within(reach) for window in windows if window is not None],
            self.statistics,
            self.card,
        )

    def _look_at(self, places: Ints, progress: OnProgress) -> None:
        """Compute the windows around new places, and keep them."""
        members: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
        for row, column in places.tolist():
            if (row, column) not in self._windows:
                members[row // TILE, column // TILE].add((row, column))
        if not members:
            return
        with self.reading.open() as scene:
            for done, tile in enumerate(sorted(members)):
                progress(Progress("look", done, len(members)))
                core = self._tiles.at(*tile).core
                view = self._look(scene, core) if scene.may_hold_data(core) else None
                for row, column in members[tile]:
                    window = None if view is None else _window(view, row - core.row, column - core.col)
                    self._windows[row, column] = window
        progress(Progress("look", len(members), len(members)))

    def _look(self, scene: Scene, rect: Rect) -> View:
        side = min(LARGEST_LOOK, max(rect.width, rect.height))
        tiles = TileGrid(self.grid.width, self.grid.height, side, self.card.halo, self.card.stride, rect)
        parts = [self._look_tile(scene, tile) for tile in tiles]
        if len(parts) == 1:
            return parts[0]
        features, values, valid = (
            np.empty((*part.shape[:-2], rect.height, rect.width), part.dtype)
            for part in (parts[0].features, parts[0].values, parts[0].valid)
        )
        for part in parts:
            place = part.rect.relative_to(rect).slices
            features[:, *place], values[:, *place], valid[place] = part.features, part.values, part.valid
        return View(rect, features, values, valid)

    def _look_tile(self, scene: Scene, tile: Tile) -> View:
        pixels = scene.read(tile.read)
        valid = np.ones(pixels.values.shape[1:], bool) if pixels.valid is None else pixels.valid
        features = self._outputs(pixels.values)
        return View(
            tile.core, features[:, *tile.crop], pixels.values[:, *tile.crop], np.asarray(valid[tile.crop])
        )


@dataclass(frozen=True)
class _Window:
    """Features and raw values of a click's neighbours, their distance from it, and which of them is the click."""

    features: Floats
    values: Floats
    distance: Floats
    own: int

    def within(self, reach: int) -> "_Window":
        """Return the part that is not further away."""
        near = self.distance <= reach * reach + 1
        own = int(near[: self.own].sum())
        return _Window(self.features[near], self.values[near], self.distance[near], own)


def _window(view: View, row: int, column: int) -> _Window | None:
    """Return the neighbours of a pixel; None if it holds no data."""
    if not view.valid[row, column]:
        return None
    height, width = view.valid.shape
    area = Rect(column - REACH, row - REACH, 2 * REACH + 1, 2 * REACH + 1).intersection(
        Rect(0, 0, width, height)
    )
    rows, columns = np.mgrid[area.slices]
    squared = (rows - row) ** 2 + (columns - column) ** 2
    near = (squared <= REACH * REACH + 1) & view.valid[area.slices]
    rows, columns = rows[near], columns[near]
    own = int(np.flatnonzero((rows == row) & (columns == column))[0])
    return _Window(
        view.features[:, rows, columns].T,
        view.values[:, rows, columns].T.astype(np.float32),
        squared[near].astype(np.float32),
        own,
    )


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
        single=np.arange(card.features[0].size if card.features and card.features[0].side == 1 else 0),
        learnt=learnt_features(card.features, raw.shape[1]),
    )
    return Observations(clicks, samples, raw[own_row], statistics.features, mean, factor)
