"""Places that a person labels: clicks to fit, and samples that assess a finished map."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from rasterio.crs import CRS

from iic_geotools.classmap.class_map import open_map
from iic_geotools.classmap.classes import MAX_CLASSES, MapClass, suggest_colour
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.packages import shapely
from iic_geotools.products.assessment.assess import assess_map
from iic_geotools.products.assessment.draw import draw_samples
from iic_geotools.products.assessment.report import Assessment
from iic_geotools.scene.labels import check_class, class_text, reprojected
from iic_geotools.scene.points import read_points, write_points
from iic_geotools.scene.vectors import read_metadata, read_shapes, write_package

CLASSES_KEY = "IIC_STUDIO_CLASSES"
"""The metadata item of the layer that lists the classes, also those without a click."""


@dataclass(frozen=True)
class Click:
    """A place and the class that a person gave it.

    Attributes:
        number: Its number among those of a session.
        name: Name of the class.
        x: x in the scene's CRS.
        y: y in the scene's CRS.
        step: The action that added it; clicks of one stroke share it, and are undone together.
    """

    number: int
    name: str
    x: float
    y: float
    step: int


def write_clicks(path: Path, clicks: Sequence[Click], classes: Sequence[MapClass], crs: CRS | None) -> None:
    """Write clicks as points with the fields `class`, `colour`, `number` and `step`.

    Args:
        path: The GeoPackage, which is replaced at once: it holds either the old clicks or the new ones.
    """
    colours = {entry.name: entry.colour for entry in classes}
    points = shapely.points([click.x for click in clicks], [click.y for click in clicks])
    fields = {
        "class": np.array([click.name for click in clicks], object),
        "colour": np.array([colours[click.name] for click in clicks], object),
        "number": np.array([click.number for click in clicks], np.int64),
        "step": np.array([click.step for click in clicks], np.int64),
    }
    listed = json.dumps([[entry.name, entry.colour] for entry in classes])
    wkt = None if crs is None else crs.to_wkt(version="WKT2_2019")
    write_package(path, points, fields, wkt, layer_metadata={CLASSES_KEY: listed})


def read_clicks_file(path: Path, grid: GeoBox) -> tuple[list[Click], list[MapClass]]:
    """Read what `write_clicks` wrote, as QGIS may have changed it.

    Points that were added elsewhere need only a class; a point without one is left out.

    Args:
        grid: The grid of the scene, to whose CRS the clicks are brought.

    Raises:
        SceneError: The file cannot be read, or its clicks are not of this scene.
    """
    metadata = read_metadata(path, "The clicks")
    shapes = read_shapes(path, "The clicks", None)
    if "class" not in shapes.fields:
        raise SceneError(
            f"{path} has no field class, so it holds no clicks; move it away, or give another `folder`."
        )
    try:
        listed = [(name, colour) for name, colour in json.loads(metadata.get(CLASSES_KEY, "[]"))]
        if not all(isinstance(text, str) for entry in listed for text in entry):
            raise TypeError("names and colours are texts")
        classes = {name: MapClass(name, colour) for name, colour in listed}
    except (ValueError, TypeError, RecursionError) as error:
        raise SceneError(
            f"The list of classes in {path} cannot be read ({error}); move the file away."
        ) from error
    clicks: list[Click] = []
    steps = shapes.fields.get("step", np.array([None] * len(shapes.numbers), object))
    places = reprojected(shapes.geometries, shapes.crs, grid, path)
    for index, (value, place, step) in enumerate(
        zip(shapes.fields["class"], places, steps, strict=True), start=1
    ):
        name = class_text(value)
        if not name or place.geom_type != "Point":
            continue
        if name not in classes:
            check_class(name, path)
            taken = [entry.colour for entry in classes.values()]
            classes[name] = MapClass(name, suggest_colour(name, taken))
        clicks.append(Click(index, name, place.x, place.y, _whole(step, index)))
    if len(classes) > MAX_CLASSES:
        raise SceneError(
            f"{path} has {len(classes)} classes, and a map holds at most {MAX_CLASSES}; merge some."
        )
    outside = sum(not grid.contains(click.x, click.y) for click in clicks)
    if outside:
        raise SceneError(
            f"{outside} of the {len(clicks)} clicks in {path} lie outside the scene; remove them, or give another "
            "`folder`."
        )
    return clicks, list(classes.values())


def _whole(value: Any, default: int) -> int:
    """A whole number that every file and page can hold, or else a default."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if 0 <= number < 1 << 53 else default


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
        """Draw places again; answers to earlier ones are lost.

        Raises:
            IICError: The map cannot be sampled, or the places cannot be written.
        """
        with self._lock:
            draw_samples(self._map, self._path, count, seed=seed, overwrite=True)
        return self.list()

    def answer(self, number: int, name: str | None) -> None:
        """Record the class at a place; None if unknown.

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
