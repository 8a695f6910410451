"""Maps as Cloud-Optimised GeoTIFF: whole, georeferenced, and none where writing fails."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.windows import Window
from rio_cogeo import cog_validate

from iic_geotools.classmap import cog
from iic_geotools.classmap.classes import NODATA, MapClass, distinct_colours
from iic_geotools.classmap.cog import assemble, mode_of_four
from iic_geotools.errors import OutputError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect

CLASSES = [MapClass(f"class <{i}> & é", colour) for i, colour in enumerate(distinct_colours(6))]
LAMBERT = CRS.from_epsg(2154)
TRANSFORM = Affine(0.2, 0.0, 770123.4000000001, 0.0, -0.2, 6279876.100000003)


def write_part(path: Path, pixels: np.ndarray) -> None:
    if (pixels == NODATA).all():
        path.touch()
        return
    profile = {"driver": "GTiff", "count": 1, "dtype": "uint8", "nodata": NODATA, "tiled": True}
    profile["transform"] = TRANSFORM
    height, width = pixels.shape
    with rasterio.open(path, "w", width=width, height=height, compress="deflate", **profile) as dst:
        dst.write(pixels, 1)


def cut(folder: Path, pixels: np.ndarray, size: int) -> list[tuple[Path, Rect]]:
    """Write parts of `size` x `size` pixels that make up `pixels`."""
    folder.mkdir(exist_ok=True)
    parts = []
    for y in range(0, pixels.shape[0], size):
        for x in range(0, pixels.shape[1], size):
            piece = pixels[y : y + size, x : x + size]
            path = folder / f"{y}-{x}.tif"
            write_part(path, piece)
            parts.append((path, Rect(x, y, piece.shape[1], piece.shape[0])))
    return parts


def patches(height: int, width: int, seed: int = 0, classes: int = 6) -> np.ndarray:
    """Labels in patches, about a third of them without data."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, classes, (height // 40 + 1, width // 40 + 1), dtype=np.uint8)
    coarse[rng.random(coarse.shape) < 0.3] = NODATA
    return coarse.repeat(40, 0).repeat(40, 1)[:height, :width]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 700), (700, 3), (512, 512), (1301, 1100)])
def test_map_is_a_valid_cog_with_the_pixels_of_its_parts(tmp_path: Path, height: int, width: int) -> None:
    pixels = patches(height, width)
    pixels[0, 0] = 1
    parts = cut(tmp_path / "parts", pixels, 256)
    out = tmp_path / "map.tif"
    grid = GeoBox(width, height, TRANSFORM, LAMBERT)
    assemble(parts, out, grid, classes=CLASSES, tags={"IIC_MODEL": 'a "b" <c>'})
    valid, errors, warnings = cog_validate(str(out), strict=True)
    assert valid, errors + warnings
    with rasterio.open(out) as dataset:
        np.testing.assert_array_equal(dataset.read(1), pixels)
        assert (dataset.nodata, dataset.dtypes[0]) == (255, "uint8")
        assert dataset.crs == LAMBERT
        assert tuple(dataset.transform) == tuple(TRANSFORM)
        assert dataset.tags()["IIC_MODEL"] == 'a "b" <c>'
        assert dataset.colormap(1)[0] == (0, 114, 178, 255)
        assert dataset.colormap(1)[NODATA][3] == 0
        assert bool(dataset.overviews(1)) == (max(height, width) > 512)
    assert names(tmp_path) == ["map.tif", "map.tif.aux.xml", "parts"]


def test_overviews_hold_the_most_common_class_and_ignore_nodata(tmp_path: Path) -> None:
    pixels = patches(1100, 1031)
    out = tmp_path / "map.tif"
    grid = GeoBox(1031, 1100, TRANSFORM, LAMBERT)
    assemble(cut(tmp_path / "parts", pixels, 512), out, grid, classes=CLASSES)
    with rasterio.open(out, overview_level=0) as dataset:
        overview = dataset.read(1)
    assert overview.shape == (550, 516)
    padded = np.pad(pixels, ((0, 0), (0, 1)), constant_values=NODATA)
    for y, x in np.random.default_rng(0).integers(0, (550, 516), (2000, 2)):
        square = padded[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].ravel()
        counts = np.bincount(square[square != NODATA], minlength=1)
        if counts.sum() == 0:
            assert overview[y, x] == NODATA
        else:
            assert counts[overview[y, x]] == counts.max()


def test_overviews_of_a_continuous_band_are_averages(tmp_path: Path) -> None:
    pixels = np.full((600, 600), 100, np.uint8)
    pixels[::2] = 103
    pixels[:2, :2] = [[NODATA, NODATA], [7, NODATA]]
    pixels[:2, 2:4] = NODATA
    out = tmp_path / "confidence.tif"
    assemble(cut(tmp_path / "parts", pixels, 512), out, GeoBox(600, 600, TRANSFORM, LAMBERT), classes=None)
    assert names(tmp_path) == ["confidence.tif", "parts"]
    with rasterio.open(out, overview_level=0) as dataset:
        assert dataset.colorinterp[0] == rasterio.enums.ColorInterp.gray
        assert dataset.read(1)[0, :3].tolist() == [7, NODATA, 102]


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        (CRS.from_epsg(4326), Affine(1 / 3e5, 0, 3.8765432109876543, 0, -1 / 3e5, 43.6)),
        (CRS.from_epsg(32631), Affine(0.3, 0.1, 500000.123456789, 0.1, -0.3, 4.8e6)),
        (CRS.from_epsg(32631), Affine(10, 0, 500000, 0, 10, 4.8e6)),
        (CRS.from_string("+proj=laea +lat_0=17.3 +lon_0=2.2 +ellps=bessel +units=us-ft"), TRANSFORM),
        (CRS.from_string("+proj=ob_tran +o_proj=longlat +o_lon_p=-162 +o_lat_p=39.25 +lon_0=180"), TRANSFORM),
        (None, TRANSFORM),
    ],
)
def test_georeference_is_kept_to_the_last_digit(tmp_path: Path, crs: CRS | None, transform: Affine) -> None:
    out = tmp_path / "map.tif"
    assemble(
        cut(tmp_path / "parts", patches(60, 70), 64), out, GeoBox(70, 60, transform, crs), classes=CLASSES
    )
    with rasterio.open(out) as dataset:
        assert dataset.crs == crs
        assert tuple(dataset.transform) == tuple(transform)
    assert cog_validate(str(out), strict=True)[0]


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_ground_control_points_are_kept(tmp_path: Path) -> None:
    points = [
        (0.0, 0.5, 3.1, 43.7),
        (59.25, 0.0, 3.1000001, 43.6),
        (60.0, 70.0, 3.2, 43.61),
        (1.0, 69.0, 3.3, 43.71),
    ]
    gcps = tuple(GroundControlPoint(*point, z=12.5) for point in points)
    out = tmp_path / "map.tif"
    grid = GeoBox(70, 60, Affine.identity(), None, gcps, CRS.from_epsg(4326))
    assemble(cut(tmp_path / "parts", patches(60, 70), 64), out, grid, classes=CLASSES)
    with rasterio.open(out) as dataset:
        assert not GeoBox.of(dataset).differences(grid)
        assert [(g.row, g.col, g.x, g.y) for g in dataset.gcps[0]] == points


@pytest.mark.gdal
def test_gdalinfo_shows_names_colours_and_the_attribute_table(
    tmp_path: Path, gdalinfo: Callable[[Path], str]
) -> None:
    out = tmp_path / "map.tif"
    grid = GeoBox(600, 600, TRANSFORM, LAMBERT)
    assemble(
        cut(tmp_path / "parts", patches(600, 600), 256), out, grid, classes=CLASSES, tags={"MODEL": "abc"}
    )
    output = gdalinfo(out)
    assert "    0: class <0> & é\n" in output
    assert "Color Table (RGB with 256 entries)\n    0: 0,114,178,255\n" in output
    assert '<GDALRasterAttributeTable tableType="thematic">' in output
    assert "<F>class &lt;5&gt; &amp; é</F>" in output
    assert "LAYOUT=COG" in output
    assert "MODEL=abc" in output
    assert "Overviews: 300x300" in output


def test_sparse_map_takes_the_room_of_its_data(tmp_path: Path) -> None:
    side = 60_000
    piece = patches(512, 512)
    spots = [(512 * 3, 512 * 100), (59_000, 59_488), (30_001, 777)]
    parts = []
    for number, (x, y) in enumerate(spots):
        write_part(tmp_path / f"part-{number}.tif", piece)
        parts.append((tmp_path / f"part-{number}.tif", Rect(x, y, 512, 512)))
    out = tmp_path / "map.tif"
    assemble(parts, out, GeoBox(side, side, TRANSFORM, LAMBERT), classes=CLASSES)
    assert out.stat().st_size < 1_000_000
    assert cog_validate(str(out), strict=True)[0]
    with rasterio.open(out) as dataset:
        for x, y in spots:
            np.testing.assert_array_equal(dataset.read(1, window=Window(x, y, 512, 512)), piece)
        assert dataset.overviews(1) == [2, 4, 8, 16, 32, 64, 128]
        smallest = dataset.read(1, out_shape=(469, 469))
        assert np.count_nonzero(smallest != NODATA) >= 3 * 9


def test_map_without_any_data(tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    parts = cut(tmp_path / "parts", np.full((700, 600), NODATA, np.uint8), 256)
    assemble(parts, out, GeoBox(600, 700, TRANSFORM, LAMBERT), classes=CLASSES)
    with rasterio.open(out) as dataset:
        assert (dataset.read(1) == NODATA).all()
    assert cog_validate(str(out), strict=True)[0]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"TILING_SCHEME": "GoogleMapsCompatible"}, "TILING_SCHEME"),
        ({"COMPRESS": "jpeg"}, "COMPRESS"),
        ({"blocksize": "100"}, "BLOCKSIZE"),
        ({"OVERVIEW_RESAMPLING": "CUBIC"}, "OVERVIEW_RESAMPLING"),
        ({"OVERVIEW_COUNT": "many"}, "OVERVIEW_COUNT"),
        ({"OVERVIEWS": "IGNORE"}, "OVERVIEWS"),
        ({"BLOCKSIZE": "²"}, "BLOCKSIZE"),
        ({"BLOCKSIZE": "1000000"}, "BLOCKSIZE"),
        ({"LEVEL": "9"}, "LEVEL applies to"),
        ({"COMPRESS": "zstd", "LEVEL": "99"}, "LEVEL=99"),
        ({"PREDICTOR": "banana"}, "PREDICTOR"),
        ({"BIGTIFF": "maybe"}, "BIGTIFF"),
        ({"NUM_THREADS": "x"}, "NUM_THREADS"),
        ({"SPARSE_OK": "perhaps"}, "SPARSE_OK"),
        ({"GEOTIFF_VERSION": "9"}, "GEOTIFF_VERSION"),
    ],
)
def test_wrong_creation_options_are_named(tmp_path: Path, options: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        assemble([], tmp_path / "map.tif", GeoBox(9, 9, TRANSFORM), classes=CLASSES, options=options)
    assert names(tmp_path) == []


def test_creation_options_are_used(tmp_path: Path) -> None:
    pixels = patches(900, 900)
    out = tmp_path / "map.tif"
    options = {"compress": "LZW", "BLOCKSIZE": "256", "OVERVIEW_COUNT": "1", "overview_resampling": "nearest"}
    grid = GeoBox(900, 900, TRANSFORM, LAMBERT)
    assemble(cut(tmp_path / "parts", pixels, 256), out, grid, classes=CLASSES, options=options)
    with rasterio.open(out) as dataset:
        assert dataset.compression == rasterio.enums.Compression.lzw
        assert dataset.block_shapes == [(256, 256)]
        assert dataset.overviews(1) == [2]
    with rasterio.open(out, overview_level=0) as dataset:
        np.testing.assert_array_equal(dataset.read(1), pixels[::2, ::2])


@pytest.mark.parametrize("options", [{"OVERVIEWS": "NONE"}, {"SPARSE_OK": "FALSE"}])
def test_overviews_and_holes_can_be_switched_off(tmp_path: Path, options: dict[str, str]) -> None:
    pixels = patches(900, 900)
    pixels[512:, 512:] = NODATA
    out = tmp_path / "map.tif"
    grid = GeoBox(900, 900, TRANSFORM, LAMBERT)
    assemble(cut(tmp_path / "parts", pixels, 256), out, grid, classes=CLASSES, options=options)
    with rasterio.open(out) as dataset:
        np.testing.assert_array_equal(dataset.read(1), pixels)
        assert bool(dataset.overviews(1)) == ("SPARSE_OK" in options)


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage"])
@pytest.mark.parametrize("options", [{}, {"OVERVIEWS": "NONE"}])
def test_a_damaged_part_fails_the_map(tmp_path: Path, damage: str, options: dict[str, str]) -> None:
    rng = np.random.default_rng(0)
    parts = cut(tmp_path / "parts", rng.integers(0, 6, (900, 900), dtype=np.uint8), 256)
    victim = parts[5][0]
    if damage == "missing":
        victim.unlink()
    else:
        whole = victim.read_bytes()
        victim.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"not a raster")
    with pytest.raises(OutputError):
        assemble(
            parts,
            tmp_path / "map.tif",
            GeoBox(900, 900, TRANSFORM, LAMBERT),
            classes=CLASSES,
            options=options,
        )
    assert names(tmp_path) == ["parts"]


def test_a_new_map_does_not_keep_the_old_sidecar(tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    parts = cut(tmp_path / "parts", patches(60, 60), 64)
    grid = GeoBox(60, 60, TRANSFORM, LAMBERT)
    assemble(parts, out, grid, classes=CLASSES)
    assemble(parts, out, grid, classes=None)
    assert names(tmp_path) == ["map.tif", "parts"]


def test_a_failure_keeps_the_old_map(tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    parts = cut(tmp_path / "parts", patches(60, 60), 64)
    grid = GeoBox(60, 60, TRANSFORM, LAMBERT)
    assemble(parts, out, grid, classes=CLASSES)
    before = {path.name: path.read_bytes() for path in (out, tmp_path / "map.tif.aux.xml")}
    parts[0][0].write_bytes(b"not a raster")
    with pytest.raises(OutputError):
        assemble(parts, out, grid, classes=CLASSES[:2])
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def assemble_with_a_limit(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    """Assemble the parts of a map while no file may grow beyond `limit` bytes, as on a full disk."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        import rasterio
        from affine import Affine
        from iic_geotools.geobox import GeoBox
        from iic_geotools.classmap.cog import assemble
        from iic_geotools.classmap.classes import MapClass
        from iic_geotools.errors import OutputError
        from iic_geotools.tiling import Rect

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        folder, limit = Path(sys.argv[1]), int(sys.argv[2])
        parts = []
        for path in sorted((folder / "parts").iterdir()):
            y, x = map(int, path.stem.split("-"))
            with rasterio.open(path) as part:
                parts.append((path, Rect(x, y, part.width, part.height)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        classes = [MapClass(str(i), "#102030") for i in range(6)]
        try:
            grid = GeoBox(1500, 1500, Affine(2, 0, 0, 0, -2, 0))
            assemble(parts, folder / "map.tif", grid, classes=classes)
        except OutputError as error:
            sys.exit(7)
    """
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), str(folder), str(limit)],
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("noisy")
    cut(folder / "parts", np.random.default_rng(0).integers(0, 6, (1500, 1500), dtype=np.uint8), 512)
    run = assemble_with_a_limit(folder, 1 << 30)
    assert run.returncode == 0, run.stderr
    size = (folder / "map.tif").stat().st_size
    for name in ("map.tif", "map.tif.aux.xml"):
        (folder / name).unlink()
    return folder, size


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.003, 0.2, 0.6, 0.9, 0.99, 0.9999])
def test_a_full_disk_is_an_error_and_leaves_nothing(noisy: tuple[Path, int], share: float) -> None:
    folder, size = noisy
    run = assemble_with_a_limit(folder, int(size * share))
    assert run.returncode == 7, run.stderr
    assert names(folder) == ["parts"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux shows them")
def test_few_parts_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each open part holds buffers: memory must not grow with their number."""
    parts = cut(tmp_path / "parts", patches(1400, 1400), 140)
    most_open = 0

    def count_open_parts(pixels: np.ndarray) -> np.ndarray:
        nonlocal most_open
        links = []
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # closed by another thread in between
                links.append(entry.readlink())
        most_open = max(most_open, sum(link.parent == tmp_path / "parts" for link in links))
        return mode_of_four(pixels)

    monkeypatch.setitem(cog._REDUCERS, "MODE", count_open_parts)
    grid = GeoBox(1400, 1400, TRANSFORM, LAMBERT)
    assemble(parts, tmp_path / "map.tif", grid, classes=CLASSES, options={"BLOCKSIZE": "128"})
    assert len(parts) == 100
    assert 1 < most_open <= cog.OPEN_PARTS
