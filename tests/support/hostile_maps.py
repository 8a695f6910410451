"""Odd maps, zones and options of map commands, and what must hold for each of them."""

import csv
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import shapely
from affine import Affine
from hypothesis import strategies as st
from pyogrio import read_info
from pyogrio.raw import read, write
from rasterio.features import rasterize
from typer.testing import CliRunner, Result

from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.sidecars import sidecar, sidecar_path
from iic_geotools.cli.map import app
from support.hostile import check_result
from support.maps import make_classes, random_labels

WEST, NORTH = 770_000, 6_279_000
USUAL = Affine(0.5, 0, WEST, 0, -0.5, NORTH)
TRANSFORMS = {
    "turned": Affine(0.3, 0.4, WEST, 0.4, -0.3, NORTH),
    "south up": Affine(0.5, 0, WEST, 0, 0.5, NORTH),
    "oblong": Affine(0.4, 0, WEST, 0, -1.3, NORTH),
    "elsewhere": Affine(0.5, 0, WEST + 10_000, 0, -0.5, NORTH),
    "singular": Affine(1, 1, 0, 1, 1, 0),
    "not a number": Affine(math.nan, 0, 0, 0, -1, 0),
    "huge": Affine(1e300, 0, 0, 0, -1e300, 0),
    "tiny": Affine(1e-300, 0, 0, 0, -1e-300, 0),
    "degrees at the antimeridian": Affine(1e-3, 0, 179.97, 0, -1e-3, 10),
    "degrees beyond the pole": Affine(1, 0, 170, 0, -1, 100),
}
SIDECARS = ("whole",) * 8 + ("missing", "too few", "cut", "not XML", "klingon", "a folder", "bomb")
DTYPES = ("uint8",) * 10 + ("uint16", "int16", "float32", "int8", "complex64")
KINDS = ("stats", "change", "clean", "draw", "assess")
_BOMB = '<!DOCTYPE a [<!ENTITY b "bbbbbbbb"><!ENTITY c "&b;&b;&b;">]><PAMDataset>&c;</PAMDataset>'


@dataclass(frozen=True)
class OddMap:
    """What a map is made from."""

    height: int
    width: int
    classes: int
    patch: int
    dtype: str = "uint8"
    nodata: float | None = NODATA
    transform: str = "usual"
    crs: str | None = "EPSG:2154"
    sidecar: str = "whole"
    beyond: bool = False
    seed: int = 0

    @property
    def affine(self) -> Affine:
        """The transform."""
        return TRANSFORMS.get(self.transform, USUAL)

    @property
    def labels(self) -> np.ndarray:
        """The values: labels, one of them beyond the legend if that is asked for."""
        labels = random_labels(self.height, self.width, self.classes, self.seed, self.patch)
        if self.beyond:
            labels[-1, -1] = min(self.classes + 3, 254)
        return labels

    @property
    def is_plain(self) -> bool:
        """Whether every command takes it."""
        usual = (self.dtype, self.nodata, self.transform, self.crs) == ("uint8", NODATA, "usual", "EPSG:2154")
        return usual and self.sidecar == "whole" and not self.beyond

    def put(self, path: Path) -> Path:
        """Write the map."""
        labels = self.labels
        profile: dict[str, Any] = {
            "driver": "GTiff",
            "count": 1,
            "dtype": self.dtype,
            "crs": self.crs,
            "nodata": self.nodata if self.dtype != "int8" else None,
            "transform": self.affine,
        }
        with rasterio.open(path, "w", width=self.width, height=self.height, **profile) as dataset:
            dataset.write(labels.astype(self.dtype), 1)
        text = sidecar(make_classes(self.classes)[: 1 if self.sidecar == "too few" else None])
        file = sidecar_path(path)
        if self.sidecar == "a folder":
            file.mkdir()
        elif self.sidecar != "missing":
            kinds = {
                "cut": text[: len(text) // 2],
                "not XML": b"\x00\xff<<",
                "klingon": b'<?xml version="1.0" encoding="klingon"?>' + text,
                "bomb": _BOMB.encode(),
            }
            file.write_bytes(kinds.get(self.sidecar, text))
        return path


@dataclass(frozen=True)
class MapCase:
    """Two maps, polygons or points, and a command on them."""

    command: str
    map: OddMap
    other: OddMap
    shapes: tuple[tuple[str, float, float, float], ...]
    names: tuple[str | None, ...]
    crs: str | None
    options: tuple[str, ...]


_SHAPES = {
    "box": lambda x, y, size: shapely.box(x, y, x + size, y + size),
    "triangle": lambda x, y, size: shapely.Polygon([(x, y), (x + size, y), (x, y + 2 * size)]),
    "bow tie": lambda x, y, size: shapely.Polygon(
        [(x, y), (x + size, y + size), (x + size, y), (x, y + size)]
    ),
    "ring": lambda x, y, size: (
        shapely.Point(x, y).buffer(size).difference(shapely.Point(x, y).buffer(size / 2))
    ),
    "two": lambda x, y, size: shapely.MultiPolygon(
        [shapely.box(x, y, x + size, y + size), shapely.box(x + 2 * size, y, x + 3 * size, y + size)]
    ),
    "empty": lambda x, y, size: shapely.Polygon(),
    "none": lambda x, y, size: None,
    "line": lambda x, y, size: shapely.LineString([(x, y), (x + size, y)]),
    "point": lambda x, y, size: shapely.Point(x, y),
    "flat": lambda x, y, size: shapely.Polygon([(x, y), (x + size, y), (x, y)]),
    "world": lambda x, y, size: shapely.box(-1e7, -1e7, 1e7, 1e7),
    "infinite": lambda x, y, size: shapely.Polygon([(x, y), (math.inf, y), (x, y + size)]),
}


@st.composite
def odd_maps(draw: st.DrawFn) -> OddMap:
    """Maps of any size, mostly of the usual form."""
    odd = draw(st.integers(0, 2)) == 0
    return OddMap(
        height=draw(st.integers(1, 90)),
        width=draw(st.integers(1, 90)),
        classes=draw(st.sampled_from([1, 2, 3, 4, 30, 254])),
        patch=draw(st.sampled_from([1, 3, 9])),
        dtype=draw(st.sampled_from(DTYPES)) if odd else "uint8",
        nodata=draw(st.sampled_from([NODATA, NODATA, None, 0])) if odd else NODATA,
        transform=draw(st.sampled_from(["usual", "usual", *TRANSFORMS])) if odd else "usual",
        crs=draw(st.sampled_from(["EPSG:2154", "EPSG:4326", "EPSG:3857", "EPSG:4978", None]))
        if odd
        else "EPSG:2154",
        sidecar=draw(st.sampled_from(SIDECARS)) if odd else "whole",
        beyond=odd and draw(st.integers(0, 7)) == 0,
        seed=draw(st.integers(0, 2**16)),
    )


@st.composite
def map_cases(draw: st.DrawFn) -> MapCase:
    """A map command on odd maps, shapes and options."""
    command = draw(st.sampled_from(KINDS))
    odd = draw(st.integers(0, 3)) == 0
    places = st.tuples(
        st.sampled_from(list(_SHAPES) if odd else ["box", "triangle", "ring", "two"]),
        st.floats() if odd else st.floats(WEST - 5, WEST + 45),
        st.floats() if odd else st.floats(NORTH - 45, NORTH + 5),
        st.floats(0.01, 60),
    )
    shapes = tuple(draw(st.lists(places, max_size=8)))
    names = st.sampled_from(["class 0 é", "class 1 é", "0"]) | (
        st.none() | st.text(max_size=9) if odd else st.just("1")
    )
    options: list[str] = []
    for flag, right, wrong in {
        "stats": [("--partial-pixels", ("share", "centre"), ("half",))],
        "change": [("--table", ("t.csv", "t.json"), ("t.txt",)), ("--preview", ("p.png",), ("p.gif",)),
                   ("--web", ("w.html",), ("map.tif",))],
        "clean": [("--majority", ("1", "3"), ("-1", "nan", "10**9")),
                  ("--sieve", ("3", "50", "1e9"), ("nan", "-1"))],
        "draw": [("--seed", ("1", "77"), ("-1", "9" * 25, "x"))],
        "assess": [("--design", ("simple", "stratified"), ("x",)),
                   ("--report", ("r.html", "r.json", "r.csv"), ("r.txt",))],
    }[command]:  # fmt: skip
        if draw(st.booleans()):
            options += [flag, draw(st.sampled_from(wrong if draw(st.integers(0, 19)) == 0 else right))]
    first = draw(odd_maps())
    return MapCase(
        command=command,
        map=first,
        other=draw(st.just(first) | odd_maps()),
        shapes=shapes,
        names=tuple(draw(names) for _ in shapes),
        crs=draw(st.sampled_from(["EPSG:2154", "EPSG:4326", "EPSG:3857", None])) if odd else "EPSG:2154",
        options=tuple(options),
    )


def check_map_case(case: MapCase, folder: Path) -> bool:
    """Run the command, check what must hold, and return whether it was taken.

    Raises:
        AssertionError: It does not hold.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case.map.put(folder / "map.tif")
    case.other.put(folder / "other.tif")
    put_shapes(case, folder / "shapes.gpkg")
    before = {entry.name for entry in folder.iterdir()}
    result = run_map_command(case, folder)
    context = f"{case}\n{result.output}"
    check_result(result, folder, before, context)
    if not result.exit_code:
        _RIGHT[case.command](case, folder, context)
    return not result.exit_code


def run_map_command(case: MapCase, folder: Path) -> Result:
    """Run the command of a case in a folder that has its inputs."""
    words = {
        "stats": "stats map.tif shapes.gpkg out.csv",
        "change": "change map.tif other.tif out.tif",
        "clean": "clean map.tif out.tif",
        "draw": "assess map.tif out.gpkg --draw 30",
        "assess": "assess map.tif shapes.gpkg",
    }[case.command].split()
    words += case.options
    return CliRunner().invoke(
        app, [str(folder / word) if word[-1].isalpha() and "." in word else word for word in words] + ["-q"]
    )


def put_shapes(case: MapCase, path: Path) -> None:
    """Write the shapes of a case."""
    shapes = [_SHAPES[kind](x, y, size) if np.isfinite([x, y]).all() else shapely.Point(x, y)
              for kind, x, y, size in case.shapes]  # fmt: skip
    if case.command == "assess":
        shapes = [
            None if shape is None or shape.is_empty else shape.representative_point() for shape in shapes
        ]
    wkb = shapely.to_wkb(np.array(shapes, object))
    write(path, wkb, [np.array(case.names, object)], ["class"], geometry_type="Unknown", crs=case.crs)


def _stats_are_right(case: MapCase, folder: Path, context: str) -> None:
    with (folder / "out.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + len(case.shapes), context
    centre = "centre" in case.options
    usual = case.map.transform in ("usual", "south up", "turned", "oblong") and case.crs == "EPSG:2154"
    if not (centre and usual and case.map.is_plain and rows[1:]):
        return
    labels, pixel = case.map.labels, 0.5 * 0.5 / 10_000
    columns = {name: number for number, name in enumerate(rows[0])}
    for shape, row in zip(case.shapes, rows[1:], strict=True):
        if shape[0] not in ("box", "triangle", "ring", "two"):
            continue
        geometry = _SHAPES[shape[0]](*shape[1:])
        inside = rasterize([geometry], labels.shape, transform=case.map.affine).astype(bool)
        for number, map_class in enumerate(make_classes(case.map.classes)):
            name = next(
                (key for key in columns if key == map_class.name or key.startswith(f"{map_class.name} ")),
                None,
            )
            assert name is not None, context
            measured = float(row[columns[name]] or 0)
            expected = (labels[inside] == number).sum() * pixel
            # The ground is up to 0.1 % larger or smaller than in the plane; centres on borders may go either way.
            assert abs(measured - expected) <= 0.002 * expected + 3 * pixel, (
                f"{name} {measured} {expected}\n{context}"
            )


def _change_is_right(case: MapCase, folder: Path, context: str) -> None:
    with rasterio.open(folder / "out.tif") as dataset:
        changed = dataset.read(1)
        assert dataset.nodata == NODATA, context
    if case.map == case.other and case.map.is_plain:
        assert np.array_equal(changed == NODATA, case.map.labels == NODATA), context
        pairs = np.unique(np.stack([case.map.labels, changed]).reshape(2, -1), axis=1)
        assert len(pairs.T) == len(np.unique(pairs[0])) == len(np.unique(pairs[1])), context


def _clean_is_right(case: MapCase, folder: Path, context: str) -> None:
    with rasterio.open(folder / "out.tif") as dataset, rasterio.open(folder / "map.tif") as source:
        clean, labels = dataset.read(1), source.read(1)
        assert clean.shape == labels.shape, context
        assert dataset.transform == source.transform or source.crs is None, context
    if case.map.dtype == "uint8" and case.map.nodata == NODATA:
        assert np.array_equal(clean == NODATA, labels == NODATA), context
        assert set(np.unique(clean)) <= set(np.unique(labels)), context


def _draw_is_right(case: MapCase, folder: Path, context: str) -> None:
    assert read_info(folder / "out.gpkg")["features"] <= 30, context
    _, _, shapes, _ = read(folder / "out.gpkg")
    if case.map.is_plain:
        xs, ys = shapely.get_coordinates(shapely.from_wkb(shapes)).T
        columns, rows = ~case.map.affine @ np.stack([xs, ys])
        labels = case.map.labels[np.floor(rows).astype(int), np.floor(columns).astype(int)]
        assert (labels != NODATA).all(), context


def _assess_is_right(case: MapCase, folder: Path, context: str) -> None:
    if "r.json" in case.options:
        assert (folder / "r.json").read_text().rstrip().endswith("}"), context


_RIGHT = {
    "stats": _stats_are_right,
    "change": _change_is_right,
    "clean": _clean_is_right,
    "draw": _draw_is_right,
    "assess": _assess_is_right,
}
