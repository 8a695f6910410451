"""Odd scenes and options, and what must hold for each of them, whatever it is.

Odd models are in `hostile_models`, odd labels in `hostile_labels`.

Used by tests/hostile, a few examples at a time, and by benchmarks/soak.py for as long as one likes.
"""

import math
import shutil
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
from affine import Affine
from hypothesis import strategies as st
from rasterio.enums import ColorInterp
from typer.testing import CliRunner, Result

from iic_geotools.classmap.classes import NODATA
from iic_runtime.cli.segment_raster import app
from support.tiny_onnx import make_model

CLASSES = 4
DTYPES = ("uint8", "uint16", "int16", "float32", "float64", "int8", "uint32", "int32")
TRANSFORMS = {
    "north up": Affine(0.5, 0, 500000, 0, -0.5, 5400000),
    "turned": Affine(0.3, 0.4, 500000, 0.4, -0.3, 5400000),
    "south up": Affine(2.0, 0, 500000, 0, 2.0, 5400000),
    "oblong": Affine(0.7, 0, -3, 0, -1.9, 7),
    "degrees": Affine(1e-5, 0, 5, 0, -1e-5, 45),
    "singular": Affine(1, 1, 0, 1, 1, 0),
    "huge": Affine(1e40, 0, 0, 0, -1e40, 0),
    "none": Affine.identity(),
    "zeros": Affine(0, 0, 0, 0, 0, 0),
    "not a number": Affine(math.nan, 0, 0, 0, -1, 0),
    "infinite": Affine(math.inf, 0, 0, 0, -1, 0),
    "beyond the pole": Affine(1e6, 0, -2e7, 0, -1e7, 1e8),
}
LOCAL = 'LOCAL_CS["site",UNIT["metre",1]]'
CRSS = ("EPSG:32631", "EPSG:4326", "EPSG:3857", "EPSG:2154", "EPSG:4978", "EPSG:4326+5773", LOCAL, None)
# Options that most scenes are refused with, or that change what holds for the map.
RARE = ("--reflectance", "--nodata", "--min-area", "--aoi")
NAMES = (
    ("red", "green", "blue", "nir"),
    ("R", "G", "B", "Near-infrared"),
    ("", "", "", ""),
    ("red",) * 4,
    ("[/x]", "\x1b[2J", "=1+1", "n" * 5000),
)
CONTAINERS = ("plain", "plain", "plain", "zip", "vrt", "nested vrt")


@dataclass(frozen=True)
class OddScene:
    """What a scene is made from."""

    height: int
    width: int
    bands: int
    dtype: str
    nodata: float | None
    mask: str
    transform: str
    crs: str | None
    names: tuple[str, ...]
    not_finite: bool
    empty: bool
    seed: int
    container: str = "plain"

    def put(self, folder: Path) -> tuple[str, np.ndarray]:
        """Write the scene into a folder; return its name, and which pixels hold data if bands 1 to 4 are read."""
        path = folder / "scene.tif"
        valid = self.write(path)
        container = "plain" if self.mask == "bands" and "vrt" in self.container else self.container
        if container == "zip":
            with zipfile.ZipFile(folder / "scene.zip", "w") as archive:
                for file in sorted(folder.glob("scene.tif*")):
                    archive.write(file, file.name)
            return f"zip://{folder}/scene.zip!scene.tif", valid
        for level in range({"plain": 0, "vrt": 1, "nested vrt": 2}[container]):
            outer = folder / f"scene{level}.vrt"
            rasterio.shutil.copy(path, outer, driver="VRT")
            path = outer
        return str(path), valid

    def write(self, path: Path) -> np.ndarray:
        """Write the scene as a GeoTIFF, and return which of its pixels hold data."""
        rng = np.random.default_rng(self.seed)
        shape = (self.bands, self.height, self.width)
        values = rng.integers(1, 120, shape).astype(self.dtype)  # complex ones too
        holes = rng.random(shape[1:]) < 0.3
        if self.empty:
            holes[:] = True
        if self.nodata is not None:
            values[:, holes] = np.array(self.nodata).astype(self.dtype)
        if self.not_finite and np.dtype(self.dtype).kind == "f":
            values[rng.random(shape) < 0.05] = np.nan
        masks = np.where(rng.random(shape) < 0.2, 0, 255).astype(np.uint8)
        if self.mask == "alpha":
            values[-1] = masks[0] if self.dtype != "int8" else masks[0] // 255
        profile: dict[str, Any] = {"driver": "GTiff", "photometric": "MINISBLACK", "crs": self.crs}
        size = {"width": self.width, "height": self.height}
        with rasterio.open(
            path,
            "w",
            **profile,
            **size,
            count=self.bands,
            dtype=self.dtype,
            nodata=self.nodata,
            transform=TRANSFORMS[self.transform],
        ) as dataset:
            dataset.write(values)
            dataset.descriptions = [*self.names[: self.bands], *["more"] * (self.bands - 4)]
        if self.mask == "alpha":
            with rasterio.open(path, "r+") as dataset:
                dataset.colorinterp = [ColorInterp.undefined] * (self.bands - 1) + [ColorInterp.alpha]
        if self.mask in ("dataset", "bands"):
            count = 1 if self.mask == "dataset" else self.bands
            with rasterio.open(
                f"{path}.msk", "w", driver="GTiff", **size, count=count, dtype="uint8"
            ) as dataset:
                dataset.write(masks[:count])
                flag = "2" if self.mask == "dataset" else "0"
                dataset.update_tags(**{f"INTERNAL_MASK_FLAGS_{band}": flag for band in range(1, count + 1)})
        return self._valid(values, masks)

    def _valid(self, values: np.ndarray, masks: np.ndarray) -> np.ndarray:
        read = values[:4]
        holes = np.zeros(values.shape[1:], bool)
        if self.nodata is not None and not np.isnan(self.nodata):
            holes |= (read == np.array(self.nodata).astype(self.dtype)).all(0)
        if np.dtype(self.dtype).kind == "f":
            holes |= ~np.isfinite(read).all(0)
        if self.mask == "dataset":
            holes |= masks[0] == 0
        elif self.mask == "bands":
            holes |= (masks[:4] == 0).any(0)
        elif self.mask == "alpha" and self.bands > 4:  # else the alpha band is read as infrared
            holes |= values[-1] == 0
        return ~holes


@dataclass(frozen=True)
class Case:
    """A scene and the options that it is mapped with."""

    scene: OddScene
    options: tuple[str, ...] = field(default=())


def _nodata(dtype: str) -> st.SearchStrategy[float | None]:
    if np.dtype(dtype).kind == "f":
        return st.sampled_from([None, 0.0, -9999.0, float("nan")])
    if np.dtype(dtype).kind == "c":
        return st.none()
    limits = np.iinfo(dtype)
    return st.sampled_from([None, 0.0, float(limits.max), float(limits.min)])


@st.composite
def odd_scenes(draw: st.DrawFn) -> OddScene:
    """Scenes of any size, type, mask, nodata, transform, CRS and band names."""
    dtype = draw(st.sampled_from([*DTYPES, *DTYPES, "complex64"]))
    return OddScene(
        height=draw(st.integers(1, 70)),
        width=draw(st.integers(1, 70)),
        bands=draw(st.sampled_from([3, 4, 4, 4, 5, 6])),
        dtype=dtype,
        nodata=draw(_nodata(dtype)),
        mask=draw(st.sampled_from(["none", "none", "dataset", "bands", "alpha"])),
        transform=draw(st.sampled_from([*TRANSFORMS, *["north up"] * 12])),
        crs=draw(st.sampled_from(CRSS)),
        names=draw(st.sampled_from(NAMES)),
        not_finite=draw(st.booleans()),
        empty=draw(st.integers(0, 9)) == 0,
        seed=draw(st.integers(0, 2**16)),
        container=draw(st.sampled_from(CONTAINERS)),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Odd scenes with odd options."""
    options: list[str] = []
    # Right values, and now and then a wrong one: a case with a wrong option says nothing about its scene.
    for name, right, wrong in (
        ("--rescale", ("auto", "auto", "0,200"), ("off", "5,5", "x", "nan,1")),
        ("--tile", ("16", "33", "512", "99999999"), ("0", "-5")),
        ("--batch", ("1", "3"), ("0", str(10**12))),
        ("--bounds", ("-1e308 -1e308 1e308 1e308",), (SMALL_BOUNDS, "nan 0 1 1", "1 2 3")),
        ("--preview", ("preview.png",), ("preview.gif",)),
        ("--web", ("page.html",), ("page.txt",)),
        ("--stats", ("stats.csv", "stats.json"), ("stats.txt",)),
        ("--confidence", ("confidence.tif",), ("map.tif",)),
        ("--min-confidence", ("0.3", "0.6", "1"), ("nan", "2", "-1", "")),
        ("--nodata", ("7", "-9999"), ("x", "")),
        ("--min-area", ("0",), ("5", "nan", "-1")),
        ("--aoi", ("aoi.geojson",), ("gone.gpkg", "scene.tif")),
        ("--reflectance", ("0.0001,0",), ("nan,1", "1", "0,0")),
        ("--majority", ("1", "3"), ("-1", "101", "x")),
        ("--sieve", ("3", "20", "1e6"), ("-1", "nan", "inf")),
        ("--bands", ("1,2,3,4",) * 3, ("1,2,3", "0,1,2,3", "red,green,blue,x")),
    ):
        usual = name in ("--rescale", "--bands")
        if draw(st.integers(0, 11)) >= (3 if usual else 11 if name in RARE else 9):
            options += [name, draw(st.sampled_from(wrong if draw(st.integers(0, 29)) == 0 else right))]
    if draw(st.integers(0, 5)) == 0:
        options.append("--match-gsd")
    if draw(st.integers(0, 2)) == 0 and "--min-confidence" in options:
        options.append("--unsure-class")
    if draw(st.integers(0, 5)) == 0:
        options += ["--polygons", "polygons.gpkg"]
        options += draw(
            st.sampled_from([[], ["--min-area", "20"], ["--simplify", "3"], ["--simplify", "1e9"]])
        )
    return Case(draw(odd_scenes()), tuple(options))


def check_case(case: Case, folder: Path) -> int:
    """Map a scene, check what must hold, and return the exit code.

    Raises:
        AssertionError: It does not hold.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model, out = folder / "model.onnx", folder / "map.tif"
    model.write_bytes(MODEL)
    name, valid = case.scene.put(folder)
    (folder / "aoi.geojson").write_text(AOI)
    before = {entry.name for entry in folder.iterdir()}
    options = [
        str(folder / option) if "." in option and option[-1].isalpha() else option for option in case.options
    ]
    common = ["--model", str(model), "--device", "cpu", "--threads", "1", "-q"]
    result = CliRunner().invoke(app, [name, str(out), *common, *options])
    context = f"{case}\n{result.output}"
    check_result(result, folder, before, context)
    if not result.exit_code:
        _check_map(case, out, name, valid, context)
    return int(result.exit_code)


def check_result(result: Result, folder: Path, before: set[str], context: str) -> None:
    """A command that fails says one sentence and leaves nothing; one that succeeds leaves nothing half-written.

    Raises:
        AssertionError: It does not.
    """
    lines = result.output.splitlines()
    after = {entry.name for entry in folder.iterdir()}
    assert result.exit_code in (0, 1, 2), context
    assert "Traceback" not in result.output, context
    assert "Unexpected error" not in result.output, context
    assert "Warning: " not in result.output, context
    assert "\x1b" not in result.output, context
    if result.exit_code:
        assert [line.startswith("Error: ") for line in lines].count(True) == 1, context
        assert lines[-1].startswith("Error: "), context
        assert after == before, f"{after - before} is left\n{context}"
    else:
        assert not any(name.endswith(".parts") or name.startswith(".") for name in after), context


def _check_map(case: Case, out: Path, scene: str, valid: np.ndarray, context: str) -> None:
    with rasterio.open(out) as mapped, rasterio.open(scene) as source:
        labels = mapped.read(1)
        assert mapped.nodata == NODATA, context
        cut = bool({"--aoi", SMALL_BOUNDS} & {*case.options})
        if not cut:
            assert mapped.shape == source.shape, context
        if "could not keep the CRS" not in context:
            assert mapped.crs == source.crs, context
        if source.crs is not None and not cut:
            assert mapped.transform.almost_equals(source.transform, 1e-9), context
    unsure = "--min-confidence" in case.options
    if (
        not cut
        and "--nodata" not in case.options
        and ("--bands" not in case.options or "1,2,3,4" in case.options)
    ):
        data = labels != NODATA
        assert np.array_equal(data, valid) if not unsure else not (data & ~valid).any(), context
    assert (labels[labels != NODATA] < CLASSES + ("--unsure-class" in case.options)).all(), context


SMALL_BOUNDS = "0 0 1 1"
"""Bounds that lie outside of most scenes, and cut a piece out of the others."""
# A triangle that all scenes north of it touch, and many others do not.
AOI = (
    '{"type":"FeatureCollection","crs":{"type":"name","properties":{"name":"urn:ogc:def:crs:EPSG::32631"}},"features":'
    '[{"type":"Feature","properties":{},"geometry":{"type":"Polygon","coordinates":[[[499990,5399990],[500030,5399990],'
    "[500000,5400030],[499990,5399990]]]}}]}"
)
MODEL = make_model(classes=CLASSES, gsd=1.0)
