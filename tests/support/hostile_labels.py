"""Odd labels: shapes and names of any kind in any CRS, and what must hold for each of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import shapely
from hypothesis import strategies as st
from pyogrio.raw import write
from typer.testing import CliRunner

from iic_runtime.cli.model import app
from support.hostile import check_result
from support.scenes import CRS, NORTH, PIXEL, WEST, landscape, write_points, write_raster
from support.tiny_onnx import make_model

SIDE = 60
MODEL = make_model(features=True)
Point = tuple[float, float]


@dataclass(frozen=True)
class OddLabels:
    """What a file of labels is made from."""

    shapes: tuple[tuple[str, Point], ...]
    names: tuple[str | None, ...]
    crs: str | None
    suffix: str

    def write(self, path: Path) -> None:
        """Write the labels."""
        shapes = np.array([_SHAPES[kind](*point) for kind, point in self.shapes], object)
        names = np.array(self.names, object)
        write(path, shapely.to_wkb(shapes), [names], ["class"], geometry_type="Unknown", crs=self.crs)


_SHAPES = {
    "point": shapely.Point,
    "empty": lambda x, y: shapely.Point(),
    "square": lambda x, y: (
        shapely.box(x, y, x + 3, y + 3) if np.isfinite([x, y]).all() else shapely.Point(x, y)
    ),
    "line": lambda x, y: shapely.LineString([(x, y), (x + 3, y + 1)]),
    "many": lambda x, y: shapely.MultiPoint([(x, y), (x + 2, y)]),
}


@st.composite
def odd_labels(draw: st.DrawFn) -> OddLabels:
    """Mostly labels on the scene, now and then somewhere else or nowhere."""
    inside = st.tuples(st.floats(WEST, WEST + SIDE * PIXEL - 4), st.floats(NORTH - SIDE * PIXEL, NORTH - 4))
    anywhere = st.tuples(st.floats(), st.floats())
    odd = draw(st.integers(0, 3)) == 0
    count = draw(st.integers(0, 8))
    kinds = st.sampled_from([*_SHAPES, *["point"] * 6])
    places = st.one_of(inside, inside, anywhere) if odd else inside
    names = st.sampled_from(["a", "b", "c"]) | (st.none() | st.text(max_size=10) if odd else st.just("d"))
    return OddLabels(
        shapes=tuple((draw(kinds), draw(places)) for _ in range(count)),
        names=tuple(draw(names) for _ in range(count)),
        crs=draw(st.sampled_from(["EPSG:32631"] * 4 + ["EPSG:4326", "EPSG:3857", None])),
        suffix=draw(st.sampled_from([".gpkg", ".geojson", ".fgb"])),
    )


def check_labels(labels: OddLabels, folder: Path) -> int:
    """Name a model by labels, check what must hold, and return the exit code.

    Raises:
        AssertionError: It does not hold.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(MODEL)
    scene = write_raster(folder / "scene.tif", landscape(SIDE, SIDE))
    path = folder / f"labels{labels.suffix}"
    try:
        labels.write(path)
    except Exception:  # not every format holds every shape and name
        return 2
    before = {entry.name for entry in folder.iterdir()}
    out = folder / "named.onnx"
    arguments = [
        "name",
        str(folder / "model.onnx"),
        "--labels",
        str(path),
        "--scene",
        str(scene),
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--threads", "1", "-q"])
    check_result(result, folder, before, f"{labels}\n{result.output}")
    assert out.exists() == (result.exit_code == 0)
    return int(result.exit_code)


ROWS, COLUMNS = [5, 15, 25, 35, 45, 55], [5, 50, 8, 60, 20, 40]
NAN = float("nan")


def some_points(
    path: Path, xs: list[float], ys: list[float], names: list[str], crs: str | None = CRS
) -> Path:
    wkb = shapely.to_wkb(shapely.points(xs, ys))
    write(path, wkb, [np.array(names, object)], ["class"], geometry_type="Point", crs=crs)
    return path


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def cut(path: Path, share: float) -> Path:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    return path


def nan_ring(path: Path) -> Path:
    content = {"type": "Polygon", "coordinates": [[[NAN, 5], [1, 1], [2, 2], [NAN, 5]]]}
    feature = {"type": "Feature", "properties": {"class": "a"}, "geometry": content}
    return text(path, json.dumps({"type": "FeatureCollection", "features": [feature]}))


# Labels that nothing can be made of: how they are made in a folder, and what is said about them.
WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "outside": (
        lambda folder: write_points(folder / "a.gpkg", [5000] * 2, [5000] * 2, ["a", "b"]),
        "outside",
    ),
    "one class": (lambda folder: write_points(folder / "a.gpkg", ROWS, COLUMNS, ["a"] * 6), "all a"),
    "contradictory": (
        lambda folder: write_points(folder / "a.gpkg", [5, 5], [5, 5], ["a", "b"]),
        "both a and b",
    ),
    "300 classes": (
        lambda folder: write_points(
            folder / "a.gpkg",
            [n % 60 for n in range(300)],
            [n % 70 for n in range(300)],
            [f"c{n}" for n in range(300)],
        ),
        "300 classes",
    ),
    "300 values": (
        lambda folder: write_raster(
            folder / "a.tif", np.arange(4200).reshape(1, 60, 70).astype(np.uint16) % 300
        ),
        "300 classes",
    ),
    "empty file": (lambda folder: text(folder / "a.geojson", ""), "neither a raster nor a vector"),
    "cut GeoPackage": (
        lambda folder: cut(write_points(folder / "a.gpkg", ROWS, COLUMNS, ["a", "b"] * 3), 0.98),
        "neither a raster nor a vector",
    ),
    "cut FlatGeobuf": (
        lambda folder: cut(write_points(folder / "a.fgb", ROWS, COLUMNS, ["a", "b"] * 3), 0.2),
        "neither a raster nor a vector",
    ),
    "cut raster": (
        lambda folder: cut(
            write_raster(
                folder / "a.tif", np.arange(4200, dtype=np.uint8).reshape(1, 60, 70) % 4, compress="lzw"
            ),
            0.7,
        ),
        "check that the file is whole",
    ),
    "no features": (
        lambda folder: text(folder / "a.geojson", '{"type":"FeatureCollection","features":[]}'),
        "no field",
    ),
    "nan": (
        lambda folder: some_points(folder / "a.gpkg", [NAN, 500005.0], [1.0, 5399995.0], ["a", "b"]),
        "not finite",
    ),
    "infinite": (
        lambda folder: some_points(
            folder / "a.gpkg", [5.0, float("inf")], [1e300, 45.0], ["a", "b"], "EPSG:4326"
        ),
        "not finite",
    ),
    "off the earth": (
        lambda folder: some_points(folder / "a.gpkg", [5.0, 1e17], [1e17, 45.0], ["a", "b"], "EPSG:4326"),
        "outside the scene|cannot be brought",
    ),
    "nan in a ring": (lambda folder: nan_ring(folder / "a.geojson"), "cannot be read"),
    "no name": (lambda folder: folder / "a\udcff.gpkg", "There is no file"),
    "terminal": (
        lambda folder: write_points(folder / "a.gpkg", ROWS, COLUMNS, ["\x1b[2J", "b"] * 3),
        "printable",
    ),
    "endless": (
        lambda folder: write_points(folder / "a.gpkg", ROWS, COLUMNS, ["x" * 9999, "b"] * 3),
        "200 characters",
    ),
    "floats": (
        lambda folder: write_raster(folder / "a.tif", np.zeros((1, 60, 70), np.float32)),
        "give integers",
    ),
}
