"""Several dates, or sensors, of one place: their alignment, and what all of them have in common.

Each date is read with its own range of values, so that haze, season and sensor move nothing linear; beyond that one
bank and one head serve all dates, as clicks and clusters of one date are to serve the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from iic_geotools.classmap.alignment import common_rect, shared_pixels
from iic_geotools.errors import SceneError
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.multiscale import LEAST_DEVIATION
from iic_geotools.tiling import Rect, TileGrid
from iic_geotools.work import OnProgress, Progress, silent
from iic_runtime.model.card import FeatureGroup
from iic_runtime.model.file import ModelFile
from iic_runtime.model.onnx_head import Bank
from iic_runtime.naming.clicks import Observer, View
from iic_runtime.naming.regression import Doubles, Floats, Ints
from iic_runtime.naming.stack import (
    TILE,
    data_bands,
    join_bank,
    open_outputs,
    sample_pixels,
    scene_card,
    spread_numbers,
)
from iic_runtime.options import Device
from iic_runtime.raster.model_input import choose_reading

RIDGE = 1e-4
"""Share of the largest variance that is added to all of them before dates are whitened."""
MOST_CORRELATED = 0.999
"""Correlation above which variates count as the same."""
SCALES = 3
"""Number of scales that dates are compared at: single pixels and the two finest squares."""


@dataclass(frozen=True)
class Dates:
    """Dates of one place.

    Attributes:
        stack: The bank that all dates are seen through.
        grid: The pixels that all dates have.
        observers: Each date, as it is seen.
        offsets: Column and row of each date that are the first ones of the grid.
    """

    stack: ModelFile
    grid: GeoBox
    observers: tuple[Observer, ...]
    offsets: tuple[tuple[int, int], ...]

    def look(self, rect: Rect) -> list[View]:
        """Return the features of a part of the grid on each date."""
        return [
            observer.look(Rect(rect.col + col, rect.row + row, rect.width, rect.height))
            for observer, (col, row) in zip(self.observers, self.offsets, strict=True)
        ]

    def sample(self, count: int, rng: np.random.Generator, progress: OnProgress = silent) -> list[Doubles]:
        """Return features `[N, F]` of each date at the same places, about `count` of them, spread over the grid."""
        tiles = TileGrid(self.grid.width, self.grid.height, TILE, 0, 1)
        numbers = spread_numbers(tiles)
        rows: list[list[Doubles]] = [[] for _ in self.observers]
        for done, number in enumerate(numbers):
            progress(Progress("look", done, len(numbers)))
            views = self.look(tiles.at(*divmod(number, tiles.shape[1])).core)
            places = np.argwhere(common_data(views))
            if len(places):
                drawn = places[rng.integers(0, len(places), -(-count // len(numbers)))]
                for part, view in zip(rows, views, strict=True):
                    part.append(view.features[:, drawn[:, 0], drawn[:, 1]].T.astype(np.float64))
        if not rows[0]:
            raise SceneError(
                "No sampled pixel holds data on all dates; give dates of one place, with fewer clouds."
            )
        return [np.concatenate(part) for part in rows]


def common_data(views: Sequence[View]) -> Any:
    """Return which pixels hold data on all dates `[h, w]`."""
    return np.logical_and.reduce([view.valid for view in views])


def open_dates(
    infos: Sequence[SceneInfo],
    *,
    bands: Sequence[str | int] | None = None,
    nodata: float | None = None,
    device: Device = "auto",
    threads: int | None = None,
    **reading: Any,
) -> Dates:
    """Read dates of one place through one bank.

    Args:
        bands: The bands of all dates; by default those of the first that hold data, found by name on the others.
        nodata: The nodata value of all dates; by default those in the files.
        reading: `rescale`, `reflectance` and `match_gsd` as in `choose_reading`; by default each band of each date is
            taken from its 2nd to its 98th percentile.

    Raises:
        IICError: The dates cannot be read, have different bands, or their pixels do not lie on each other.
    """
    first = infos[0]
    grid, offsets = _align(infos)
    numbers = data_bands(first, bands)
    # Ranges differ from date to date: what the model takes is each date's own, from 0 to 1.
    own = scene_card(first, numbers, nodata)
    card = replace(own, dtype="float32", offset=(), scale=(), rescale="auto")
    readings = [choose_reading(first, card, bands=numbers, nodata=nodata, **reading)]
    readings += [choose_reading(info, card, bands=bands, nodata=nodata, **reading) for info in infos[1:]]
    for info, source in zip(infos, readings, strict=True):
        if source.grid is not None:
            raise SceneError(f"{info.title} cannot be read at another resolution together with other dates.")
    values = [sample_pixels(source, info.grid) for info, source in zip(infos, readings, strict=True)]
    least = min(part.shape[1] for part in values)
    even = [part[:, np.linspace(0, part.shape[1] - 1, least).astype(int)] for part in values]
    stack = join_bank(card, Bank.of(card, np.concatenate(even, 1)), None)
    outputs = open_outputs(stack, device, threads)
    observers = tuple(
        Observer(outputs, source, info.grid, stack.card) for info, source in zip(infos, readings, strict=True)
    )
    return Dates(stack, grid, observers, offsets)


def _align(infos: Sequence[SceneInfo]) -> tuple[GeoBox, tuple[tuple[int, int], ...]]:
    """Return the pixels that all dates have, and where they begin on each date."""
    first, *others = infos
    for other in others:
        sizes = [(info.grid.width, info.grid.height) for info in (first, other)]
        if other.grid.crs != first.grid.crs or (first.grid.crs is None and sizes[0] != sizes[1]):
            raise _misaligned(first, other)
    rect = common_rect(first.grid, tuple(other.grid for other in others))
    if rect.empty:
        raise SceneError(f"{first.title} and the other dates do not overlap; give scenes of one place.")
    grid = first.grid.crop(rect)
    offsets = []
    for info in infos:
        shift = shared_pixels(info.grid, grid)
        if shift is None:
            raise _misaligned(first, info)
        offsets.append(shift)
    return grid, tuple(offsets)


def _misaligned(first: SceneInfo, other: SceneInfo) -> SceneError:
    return SceneError(
        f"The pixels of {other.title} do not lie on those of {first.title}; bring both onto one grid first, e.g. with "
        "gdalwarp -t_srs, -te and -tr."
    )


@dataclass(frozen=True, eq=False)
class Canonical:
    """Linear maps, one per date, to what the dates have in common: canonical correlation analysis of any number.

    For two dates these are Hotelling's variates: no linear maps of the two carry more information about each other, if
    features are normally distributed. With more dates, the sum of the variates varies most (MAXVAR).

    Attributes:
        columns: The features that are mapped.
        means: Mean of them on each date.
        maps: `[features, variates]` for each date; a variate has a variance of 1.
        correlations: Mean correlation of each variate between dates, the largest first.
    """

    columns: Ints
    means: tuple[Doubles, ...]
    maps: tuple[Doubles, ...]
    correlations: Doubles

    @classmethod
    def of(cls, samples: Sequence[Doubles], groups: Sequence[FeatureGroup]) -> "Canonical":
        """Find the maps from features `[N, F]` of the same places on each date, those of a bank."""
        columns = np.arange(sum(group.size for group in groups[:SCALES]))
        means, whitenings, white = [], [], []
        for sample in samples:
            values = sample[:, columns]
            mean, deviation = values.mean(0), np.maximum(values.std(0), LEAST_DEVIATION)
            values = (values - mean) / deviation
            variances, axes = np.linalg.eigh(values.T @ values / len(values))
            variances = np.maximum(variances, 0) + RIDGE * max(variances.max(), LEAST_DEVIATION)
            whitening = axes * variances**-0.5
            means.append(mean)
            whitenings.append(whitening / deviation[:, None])
            white.append(values @ whitening)
        joined = np.concatenate(white, 1)
        # The largest eigenvalues: 1 + (dates - 1) times the correlation.
        variances, axes = np.linalg.eigh(joined.T @ joined / len(joined))
        order = np.argsort(-variances)[: len(columns)]
        correlations = np.clip((variances[order] - 1) / (len(samples) - 1), 0, MOST_CORRELATED)
        blocks = axes[:, order].reshape(len(samples), len(columns), -1)
        maps = [
            whitening @ (block / np.maximum(np.linalg.norm(block, axis=0), LEAST_DEVIATION))
            for whitening, block in zip(whitenings, blocks, strict=True)
        ]
        return cls(columns, tuple(means), tuple(maps), correlations)

    def variates(self, features: Doubles | Floats, date: int) -> Doubles:
        """Return the variates `[N, variates]` of features `[N, F]` of a date."""
        return np.asarray((features[:, self.columns] - self.means[date]) @ self.maps[date])

    def weighted(self, features: Doubles | Floats, date: int) -> Doubles:
        """Return the variates, each as far as the dates agree on it."""
        return self.variates(features, date) * self.correlations
