"""Transitions between the classes of two maps: the matrix of areas, as data and as tables."""

import csv
import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.geobox import AreaMethod
from iic_geotools.products.areas import plain_cell, ten_digits

TABLES = (".csv", ".json")


@dataclass(frozen=True, eq=False)
class Transitions:
    """Areas of each change of class between two maps.

    Attributes:
        names: Names of the classes that occur.
        hectares: Area `[before, after]` of each pair of classes.
        pixels: Number of pixels of each pair, on the grid of comparison.
        left_out_ha: Area of pixels that are unsure or have no data in either map, where both maps lie.
        method: How the areas were measured.
    """

    names: tuple[str, ...]
    hectares: NDArray[np.float64]
    pixels: NDArray[np.int64]
    left_out_ha: float
    method: AreaMethod

    @property
    def before(self) -> NDArray[np.float64]:
        """Area of each class in the first map."""
        return np.asarray(self.hectares.sum(1))

    @property
    def after(self) -> NDArray[np.float64]:
        """Area of each class in the second map."""
        return np.asarray(self.hectares.sum(0))

    @property
    def gains(self) -> NDArray[np.float64]:
        """Area gained by each class."""
        return np.asarray(self.after - self.hectares.diagonal())

    @property
    def losses(self) -> NDArray[np.float64]:
        """Area lost by each class."""
        return np.asarray(self.before - self.hectares.diagonal())

    @property
    def changed_share(self) -> float:
        """Share of the area that has another class in the second map."""
        total = float(self.hectares.sum())
        return 1 - float(self.hectares.trace()) / total if total else 0.0


def transition_table(transitions: Transitions, suffix: str) -> str:
    """Transitions as the text of a .csv or .json file."""
    return _as_json(transitions) if suffix.lower() == ".json" else _as_csv(transitions)


def _as_json(transitions: Transitions) -> str:
    columns = (transitions.before, transitions.after, transitions.gains, transitions.losses)
    content: dict[str, Any] = {
        "method": transitions.method,
        "classes": [
            {
                "name": name,
                "before_ha": ten_digits(before),
                "after_ha": ten_digits(after),
                "gain_ha": ten_digits(gain),
                "loss_ha": ten_digits(loss),
                "net_ha": ten_digits(after - before),
            }
            for name, before, after, gain, loss in zip(transitions.names, *columns, strict=True)
        ],
        "matrix_ha": [[ten_digits(value) for value in row] for row in transitions.hectares],
        "matrix_pixels": transitions.pixels.tolist(),
        "left_out_ha": ten_digits(transitions.left_out_ha),
        "changed_share": ten_digits(transitions.changed_share),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _as_csv(transitions: Transitions) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = [plain_cell(name) for name in transitions.names]
    writer.writerow(["ha, from (rows) to (columns)", *names, "total before", "loss"])
    for name, row, total, loss in zip(
        names, transitions.hectares, transitions.before, transitions.losses, strict=True
    ):
        writer.writerow([name, *map(ten_digits, row), ten_digits(total), ten_digits(loss)])
    total = ten_digits(transitions.hectares.sum())
    writer.writerow(["total after", *map(ten_digits, transitions.after), total, None])
    writer.writerow(["gain", *map(ten_digits, transitions.gains), None, None])
    net = transitions.after - transitions.before
    writer.writerow(["net", *map(ten_digits, net), None, None])
    return buffer.getvalue()
