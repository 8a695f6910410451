"""Clean maps do not depend on tiles."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.crs import CRS
from rio_cogeo.cogeo import cog_validate
from support.maps import LAMBERT, TRANSFORM, make_classes, random_labels, read_band, write_map
from typer.testing import CliRunner

from iic_geotools.classmap.class_map import open_map
from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.cog import assemble
from iic_geotools.classmap.sidecars import style_path
from iic_geotools.cli.map import app
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.products import cleaning
from iic_geotools.products.cleaning import Cleaning, Majority, clean_map
from iic_geotools.products.sieve import Read, Sieve
from iic_geotools.tiling import Rect

CLASSES = make_classes(3)
TAGS = {"IIC_MODEL": "made up", "IIC_WORK": "0123"}


@pytest.fixture
def labels() -> np.ndarray:
    """Patches of 12 px, speckled, with holes, and nothing in one corner."""
    values = random_labels(200, 260, 3, patch=12)
    rng = np.random.default_rng(0)
    speckle = (rng.random(values.shape) < 0.1) & (values != NODATA)
    values[speckle] = rng.integers(0, 3, int(speckle.sum()))
    values[:100, :130] = NODATA
    return values


MakeMap = Callable[..., Path]


@pytest.fixture
def make_map(tmp_path: Path, labels: np.ndarray) -> MakeMap:
    def make(crs: CRS | None = LAMBERT, transform: Affine = TRANSFORM) -> Path:
        part = write_map(tmp_path / "part.tif", labels, None, TRANSFORM)
        grid = GeoBox(labels.shape[1], labels.shape[0], transform, crs)
        whole = Rect(0, 0, grid.width, grid.height)
        assemble([(part, whole)], tmp_path / "map.tif", grid, classes=CLASSES, tags=TAGS)
        part.unlink()
        return tmp_path / "map.tif"

    return make


def clean_in_memory(labels: np.ndarray, grid: GeoBox, sieve: float, majority: int) -> np.ndarray:
    whole = Rect(0, 0, grid.width, grid.height)
    if majority:
        smoothed = Majority(majority, whole)(lambda rect: labels[rect.slices], whole)
        labels = smoothed
    return Sieve(sieve, grid)(lambda rect: labels[rect.slices], whole) if sieve else labels


@pytest.mark.parametrize(("sieve", "majority"), [(0.0, 2), (10.0, 0), (6.0, 1)])
@pytest.mark.parametrize("tile", [64, 100, 1024])
def test_a_clean_map_is_that_of_the_whole_raster(
    make_map: MakeMap,
    labels: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sieve: float,
    majority: int,
    tile: int,
) -> None:
    monkeypatch.setattr(cleaning, "TILE", tile)
    path = make_map()
    clean_map(path, tmp_path / "clean.tif", sieve=sieve, majority=majority)
    with rasterio.open(path) as dataset:
        expected = clean_in_memory(labels, GeoBox.of(dataset), sieve, majority)
    cleaned = read_band(tmp_path / "clean.tif")
    np.testing.assert_array_equal(cleaned, expected)
    np.testing.assert_array_equal(cleaned == NODATA, labels == NODATA)
    assert (cleaned != labels).any()


def test_the_bytes_do_not_depend_on_tiles(
    make_map: MakeMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_map()
    contents = set()
    for tile in (48, 128, 512):
        monkeypatch.setattr(cleaning, "TILE", tile)
        clean_map(path, tmp_path / "clean.tif", sieve=10.0, majority=1, overwrite=True)
        contents.add((tmp_path / "clean.tif").read_bytes())
    assert len(contents) == 1


@pytest.mark.parametrize(
    ("crs", "transform"),
    [(LAMBERT, TRANSFORM), (CRS.from_epsg(4326), Affine(1e-5, 0, 3, 0, -1e-5, 60))],
)
def test_everything_else_about_the_map_is_kept(
    make_map: MakeMap, tmp_path: Path, crs: CRS, transform: Affine
) -> None:
    path, out = make_map(crs, transform), tmp_path / "clean.tif"
    cleaned = clean_map(path, out, sieve=6.0, majority=1, co={"COMPRESS": "ZSTD"})
    assert cleaned.pixels == 200 * 260
    assert "clean.tif: 0.05 Mpx cleaned" in cleaned.sentence()
    with open_map(path) as before, open_map(out) as after:
        assert after.grid == before.grid
        assert after.classes == before.classes == tuple(CLASSES)
        assert after.dataset.profile["compress"] == "zstd"
        assert after.dataset.colormap(1) == before.dataset.colormap(1)
        assert after.tags["IIC_MODEL"] == "made up"
        assert "IIC_WORK" not in after.tags, "another run must not take the map for its own"
        assert (after.tags["IIC_SIEVE"], after.tags["IIC_MAJORITY"]) == ("6 m2", "1 px")
    assert cog_validate(out)[0]
    names = {"map.tif", "map.tif.aux.xml", "clean.tif", "clean.tif.aux.xml", "clean.qml"}
    assert {entry.name for entry in tmp_path.iterdir()} == names


def test_tiles_without_data_are_not_read(
    make_map: MakeMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "TILE", 50)
    cores = []
    smooth = Majority.__call__

    def record(self: Majority, read: Read, core: Rect) -> np.ndarray:
        cores.append(core)
        return smooth(self, read, core)

    monkeypatch.setattr(Majority, "__call__", record)
    clean_map(make_map(), tmp_path / "clean.tif", majority=1)
    assert not any(core.col + core.width <= 130 and core.row + core.height <= 100 for core in cores)
    assert cores


def test_what_cannot_be_cleaned(make_map: MakeMap, tmp_path: Path) -> None:
    path, out = make_map(), tmp_path / "clean.tif"
    before = {entry.name for entry in tmp_path.iterdir()}
    for arguments, message in (
        ({}, "nothing to do: give `sieve`"),
        ({"sieve": -1.0}, "`sieve` must be 0 or more"),
        ({"sieve": float("nan")}, "`sieve` must be a finite number"),
        ({"sieve": float("inf")}, "`sieve` must be a finite number"),
        ({"majority": -1}, "`majority` must be 0 to 100"),
        ({"majority": 101}, "`majority` must be 0 to 100"),
        ({"majority": 1, "co": {"COMPRESS": "JPEG"}}, "COMPRESS=JPEG"),
    ):
        with pytest.raises(UsageError, match=message):
            clean_map(path, out, **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is an input"):
        clean_map(path, path, majority=1, overwrite=True)
    with pytest.raises(UsageError, match=r"must end in \.tif"):
        clean_map(path, tmp_path / "clean.png", majority=1)
    with pytest.raises(OutputError, match="no folder"):
        clean_map(path, tmp_path / "nowhere" / "clean.tif", majority=1)
    with pytest.raises(SceneError, match="There is no file"):
        clean_map(tmp_path / "nothing.tif", out, majority=1)
    assert {entry.name for entry in tmp_path.iterdir()} == before
    style_path(out).write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        clean_map(path, out, majority=1)


def test_a_map_without_a_reference_system(make_map: MakeMap, tmp_path: Path) -> None:
    path = make_map(None, Affine.identity())
    with pytest.raises(UsageError, match=r"`sieve` is in square metres, and this map has no reference"):
        clean_map(path, tmp_path / "clean.tif", sieve=3.0)
    clean_map(path, tmp_path / "clean.tif", majority=1)
    assert (read_band(tmp_path / "clean.tif") != read_band(path)).any()


def test_an_area_that_needs_too_much_memory_is_refused() -> None:
    grid = GeoBox(30_000, 30_000, TRANSFORM, LAMBERT)
    Cleaning(sieve=60_000).check(grid)
    with pytest.raises(
        UsageError, match=r"`sieve` of 1e\+06 square metres is 4e\+06 pixels .* 250,000 are the most"
    ):
        Cleaning(sieve=1e6).check(grid)
    Cleaning(sieve=1e6).check(GeoBox(4000, 4000, TRANSFORM, LAMBERT))


def test_rasters_that_are_not_maps(tmp_path: Path) -> None:
    bare = write_map(tmp_path / "confidence.tif", random_labels(30, 30, 3))
    with pytest.raises(SceneError, match="neither names of classes nor a colour table"):
        clean_map(bare, tmp_path / "clean.tif", majority=1)
    profile = {"driver": "GTiff", "width": 20, "height": 20, "crs": LAMBERT, "transform": TRANSFORM}
    for count, dtype in ((3, "uint8"), (1, "uint16")):
        with rasterio.open(tmp_path / "other.tif", "w", **profile, count=count, dtype=dtype):
            pass
        with pytest.raises(SceneError, match="a map has one of uint8"):
            clean_map(tmp_path / "other.tif", tmp_path / "clean.tif", majority=1)


def test_a_failed_run_leaves_nothing(
    make_map: MakeMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_map()
    before = {entry.name for entry in tmp_path.iterdir()}

    def fail(*arguments: object) -> None:
        raise OutputError("The disk is full.")

    monkeypatch.setattr(cleaning._TileFiles, "write", fail)
    with pytest.raises(OutputError, match="disk is full"):
        clean_map(path, tmp_path / "clean.tif", majority=1)
    assert {entry.name for entry in tmp_path.iterdir()} == before


def test_two_ways_of_cleaning_have_two_names() -> None:
    ways = [Cleaning(), Cleaning(sieve=3.0), Cleaning(sieve=3.0, majority=1), Cleaning(majority=1)]
    ways.append(Cleaning(sieve=3.0, keep_islands=False))
    assert len({way.digest for way in ways}) == len(ways)
    assert [bool(way) for way in ways] == [False, True, True, True, True]


def test_the_command(make_map: MakeMap, tmp_path: Path) -> None:
    path, out = make_map(), tmp_path / "clean.tif"

    def run(*arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["clean", *map(str, (path, out, *arguments))])
        return result.exit_code, result.stdout, result.stderr

    code, _, errors = run()
    assert (code, errors) == (2, "Error: There is nothing to do: give --sieve, --majority or both.\n")
    code, _, errors = run("--sieve", -4)
    assert (code, errors) == (2, "Error: --sieve must be 0 or more square metres, not -4.\n")
    code, lines, _ = run("--sieve", 10, "--majority", 1, "--co", "compress=zstd", "--progress-json")
    assert code == 0
    reports = [json.loads(line) for line in lines.splitlines()]
    assert reports[-1]["stage"] == "clean"
    assert reports[-1]["done"] == reports[-1]["total"]
    first = out.read_bytes()
    code, _, errors = run("--sieve", 10)
    assert code == 1
    assert "exists" in errors
    assert "--overwrite" in errors
    assert run("--sieve", 10, "--majority", 1, "--co", "compress=zstd", "--overwrite", "--quiet") == (
        0,
        "",
        "",
    )
    assert out.read_bytes() == first


def test_values_without_a_class_and_legends_that_are_too_long(tmp_path: Path, labels: np.ndarray) -> None:
    """The same reading function as that of change, zones and assessment."""
    labels[150, 150] = 7
    path = write_map(tmp_path / "map.tif", labels, classes=CLASSES)
    with pytest.raises(SceneError, match="the value 7, and its legend names 3"):
        clean_map(path, tmp_path / "clean.tif", majority=1)
    names = "".join(f"<Category>c{number}</Category>" for number in range(256))
    sidecar = f'<PAMDataset><PAMRasterBand band="1"><CategoryNames>{names}</CategoryNames></PAMRasterBand></PAMDataset>'
    (tmp_path / "map.tif.aux.xml").write_text(sidecar)
    with pytest.raises(SceneError, match="names more than 254 classes"):
        clean_map(path, tmp_path / "clean.tif", majority=1)
    assert {file.name for file in tmp_path.iterdir()} == {"map.tif", "map.tif.aux.xml"}
