"""Dense labels of whole chips, drawn by eye: the classes of all pixels of a window of a scene, in a small file.

A file is JSON, compressed with gzip. `legends` names the classes of each legend, numbered from 1; 0 is not labelled.
Each of `chips` has:

- `name`, and `source`: its scene, relative to the data folder;
- `window`: column, row, width and height in pixels of the scene;
- `legend`: name of its legend;
- `rows`: a text per row of runs from left to right, each the number of a class, `x` and a length, as in `"3x40 4x88"`;
  an empty text repeats the row above;
- `drawn_from`: what was looked at, and `note`: what is in it and what was left unlabelled;
- `locked`: whether it is kept for judging, so that nothing may learn from it or be chosen on it.
"""

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_geotools.tiling import Rect

FORMAT = 1
"""Number of the format that is written and read."""


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
    """Return the chips of a file of dense labels, in its order.

    Raises:
        DataError: It is no such file, or rows do not fill their window.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            content = json.load(file)
        if content["format"] != FORMAT:
            raise DataError(
                f"{path} has format {content['format']} of dense labels: this version reads {FORMAT}."
            )
        return [_chip(record, content["legends"]) for record in content["chips"]]
    except (OSError, EOFError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a file of dense labels: {error!r}.") from error


def write_dense_labels(path: str | Path, chips: Iterable[DenseChip]) -> None:
    """Write chips to a file; the same chips give the same bytes.

    Raises:
        DataError: Two chips have the same name, labels of another shape than their window or above the number of
            classes, or two of the same legend different classes.
    """
    legends: dict[str, list[str]] = {}
    records: dict[str, dict[str, Any]] = {}
    for chip in chips:
        if chip.name in records:
            raise DataError(f"Two chips are called {chip.name}: rename one.")
        if legends.setdefault(chip.legend, list(chip.classes)) != list(chip.classes):
            raise DataError(
                f"{chip.name} has other classes than the legend {chip.legend}: name another legend."
            )
        records[chip.name] = _record(chip)
    content = {"format": FORMAT, "legends": legends, "chips": list(records.values())}
    text = json.dumps(content, separators=(",", ":"))
    Path(path).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _record(chip: DenseChip) -> dict[str, Any]:
    """Return what is written of a chip."""
    window = chip.window
    _check(chip.name, chip.labels, window, chip.classes)
    return {
        "name": chip.name,
        "source": chip.source,
        "window": [window.col, window.row, window.width, window.height],
        "legend": chip.legend,
        "drawn_from": chip.drawn_from,
        "locked": chip.locked,
        "note": chip.note,
        "rows": _rows(chip.labels),
    }


def _chip(record: dict[str, Any], legends: dict[str, list[str]]) -> DenseChip:
    """Return the chip of a record."""
    col, row, width, height = (int(number) for number in record["window"])
    window, classes = Rect(col, row, width, height), tuple(legends[record["legend"]])
    labels = _labels(record["name"], record["rows"], window)
    _check(record["name"], labels, window, classes)
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


def _check(name: str, labels: NDArray[np.uint8], window: Rect, classes: Sequence[str]) -> None:
    """Raise DataError unless the labels fill the window and have names."""
    if window.empty or labels.shape != (window.height, window.width):
        raise DataError(
            f"The labels of {name} do not fill its window of {window.width} x {window.height} pixels."
        )
    if labels.max() > len(classes):
        raise DataError(f"{name} has the label {labels.max()}, and its legend only {len(classes)} classes.")


def _rows(labels: NDArray[np.uint8]) -> list[str]:
    """Return the runs of each row as text; empty where a row repeats the one above."""
    rows = [" ".join(f"{label}x{len(list(run))}" for label, run in groupby(row)) for row in labels.tolist()]
    return ["" if number and row == rows[number - 1] else row for number, row in enumerate(rows)]


def _labels(name: str, rows: Sequence[str], window: Rect) -> NDArray[np.uint8]:
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
