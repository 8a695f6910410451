"""Random places of a finished map, judged by a person who does not see it."""

from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from iic_geotools.classmap.class_map import open_map
from iic_geotools.errors import UsageError
from iic_geotools.products.assessment.assess import assess_map
from iic_geotools.products.assessment.draw import draw_samples
from iic_geotools.products.assessment.report import Assessment
from iic_geotools.scene.points import read_points, write_points


@dataclass(frozen=True)
class Sample:
    """A place drawn from the map.

    Attributes:
        number: Its number, counted from 1.
        x: x in the map's CRS.
        y: y in the map's CRS.
        name: The class that a person has given it; empty if nobody has.
    """

    number: int
    x: float
    y: float
    name: str


class SampleFile:
    """A GeoPackage of places, each answer of which is written at once.

    Args:
        path: The file.
        map: The map that the places are drawn from.
    """

    def __init__(self, path: Path, map: Path) -> None:
        self._path, self._map, self._lock = path, map, Lock()
        self._known: tuple[int, tuple[Sample, ...]] = (-1, ())

    def list(self) -> tuple[Sample, ...]:
        """Return all places; none before `draw`.

        Raises:
            SceneError: The file cannot be read.
        """
        if not self._path.exists():
            return ()
        changed = self._path.stat().st_mtime_ns
        if self._known[0] != changed:
            points = read_points(self._path, "class")
            rows = zip(points.x.tolist(), points.y.tolist(), points.classes, strict=True)
            samples = tuple(Sample(number, *row) for number, row in enumerate(rows, start=1))
            self._known = changed, samples
        return self._known[1]

    def draw(self, count: int, seed: int) -> tuple[Sample, ...]:
        """Draw places anew; answers to earlier ones are lost.

        Raises:
            IICError: The map cannot be sampled, or the places cannot be written.
        """
        with self._lock:
            draw_samples(self._map, self._path, count, seed=seed, overwrite=True)
        return self.list()

    def answer(self, number: int, name: str | None) -> None:
        """Write what is at a place; None where it cannot be told.

        Raises:
            UsageError: There is no such place, or the map has no such class.
            OutputError: The answer cannot be written.
        """
        with self._lock:
            points = read_points(self._path, "class")
            if not 1 <= number <= len(points.classes):
                raise UsageError(f"There is no place {number}.")
            with open_map(self._map) as class_map:
                if name is not None and name not in class_map.names:
                    raise UsageError(
                        f"The finished map has no class {name}; its classes are {', '.join(class_map.names)}."
                    )
            names: list[str | None] = [text or None for text in points.classes]
            names[number - 1] = name
            fields = {
                "class": np.array(names, object),
                "number": np.arange(1, len(names) + 1, dtype=np.int32),
            }
            write_points(self._path, points.x, points.y, points.crs, fields, points.metadata)

    def assess(self, report: Path) -> Assessment:
        """Estimate accuracy and areas from the answers, and write them as a page.

        Raises:
            IICError: There are too few answers, or the report cannot be written.
        """
        return assess_map(self._map, self._path, label_field="class", reports=[report], overwrite=True)
