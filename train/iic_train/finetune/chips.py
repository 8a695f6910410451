"""Labelled scenes in memory: chips of pixels with the set of classes that each label allows; files of dense labels.

Only chips that hold labels are kept, so a few clicks on a large scene cost little memory.
"""

import csv
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError, SceneError, UsageError
from iic_geotools.scene.bands import OptionalBand, match_bands
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.labels import NOT_LABELLED, SceneLabels, open_labels, read_reduced
from iic_geotools.scene.radiometry import Rescale, parse_rescale, robust_ranges
from iic_geotools.scene.scene import SceneSource, value_sample
from iic_geotools.tiling import Rect
from iic_train.data.scene_reader import SceneReader, Scenes
from iic_train.data.survey import Resolution, scene_rescale
from iic_train.finetune.settings import FinetuneConfig, LabelSource, Meaning, Rescaling, own_names
from iic_train.models.registry import NetworkConfig

Codes = NDArray[np.uint8]
"""A code per pixel `[H, W]`, each standing for a set of classes; 0 for pixels without a label."""


class Legend:
    """The classes, and the sets of classes that labels allow: a code per set, 0 for pixels without a label."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        self._codes: dict[frozenset[str], int] = {frozenset(): 0}

    def code(self, classes: Sequence[str]) -> int:
        """Return the code of a set of classes."""
        code = self._codes.setdefault(frozenset(classes), len(self._codes))
        if code > np.iinfo(np.uint8).max:
            raise DataError("The labels allow more than 255 different sets of classes: group their values.")
        return code

    def members(self) -> NDArray[np.bool_]:
        """Return which classes each code allows, `[codes, classes]`."""
        members = np.zeros((len(self._codes), len(self.classes)), bool)
        for allowed, code in self._codes.items():
            members[code, [self.classes.index(name) for name in allowed]] = True
        return members


class Coder:
    """From values of labels, and the pixels under them, to codes of sets of classes."""

    def __init__(self, legend: Legend, meanings: Sequence[Meaning], network: NetworkConfig) -> None:
        self.legend, self.meanings, self.network = legend, meanings, network
        self.entries = [(meaning, legend.code(meaning.classes)) for meaning in meanings]
        self.anywhere = any(not meaning.values for meaning in meanings)

    def codes(
        self, values: NDArray[np.int64] | None, labels: SceneLabels | None, pixels: NDArray[Any]
    ) -> Codes:
        """Return the codes of a chip; `values` is None for a scene without labels."""
        codes = np.zeros(pixels.shape[-2:], np.uint8)
        present = [] if values is None else [int(v) for v in np.unique(values) if v != NOT_LABELLED]
        for meaning, code in self.entries:
            chosen = np.ones(codes.shape, bool)
            if meaning.values:
                if values is None or labels is None:
                    continue
                numbers = [value for value in present if _means(meaning, value, labels)]
                chosen = np.isin(values, numbers)
            if meaning.where and chosen.any():
                chosen = chosen & self._where(meaning, pixels)
            codes[chosen] = code
        return codes

    def _where(self, meaning: Meaning, pixels: NDArray[Any]) -> NDArray[np.bool_]:
        network = self.network
        shape = (-1, 1, 1)
        scaled = (pixels.astype(np.float32) - np.reshape(network.offset, shape)) * np.reshape(
            network.scale, shape
        )
        bands = dict(zip(network.channels, scaled, strict=True))
        chosen = np.ones(pixels.shape[-2:], bool)
        for quantity, low, high in meaning.where:
            value = _quantity(quantity, bands)
            chosen &= (value >= low) & (value <= high)
        return chosen


def _quantity(name: str, bands: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    pair = {"ndvi": ("nir", "red"), "ndwi": ("green", "nir")}.get(name)
    if pair is None:
        return bands[name]
    first, second = (bands[band] for band in pair)
    return np.asarray((first - second) / np.maximum(first + second, 1e-3))


def _means(meaning: Meaning, value: int, labels: SceneLabels) -> bool:
    """Whether a value of the labels, or the class it names, is among the values of a meaning."""
    name = labels.name(value)
    for token in meaning.values:
        low, dash, high = token.partition("-")
        if labels.numbered and token.isdigit() and int(token) == value:
            return True
        if labels.numbered and dash and low.isdigit() and high.isdigit() and int(low) <= value <= int(high):
            return True
        if name in (token, f"class {token}"):
            return True
    return False


DENSE_FORMAT = 1
"""Number of the format of dense labels that is written and read."""


@dataclass(frozen=True, eq=False)
class DenseChip:
    """A window of a scene whose pixels are labelled.

    Attributes:
        name: Short name, unique in its file.
        source: Its scene, relative to the data folder.
        window: Its pixels in the scene.
        legend: Name of the legend.
        classes: Names of the classes that the labels 1, 2, ... stand for.
        labels: Label of each pixel `[H, W]`; 0 where there is none.
        drawn_from: What was looked at.
        locked: Whether it is for judging only.
        note: What is in it, and what was left unlabelled.
    """

    name: str
    source: str
    window: Rect
    legend: str
    classes: tuple[str, ...]
    labels: NDArray[np.uint8]
    drawn_from: str
    locked: bool = False
    note: str = ""

    @property
    def share(self) -> float:
        """Share of its pixels that are labelled."""
        return float(np.mean(self.labels > 0))


def read_dense_labels(path: str | Path) -> list[DenseChip]:
    """Return the chips of a file of dense labels, in its order: whole chips, drawn by eye.

    The file is JSON, compressed with gzip. `legends` names the classes of each legend, numbered from 1; 0 is not
    labelled. Each of `chips` has:

    - `name`, and `source`: its scene, relative to the data folder;
    - `window`: column, row, width and height in pixels of the scene;
    - `legend`: name of its legend;
    - `rows`: a text per row of runs from left to right, each the number of a class, `x` and a length, as in
      `"3x40 4x88"`; an empty text repeats the row above;
    - `drawn_from`: what was looked at, and `note`: what is in it and what was left unlabelled;
    - `locked`: whether it is kept for judging, so that nothing may learn from it or be chosen on it.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            content = json.load(file)
        if content["format"] != DENSE_FORMAT:
            raise DataError(
                f"{path} has format {content['format']} of dense labels: this version reads {DENSE_FORMAT}."
            )
        return [_dense_chip(record, content["legends"]) for record in content["chips"]]
    except (OSError, EOFError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a file of dense labels: {error!r}.") from error


def write_dense_labels(path: str | Path, chips: Iterable[DenseChip]) -> None:
    """Write chips to a file; the same chips give the same bytes."""
    legends: dict[str, list[str]] = {}
    records: dict[str, dict[str, Any]] = {}
    for chip in chips:
        if chip.name in records:
            raise DataError(f"Two chips are called {chip.name}: rename one.")
        if legends.setdefault(chip.legend, list(chip.classes)) != list(chip.classes):
            raise DataError(
                f"{chip.name} has other classes than the legend {chip.legend}: name another legend."
            )
        records[chip.name] = _dense_record(chip)
    content = {"format": DENSE_FORMAT, "legends": legends, "chips": list(records.values())}
    text = json.dumps(content, separators=(",", ":"))
    Path(path).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _dense_record(chip: DenseChip) -> dict[str, Any]:
    """Return the record of a chip."""
    window = chip.window
    _check_labels(chip.name, chip.labels, window, chip.classes)
    return {
        "name": chip.name,
        "source": chip.source,
        "window": [window.col, window.row, window.width, window.height],
        "legend": chip.legend,
        "drawn_from": chip.drawn_from,
        "locked": chip.locked,
        "note": chip.note,
        "rows": _runs(chip.labels),
    }


def _dense_chip(record: dict[str, Any], legends: dict[str, list[str]]) -> DenseChip:
    """Return the chip of a record."""
    col, row, width, height = (int(number) for number in record["window"])
    window, classes = Rect(col, row, width, height), tuple(legends[record["legend"]])
    labels = _labels_of_runs(record["name"], record["rows"], window)
    _check_labels(record["name"], labels, window, classes)
    return DenseChip(
        record["name"],
        record["source"],
        window,
        record["legend"],
        classes,
        labels,
        record["drawn_from"],
        bool(record["locked"]),
        record["note"],
    )


def _check_labels(name: str, labels: NDArray[np.uint8], window: Rect, classes: Sequence[str]) -> None:
    """Raise DataError unless the labels fill the window and have names."""
    if window.empty or labels.shape != (window.height, window.width):
        raise DataError(
            f"The labels of {name} do not fill its window of {window.width} x {window.height} pixels."
        )
    if labels.max() > len(classes):
        raise DataError(f"{name} has the label {labels.max()}, and its legend only {len(classes)} classes.")


def _runs(labels: NDArray[np.uint8]) -> list[str]:
    """Return the runs of each row as text; empty where a row repeats the one above."""
    rows = [" ".join(f"{label}x{len(list(run))}" for label, run in groupby(row)) for row in labels.tolist()]
    return ["" if number and row == rows[number - 1] else row for number, row in enumerate(rows)]


def _labels_of_runs(name: str, rows: Sequence[str], window: Rect) -> NDArray[np.uint8]:
    """Return the labels that rows of runs stand for."""
    lines: list[NDArray[np.uint8]] = []
    for text in rows:
        if not text and lines:
            lines.append(lines[-1])
            continue
        runs = np.array([run.split("x") for run in text.split()], int).reshape(-1, 2)
        line = np.repeat(runs[:, 0].astype(np.uint8), runs[:, 1])
        if line.size != window.width:
            raise DataError(f"Row {len(lines)} of {name} has {line.size} pixels, not {window.width}.")
        lines.append(line)
    return np.array(lines, np.uint8)


CHIP = 1024
"""Side of a chip in pixels of its level."""
NEVER = -1
"""Fold of a place that is never left out."""
BLOCKS_PER_SIDE = 6
"""Number of blocks along the longer side of a scene that is left out in parts."""


@dataclass
class Chip:
    """A piece of a scene in memory.

    Attributes:
        source: Number of its source.
        place: Name of the place; crops are drawn from places alike.
        pixels: Values `[bands, H, W]` as the network takes them.
        codes: Code of the set of classes of each pixel `[H, W]`; 0 where there is no label.
        folds: Fold in which each pixel is left out, `[H, W]`, or one number for all of them.
        side: Side of a pixel in metres; None if unknown.
    """

    source: int
    place: str
    pixels: NDArray[Any]
    codes: Codes
    folds: NDArray[np.int8] | int
    side: float | None = None

    def codes_without(self, fold: int | None) -> Codes:
        """Return the codes of the pixels that are learnt from when a fold is left out."""
        return self.codes if fold is None else np.where(self.folds == fold, np.uint8(0), self.codes)

    def codes_of(self, fold: int) -> Codes:
        """Return the codes of the pixels that are left out in a fold."""
        return np.where(self.folds == fold, self.codes, np.uint8(0))


@dataclass
class LabelledChips:
    """All chips that are learnt from.

    Attributes:
        chips: The pieces of the scenes that hold labels.
        legend: Classes and sets of classes.
        fingerprint: Short hash of pixels and labels.
        gsd: Side of a pixel on the ground in metres, in the middle; None if unknown.
    """

    chips: list[Chip]
    legend: Legend
    fingerprint: str
    gsd: float | None

    def folds(self) -> list[int]:
        """Return the folds that hold labels, in order."""
        folds: set[int] = set()
        for chip in self.chips:
            folds.update(np.unique(np.broadcast_to(chip.folds, chip.codes.shape)[chip.codes > 0]).tolist())
        return sorted(folds - {NEVER})


def read_chips(config: FinetuneConfig, network: NetworkConfig) -> LabelledChips:
    """Read the labelled parts of all sources.

    Raises:
        SceneError: A scene or its labels cannot be read.
        DataError: No pixel is labelled, or only one class is.
    """
    legend = Legend(config.classes)
    automatic = sum(len(source.scenes) for source in config.sources if source.labels and not source.folds)
    chips: list[Chip] = []
    sides: list[float] = []
    number = 0
    for index, source in enumerate(config.sources):
        table = scene_classes(source)
        dense = [] if source.dense is None else read_dense_labels(source.dense)
        for position, path in enumerate(source.scenes):
            info = describe(path)
            place, fold = _place(source, path)
            by_itself = bool(source.labels) and not source.folds
            if by_itself and automatic >= max(2, config.folds):
                place, fold = path, number % max(1, config.folds)  # whole scenes are left out
            number += 1
            resolution = Resolution(gsd=source.gsd, pixel_size=source.pixel_size)
            side = resolution.of(info)
            factors = source.factors if source.gsd is None else resolution.factors(info)
            with _labels_of(source, position, info, table) as labels:
                meanings = source.meanings or own_names(config.classes)
                coder = Coder(legend, meanings, network)
                scene = _scene_source(info, source, network, config.dtype)
                for times in factors:
                    sides += [] if side is None else [side * times]
                    level = _Level(info, scene, network.channels, times)
                    drawn = [chip for chip in dense if Path(path).as_posix().endswith(f"/{chip.source}")]
                    pieces = list(level.chips(labels, coder, index, place, fold, drawn))
                    for chip, _ in pieces:
                        chip.side = None if side is None else side * times
                    if by_itself and automatic < max(2, config.folds):
                        _share_out_blocks(pieces, level, config.folds)
                    chips += [chip for chip, _ in pieces]
    _check(chips, legend)
    return LabelledChips(chips, legend, _fingerprint(chips), float(np.median(sides)) if sides else None)


def _scene_source(info: SceneInfo, source: LabelSource, network: NetworkConfig, dtype: str) -> SceneSource:
    """Return how a scene is read: its bands, and its values in the range that the network takes."""
    channels = network.channels[: len(source.bands) or None]
    bidx = match_bands(channels, info.descriptions, info.bands.certain, source.bands or None)
    optional = tuple(
        OptionalBand(position, missing, absent=position >= len(channels))
        for position, missing in network.optional.items()
    )
    scene = SceneSource.of(info, bidx, dtype, source.nodata, fill=network.offset, optional=optional)
    if source.rescale is None:
        return scene
    return replace(scene, rescale=_source_rescale(scene, info, source, network, channels))


def _source_rescale(
    scene: SceneSource, info: SceneInfo, source: LabelSource, network: NetworkConfig, channels: Sequence[str]
) -> Rescale:
    """Return the function that brings the values of a scene to the range that the network takes."""
    if source.rescale == "stretch":
        if network.stretch is None:
            raise UsageError(f"Network {network.name} takes no stretched scenes.")
        ranges = robust_ranges(value_sample(scene, info, skip_empty=True))
        return Rescale(ranges, (network.stretch,) * len(channels))
    if source.rescale in ("auto", "reflectance"):
        rescaling = cast(Rescaling, source.rescale)
        return scene_rescale(scene, info, channels, rescaling, source.reflectance)
    white = tuple(
        (offset, offset + 1 / scale) for offset, scale in zip(network.offset, network.scale, strict=True)
    )
    return Rescale((parse_rescale(source.rescale or ""),) * len(channels), white[: len(channels)])


class _Level:
    """A scene at one resolution."""

    def __init__(self, info: SceneInfo, scene: SceneSource, channels: tuple[str, ...], times: int) -> None:
        self.height, self.width = info.grid.height // times, info.grid.width // times
        self.times = times
        self._reader = SceneReader(
            Scenes((scene,), ((self.height, self.width),), (times,), (0,), channels, (), scene.dtype, None)
        )

    def chips(
        self,
        labels: SceneLabels | None,
        coder: Coder,
        source: int,
        place: str,
        fold: int,
        dense: Sequence[DenseChip] = (),
    ) -> Iterator[tuple[Chip, Rect]]:
        """Yield the chips that hold labels, and where they lie."""
        for row in range(0, self.height, CHIP):
            for col in range(0, self.width, CHIP):
                rect = Rect(col, row, min(CHIP, self.width - col), min(CHIP, self.height - row))
                values = None if labels is None else read_reduced(labels, rect, self.times)
                unlabelled = values is not None and not coder.anywhere and (values == NOT_LABELLED).all()
                if unlabelled and not dense:
                    continue
                pixels = self._reader.read(0, rect)
                codes = coder.codes(values, labels, pixels.values)
                for drawn in dense:
                    _overlay(codes, rect, self.times, drawn, coder)
                if pixels.valid is not None:
                    codes[~pixels.valid] = 0
                if codes.any():
                    yield Chip(source, place, pixels.values, codes, fold), rect
        self._reader.close()


def _overlay(codes: Codes, rect: Rect, times: int, drawn: DenseChip, coder: Coder) -> None:
    """Replace the codes of a chip's pixels that are labelled densely; each takes the label of its centre."""
    window = drawn.window
    rows = (np.arange(rect.row, rect.bottom) * times + times // 2) - window.row
    columns = (np.arange(rect.col, rect.right) * times + times // 2) - window.col
    inside_rows = (rows >= 0) & (rows < window.height)
    inside_columns = (columns >= 0) & (columns < window.width)
    numbers = drawn.labels[np.ix_(rows[inside_rows], columns[inside_columns])]
    table = np.array([0, *(coder.legend.code((name,)) for name in drawn.classes)], np.uint8)
    part = np.ix_(inside_rows, inside_columns)
    codes[part] = np.where(numbers > 0, table[numbers], codes[part])


class _SceneClass:
    """One class for a whole scene."""

    numbered = False

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, rect: Rect) -> NDArray[np.int64]:
        """Return zeros: the only value."""
        return np.zeros((rect.height, rect.width), np.int64)

    def name(self, value: int) -> str:
        """Return the class of the scene."""
        return self._name

    def colour(self, value: int) -> None:
        """A table has no colours."""
        return


class _Opened(AbstractContextManager["SceneLabels | None"]):
    def __init__(self, labels: "SceneLabels | None") -> None:
        self._labels = labels

    def __enter__(self) -> "SceneLabels | None":
        return self._labels

    def __exit__(self, *_: object) -> None:
        return


def _labels_of(
    source: LabelSource, position: int, info: SceneInfo, table: Mapping[str, str]
) -> "AbstractContextManager[SceneLabels | None]":
    if table:
        name = table.get(Path(info.path).name)
        return _Opened(None if name is None else _SceneClass(name))
    if not source.labels:
        return _Opened(None)
    if len(source.labels) not in (1, len(source.scenes)):
        raise UsageError(
            f"There are {len(source.scenes)} scenes but {len(source.labels)} files of `labels`; give one for each "
            "scene, in order, or one for all of them."
        )
    path = source.labels[position % len(source.labels)]
    return open_labels(path, info.grid, source.label_field, elsewhere=len(source.labels) < len(source.scenes))


def scene_classes(source: LabelSource) -> dict[str, str]:
    """Read a table of the classes of whole scenes; empty if the labels are not such a table."""
    if len(source.labels) != 1 or Path(source.labels[0]).suffix.lower() != ".csv":
        return {}
    try:
        with Path(source.labels[0]).open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        return {Path(row["file"]).name: row["class"] for row in rows}
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise SceneError(
            f"The table {source.labels[0]} cannot be read ({error}): it needs the columns file and class."
        ) from error


def _place(source: LabelSource, path: str) -> tuple[str, int]:
    """Return the name of the place of a scene and the fold in which it is left out."""
    name = Path(path).name
    for text, fold in source.folds:
        if name.startswith(text):
            return f"{source.name} {text}", fold
    return source.name, NEVER


def _share_out_blocks(pieces: Sequence[tuple[Chip, Rect]], level: _Level, folds: int) -> None:
    """Let each block of a scene be left out in one fold, as there are too few scenes to leave out whole ones."""
    side = -(-max(level.height, level.width) // BLOCKS_PER_SIDE)
    blocks: dict[tuple[int, int], int] = {}
    grids = []
    for chip, rect in pieces:
        rows, columns = np.nonzero(chip.codes)
        labelled = np.stack([(rows + rect.row) // side, (columns + rect.col) // side], 1)
        for block in map(tuple, np.unique(labelled, axis=0).tolist()):
            blocks.setdefault(block, 0)
        grids.append(
            ((np.arange(rect.height) + rect.row) // side, (np.arange(rect.width) + rect.col) // side)
        )
    order = np.random.default_rng(0).permutation(len(blocks))
    for turn, block in zip(order.tolist(), sorted(blocks), strict=True):
        blocks[block] = turn % max(1, folds)
    for (chip, _), (rows, columns) in zip(pieces, grids, strict=True):
        table = np.full((rows.max() + 1, columns.max() + 1), NEVER, np.int8)
        for (row, column), fold in blocks.items():
            if row < table.shape[0] and column < table.shape[1]:
                table[row, column] = fold
        chip.folds = table[rows[:, None], columns[None, :]]


def _check(chips: Sequence[Chip], legend: Legend) -> None:
    if not chips:
        raise DataError(
            "No pixel of the scenes is labelled: check that scenes and labels cover the same place and that the values "
            "of the labels are right (`label_class`)."
        )
    seen = np.zeros(len(legend.members()), bool)
    for chip in chips:
        seen[np.unique(chip.codes)] = True
    allowed = legend.members()[seen].any(0)
    if allowed.sum() < 2:
        name = legend.classes[int(allowed.argmax())]
        raise DataError(f"All labels are {name}: a map needs at least two classes, so label another one too.")


def _fingerprint(chips: Sequence[Chip]) -> str:
    digest = hashlib.sha256()
    for chip in chips:
        digest.update(repr(chip.pixels.shape).encode())
        digest.update(np.ascontiguousarray(chip.pixels[:, ::7, ::7]).tobytes())
        digest.update(chip.codes.tobytes())
    return digest.hexdigest()[:16]
