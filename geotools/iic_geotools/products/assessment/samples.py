"""Samples on a map: what people say is there, and what the map says."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.class_map import ClassMap, values_by_name
from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.provenance import read_places
from iic_geotools.errors import SceneError
from iic_geotools.scene.points import LONGITUDE_LATITUDE, ClassPoints, to_pixels, transform_points
from iic_geotools.tiling import Rect

Ints = NDArray[np.int64]
# Side of the squares of a map that are read at once around samples.
_BLOCK = 512


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples that count, one per pixel.

    Attributes:
        mapped: Value of the map at each of them `[N]`.
        actual: Value of the class that it was given `[N]`.
        remarks: What was left out, and why, in sentences.
        clicks: Number of them that are points the map's model was named with.
    """

    mapped: Ints
    actual: Ints
    remarks: tuple[str, ...]
    clicks: int

    def counts(self, classes: int) -> Ints:
        """The confusion matrix `[class of the map, class of the sample]`."""
        pairs = np.bincount(self.mapped * classes + self.actual, minlength=classes * classes)
        return pairs.reshape(classes, classes)


def place_samples(points: ClassPoints, path: Path, class_map: ClassMap) -> Samples:
    """Read a map at samples.

    Args:
        points: The samples.
        path: Their file, for errors.
        class_map: The map.

    Raises:
        SceneError: No sample counts, one has a class that the map does not have, or two of one pixel differ.
    """
    if points.crs is None:
        raise SceneError(f"The samples {path} have no CRS, so they cannot be placed; save them with one.")
    grid, crs = class_map.grid, class_map.grid.crs
    columns, rows = to_pixels(*points.on(crs or points.crs), grid)
    labelled = np.array([bool(name) for name in points.classes], bool)
    inside = (columns >= 0) & (columns < grid.width) & (rows >= 0) & (rows < grid.height)
    if not labelled.any():
        raise SceneError(f"No sample of {path} has a class; label them first.")
    if not inside.any():
        raise SceneError(f"The samples {path} lie outside the map {class_map.path}; give those drawn for it.")
    actual = _class_values(points.classes, path, class_map)
    kept = np.flatnonzero(labelled & inside)
    pixels = np.stack([rows[kept], columns[kept]], 1).astype(np.int64)
    pixels, actual = _one_per_pixel(pixels, actual[kept], path, class_map)
    mapped = _read_at(pixels, class_map)
    valid = mapped != NODATA
    remarks = (
        _remark(int((~labelled).sum()), len(labelled), "have no class"),
        _remark(int((labelled & ~inside).sum()), len(labelled), "lie outside the map"),
        _remark(len(kept) - len(pixels), len(labelled), "lie on a pixel that another one lies on"),
        _remark(int((~valid).sum()), len(labelled), "lie where the map has no data"),
    )
    if not valid.any():
        raise SceneError(f"The samples {path} lie where the map {class_map.path} has no data.")
    clicks = _count_clicks(pixels[valid], class_map)
    return Samples(mapped[valid], actual[valid], tuple(filter(None, remarks)), clicks)


def _remark(count: int, total: int, reason: str) -> str:
    return f"{count} of {total} samples {reason} and are left out." if count else ""


def _class_values(classes: Sequence[str], path: Path, class_map: ClassMap) -> Ints:
    """The map's value of each sample's class; -1 where it has none."""
    values = values_by_name(class_map)
    unknown = sorted({name for name in classes if name and name not in values})
    if unknown:
        names = ", ".join(class_map.names[:20])
        raise SceneError(
            f"The samples {path} have the class {unknown[0]}, which the map does not have; its classes are: {names}."
        )
    return np.array([values.get(name, -1) for name in classes], np.int64)


def _one_per_pixel(pixels: Ints, actual: Ints, path: Path, class_map: ClassMap) -> tuple[Ints, Ints]:
    """Keep the first sample of each pixel: a pixel that counts twice is not two observations."""
    _, first, group = np.unique(pixels, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    contradictions = np.flatnonzero(actual != actual[first][group])
    if len(contradictions):
        row, column = pixels[contradictions[0]].tolist()
        one, other = actual[first][group][contradictions[0]], actual[contradictions[0]]
        raise SceneError(
            f"The samples {path} call one pixel both {class_map.names[one]} and {class_map.names[other]} in column "
            f"{column}, row {row}; remove one of them."
        )
    kept = np.sort(first)
    return pixels[kept], actual[kept]


def _read_at(pixels: Ints, class_map: ClassMap) -> Ints:
    """Values of the map at some pixels; each square of the map is read once."""
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, (row, column) in enumerate((pixels // _BLOCK).tolist()):
        members[row, column].append(index)
    values = np.empty(len(pixels), np.int64)
    whole = Rect(0, 0, class_map.grid.width, class_map.grid.height)
    for (row, column), indices in sorted(members.items()):
        rect = Rect(column * _BLOCK, row * _BLOCK, _BLOCK, _BLOCK).intersection(whole)
        rows, columns = (pixels[indices] - (rect.row, rect.col)).T
        values[indices] = class_map.read(rect)[rows, columns]
    return values


def _count_clicks(pixels: Ints, class_map: ClassMap) -> int:
    """Number of samples whose pixel, or one beside it, holds a point that named the map's model."""
    crs = class_map.grid.crs
    places = np.array(read_places(class_map.tags))
    if not len(places) or crs is None:
        return 0
    x, y = transform_points(places[:, 0], places[:, 1], LONGITUDE_LATITUDE, crs)
    columns, rows = to_pixels(x, y, class_map.grid)
    # Seven digits of a degree are a centimetre: a point on an edge may appear on the other side of it.
    near = np.array(
        [
            bool(np.any((np.abs(columns - column - 0.5) < 0.6) & (np.abs(rows - row - 0.5) < 0.6)))
            for row, column in pixels.tolist()
        ]
    )
    return int(near.sum())
