"""A map that is nearly empty is written without GDAL's COG driver, and equals one that it wrote."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rio_cogeo import cog_validate

from iic_geotools.classmap import cog
from iic_geotools.classmap.classes import NODATA, MapClass, distinct_colours
from iic_geotools.classmap.cog import assemble, read_entries, tile_tables
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect

CLASSES = [MapClass(f"class {i}", colour) for i, colour in enumerate(distinct_colours(6))]
PLACE = Affine(0.2, 0.0, 770123.4, 0.0, -0.2, 6279876.1)
LAMBERT = CRS.from_epsg(2154)
TAGS = {"IIC_MODEL": "aerial", "TIFFTAG_SOFTWARE": "iic-edge", "IIC_WORK": "x" * 64}


def write_part(path: Path, seed: int, side: int = 256) -> Path:
    coarse = np.random.default_rng(seed).integers(0, 6, (side // 32, side // 32), dtype=np.uint8)
    pixels = coarse.repeat(32, 0).repeat(32, 1)
    pixels[:20, :50] = NODATA
    profile = {
        "driver": "GTiff",
        "width": side,
        "height": side,
        "count": 1,
        "dtype": "uint8",
        "nodata": NODATA,
    }
    with rasterio.open(path, "w", **profile, transform=PLACE) as dataset:
        dataset.write(pixels, 1)
    return path


WriteBoth = Callable[..., tuple[Path, Path]]


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteBoth:
    """A function that writes one map of a few parts twice: with GDAL's driver, and directly."""

    def write(
        grid: GeoBox, options: dict[str, str] | None = None, classes: object = CLASSES
    ) -> tuple[Path, Path]:
        rects = [Rect(512, 0, 256, 256), Rect(1280, 1024, 256, 256), Rect(1500, 1400, 256, 256)]
        parts = [(write_part(tmp_path / f"{seed}.tif", seed), rect) for seed, rect in enumerate(rects)]
        creation = {"BLOCKSIZE": "128", "BIGTIFF": "YES"} | (options or {})
        files = tmp_path / "driver.tif", tmp_path / "direct.tif"
        for file, blocks in zip(files, (10**9, 0), strict=True):
            monkeypatch.setattr(cog, "MANY_BLOCKS", blocks)
            monkeypatch.setattr(cog, "NEARLY_EMPTY", 2)
            assemble(parts, file, grid, classes=classes, tags=TAGS, options=creation)  # type: ignore[arg-type]
        return files

    return write


GRIDS = {
    "transform": GeoBox(2001, 1999, PLACE, LAMBERT),
    "rotated": GeoBox(2001, 1999, PLACE @ Affine.rotation(30), LAMBERT),
    "gcps": GeoBox(
        2001,
        1999,
        Affine.identity(),
        None,
        gcps=tuple(
            GroundControlPoint(r, c, 5.0 + c / 1e4, 45.0 - r / 1e4) for r in (0, 1999) for c in (0, 2001)
        ),
        gcps_crs=CRS.from_epsg(4326),
    ),
}


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("options", [{}, {"COMPRESS": "ZSTD", "LEVEL": "3"}, {"COMPRESS": "NONE"}])
def test_it_holds_what_the_driver_writes(both: WriteBoth, kind: str, options: dict[str, str]) -> None:
    driver, direct = both(GRIDS[kind], options)
    valid, errors, warnings = cog_validate(str(direct), strict=True)
    assert valid, errors + warnings
    with rasterio.open(driver) as a, rasterio.open(direct) as b:
        np.testing.assert_array_equal(a.read(1), b.read(1))
        assert a.profile == b.profile
        assert a.tags() == b.tags()
        assert a.tags(ns="IMAGE_STRUCTURE") == b.tags(ns="IMAGE_STRUCTURE")
        assert b.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert a.colormap(1) == b.colormap(1)
        assert a.overviews(1) == b.overviews(1)
        assert len(a.gcps[0]) == len(b.gcps[0])
        levels = len(a.overviews(1))
    for level in range(levels):
        with (
            rasterio.open(driver, overview_level=level) as a,
            rasterio.open(direct, overview_level=level) as b,
        ):
            np.testing.assert_array_equal(a.read(1), b.read(1))
    assert read_entries(driver).keys() == read_entries(direct).keys()
    for one, other in zip(tile_tables(driver), tile_tables(direct), strict=True):
        np.testing.assert_array_equal(one.counts, other.counts)


def test_each_tile_follows_its_size_and_precedes_its_last_bytes(both: WriteBoth) -> None:
    _, direct = both(GRIDS["transform"])
    content = direct.read_bytes()
    tables = tile_tables(direct)
    firsts = [int(table.offsets[table.counts > 0][0]) for table in tables]
    assert firsts == sorted(firsts, reverse=True)  # the smallest overview stands first
    for table in tables:
        for offset, count in zip(table.offsets.tolist(), table.counts.tolist(), strict=True):
            if count:
                assert int.from_bytes(content[offset - 4 : offset], "little") == count
                assert (
                    content[offset + count : offset + count + 4]
                    == content[offset + count - 4 : offset + count]
                )


def test_a_confidence_map(both: WriteBoth) -> None:
    driver, direct = both(GRIDS["transform"], classes=None)
    with rasterio.open(driver) as a, rasterio.open(direct) as b:
        assert a.profile == b.profile
        np.testing.assert_array_equal(a.read(1, out_shape=(500, 500)), b.read(1, out_shape=(500, 500)))


@pytest.mark.gdal
def test_gdal_s_own_tools_see_no_difference(both: WriteBoth) -> None:
    def info(path: Path) -> dict[str, object]:
        text = subprocess.run(
            ["gdalinfo", "-json", str(path)], check=True, capture_output=True, text=True
        ).stdout
        facts = json.loads(text)
        return {key: value for key, value in facts.items() if key not in ("description", "files")}

    driver, direct = both(GRIDS["transform"])
    assert info(driver) == info(direct)


def test_few_blocks_and_other_options_are_left_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cog, "write_sparse_cog", lambda *arguments: pytest.fail("not the driver"))
    parts = [(write_part(tmp_path / "part.tif", 0), Rect(0, 0, 256, 256))]
    assemble(parts, tmp_path / "small.tif", GRIDS["transform"], classes=CLASSES)
    monkeypatch.setattr(cog, "MANY_BLOCKS", 0)
    for number, options in enumerate(({"SPARSE_OK": "NO"}, {"BIGTIFF": "NO"}, {"PREDICTOR": "YES"})):
        assemble(parts, tmp_path / f"{number}.tif", GRIDS["transform"], classes=CLASSES, options=options)
