"""Accuracy assessment of a map by labelled samples: the function behind `iic-map assess`."""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.class_map import (
    ClassMap,
    check_placed,
    open_map,
    read_places,
    unlisted_labels,
    values_by_name,
)
from iic_geotools.classmap.classes import NODATA, MapClass
from iic_geotools.errors import SceneError
from iic_geotools.files import check_writable, write_atomically
from iic_geotools.options import Design
from iic_geotools.products.areas import ClassAreas, class_areas
from iic_geotools.products.assessment.accuracy import (
    LEAST,
    Estimates,
    estimate_simple,
    estimate_stratified,
    most_errors,
    usable_strata,
)
from iic_geotools.products.assessment.draw import SAMPLE_KEY, fingerprint
from iic_geotools.products.assessment.report import (
    Assessment,
    ClassFigures,
    assessment_csv,
    assessment_page,
)
from iic_geotools.scene.points import (
    LONGITUDE_LATITUDE,
    ClassPoints,
    read_points,
    to_pixels,
    transform_points,
)
from iic_geotools.settings import checked
from iic_geotools.tiling import Rect

Ints = NDArray[np.int64]
# The names of many sources, after those of some files, which would fill the screen.
_SOURCES = re.compile(r" \([^()]{60,}\)$")
# Side of the squares of a map that are read at once around samples.
_BLOCK = 512

_LOG = logging.getLogger(__name__)
PathLike = str | os.PathLike[str]
REPORTS = (".html", ".json", ".csv")
NEGLIGIBLE = 0.05
"""Share of errors that may go without mention where no sample is wrong."""


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
    """Read a map at samples."""
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
    """Number of samples whose pixel, or one next to it, holds a point that named the map's model."""
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


@checked
def assess_map(
    map: PathLike,
    samples: PathLike,
    *,
    label_field: str | None = None,
    design: Design = "stratified",
    reports: Sequence[PathLike] = (),
    overwrite: bool = False,
) -> Assessment:
    """Estimate the accuracy of a map and the areas of its classes from labelled places.

    The places must be a random sample, such as `draw_samples` draws: clicks where somebody liked to click say little
    about a map. The default takes the classes of the map as strata, and is right for samples that were drawn by them,
    and for places drawn at random without strata.

    Args:
        samples: Points with a class field, in any CRS; those without a class are left out.
        label_field: The field that holds the class; by default the only one, or one with a usual name.
        design: "stratified", or "simple" for a simple random sample whose estimates must not use the map's areas.
        reports: Files to write, each .html, .json or .csv.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    files = [Path(file) for file in reports]
    outputs = [(file, REPORTS, "reports") for file in files]
    check_writable(outputs, (Path(map), Path(samples)), overwrite=overwrite)
    points = read_points(samples, label_field)
    with open_map(Path(map)) as class_map:
        check_placed(class_map)
        placed = place_samples(points, Path(samples), class_map)
        areas = class_areas(class_map.path, class_map.classes)
        assessment = _assess(class_map, areas, placed, points, Path(samples), design)
    for remark in assessment.remarks:
        _LOG.warning("%s", remark)
    _write_reports(assessment, files)
    return assessment


def _assess(
    class_map: ClassMap,
    areas: ClassAreas,
    placed: Samples,
    points: ClassPoints,
    path: Path,
    design: Design,
) -> Assessment:
    counts = placed.counts(len(class_map.classes))
    sizes = np.array([row.m2 if row.m2 is not None else row.pixels for row in areas.classes], np.float64)
    occurring = np.flatnonzero((sizes > 0) | counts.any(0))
    counts, sizes = counts[np.ix_(occurring, occurring)], sizes[occurring]
    classes = [class_map.classes[index] for index in occurring]
    usable = usable_strata(counts) & (sizes > 0)
    if design == "simple":
        if counts.sum() < LEAST:
            raise SceneError(f"The samples {path} are too few: {LEAST} are the least.")
        estimates, ground = estimate_simple(counts), float(sizes.sum())
    else:
        if not usable.any():
            raise SceneError(
                f"No class of the map has {LEAST} samples in {path}; label more, e.g. some that were drawn from it."
            )
        estimates, ground = estimate_stratified(counts, sizes), float(sizes[usable].sum())
    measured = areas.method != "none"
    total_ha = ground / 10_000 if measured else None
    remarks = (
        *placed.remarks,
        *_remarks_on_origin(class_map, areas, placed, points, design),
        *(_remarks_on_strata(classes, counts, sizes, usable) if design == "stratified" else ()),
        *_remarks_on_certainty(classes, counts),
    )
    return Assessment(
        class_map.path,
        path,
        design,
        areas.method,
        total_ha,
        counts,
        estimates.proportions,
        _figures(classes, counts, sizes / 10_000 if measured else None, estimates, total_ha),
        estimates.overall,
        estimates.kappa,
        estimates.mean_iou,
        remarks,
    )


def _figures(
    classes: Sequence[MapClass],
    counts: NDArray[np.int64],
    mapped_ha: NDArray[np.float64] | None,
    estimates: Estimates,
    total_ha: float | None,
) -> tuple[ClassFigures, ...]:
    return tuple(
        ClassFigures(
            name=entry.name,
            colour=entry.colour,
            samples=int(counts[index].sum()),
            mapped_ha=None if mapped_ha is None else float(mapped_ha[index]),
            users=estimates.users[index],
            producers=estimates.producers[index],
            f1=estimates.f1[index],
            iou=estimates.iou[index],
            share=estimates.shares[index],
            area_ha=None if total_ha is None else estimates.shares[index].times(total_ha),
        )
        for index, entry in enumerate(classes)
    )


def _remarks_on_origin(
    class_map: ClassMap, areas: ClassAreas, placed: Samples, points: ClassPoints, design: Design
) -> tuple[str, ...]:
    """Whether the samples can be trusted to be independent of the map."""
    remarks = []
    labels, drawn_from = unlisted_labels(class_map.tags), points.metadata.get(SAMPLE_KEY)
    drawn_here = drawn_from == fingerprint(class_map, areas)
    if placed.clicks:
        remarks.append(
            f"{placed.clicks} of {len(placed.mapped)} samples are places that the model of this map was named with: "
            "its accuracy there is overestimated; assess the map with other places."
        )
    elif labels and not drawn_here:
        seen = _SOURCES.sub("", labels)
        remarks.append(
            f"The model of this map has seen labels ({seen}): make sure that these samples are not among them."
        )
    if drawn_from and design == "simple":
        remarks.append(
            "These samples were drawn by class, and the formulas for a simple random sample are wrong for them."
        )
    elif drawn_from and not drawn_here:
        remarks.append(
            "These samples were drawn by the classes of another map, so that their weights are not those of this one; "
            "draw samples from this map."
        )
    return tuple(remarks)


def _remarks_on_strata(
    classes: Sequence[MapClass],
    counts: NDArray[np.int64],
    sizes: NDArray[np.float64],
    usable: NDArray[np.bool_],
) -> tuple[str, ...]:
    missing = [
        entry.name for entry, enough, size in zip(classes, usable, sizes, strict=True) if size and not enough
    ]
    if not missing:
        return ()
    share = float(sizes[~usable].sum() / sizes.sum())
    return (
        f"Fewer than {LEAST} samples lie on {', '.join(missing)}, so that {100 * share:.2g} % of the map are not "
        "assessed: all figures are about the rest.",
    )


def _remarks_on_certainty(classes: Sequence[MapClass], counts: NDArray[np.int64]) -> tuple[str, ...]:
    """Warn of confidence intervals without width."""
    cases = []
    for entry, row, right in zip(classes, counts, counts.diagonal(), strict=True):
        count = int(row.sum())
        if count >= LEAST and right == count and most_errors(count) > NEGLIGIBLE:
            cases.append(f"up to {100 * most_errors(count):.0f} % of {entry.name} ({count} samples)")
    if not cases:
        return ()
    return (f"± 0 is too narrow where no sample is wrong: {', '.join(cases)} may be wrong all the same.",)


def _write_reports(assessment: Assessment, files: Sequence[Path]) -> None:
    writers = {".html": assessment_page, ".json": Assessment.to_json, ".csv": assessment_csv}
    contents = [(file, writers[file.suffix.lower()](assessment).encode()) for file in files]
    for file, content in contents:
        write_atomically(file, content)
