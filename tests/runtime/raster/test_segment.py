"""Scene to georeferenced map."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rasterio.control import GroundControlPoint
from rasterio.rpc import RPC
from rasterio.transform import from_origin
from rio_cogeo import cog_validate
from support.maps import read_band
from support.scenes import landscape
from support.tiny_onnx import make_model

from iic_geotools.errors import AssumptionWarning
from iic_geotools.scene.info import describe
from iic_geotools.scene.radiometry import Rescale
from iic_geotools.tiling import Rect
from iic_runtime import Segmenter, segment_raster

MakeScene = Callable[..., Path]


def whole_image(model: Path, values: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
    return Segmenter(model, device="cpu", tile=100_000)(values, valid).labels


def test_the_map_is_the_whole_image_run(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(301, 411)
    out = tmp_path / "map.tif"
    summary = segment_raster(make_scene(values), out, model, tile=64, device="cpu")
    assert np.array_equal(read_band(out), whole_image(model, values))
    assert len(np.unique(read_band(out))) > 1
    assert summary.provider == "CPUExecutionProvider"
    assert summary.pixels == 301 * 411
    assert summary.tiles_run == 5 * 7
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "map.qml",
        "map.tif",
        "map.tif.aux.xml",
        "model.onnx",
        "scene.tif",
    ]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    height=st.integers(1, 130),
    width=st.integers(1, 130),
    tile=st.sampled_from([17, 32, 1024]),
    batch=st.sampled_from([1, 4]),
    threads=st.sampled_from([1, 2]),
    blocks=st.sampled_from([{}, {"tiled": True, "blockxsize": 32, "blockysize": 48}]),
)
def test_any_tiling_gives_the_same_map(
    make_scene: MakeScene,
    model: Path,
    tmp_path: Path,
    height: int,
    width: int,
    tile: int,
    batch: int,
    threads: int,
    blocks: dict[str, object],
) -> None:
    values = landscape(height, width, seed=height)
    out = tmp_path / "map.tif"
    scene = make_scene(values, **blocks)
    segment_raster(scene, out, model, tile=tile, batch=batch, threads=threads, device="cpu", overwrite=True)
    assert np.array_equal(read_band(out), whole_image(model, values))


def test_what_the_map_is(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene, out = make_scene(landscape(700, 1100)), tmp_path / "map.tif"
    segment_raster(scene, out, model, device="cpu")
    valid, errors, warnings = cog_validate(out, strict=True, quiet=True)
    assert valid, (errors, warnings)
    with rasterio.open(scene) as a, rasterio.open(out) as b:
        assert (a.width, a.height, a.crs, a.transform) == (b.width, b.height, b.crs, b.transform)
        assert b.dtypes == ("uint8",)
        assert b.nodata == 255
        assert b.overviews(1)
        assert b.colormap(1)[0] == (0, 114, 178, 255)
        assert b.colormap(1)[255][3] == 0
        tags = b.tags()
    assert tags["IIC_MODEL"] == "tiny"
    assert len(tags["IIC_MODEL_SHA256"]) == 64
    assert tags["TIFFTAG_SOFTWARE"].startswith("iic-edge ")


@pytest.mark.gdal
def test_gdalinfo_shows_the_classes(
    make_scene: MakeScene, model: Path, tmp_path: Path, gdalinfo: Callable[[Path], str]
) -> None:
    out = tmp_path / "map.tif"
    segment_raster(make_scene(landscape(60, 80)), out, model, device="cpu")
    output = gdalinfo(out)
    assert "cluster 0" in output
    assert "GDALRasterAttributeTable" in output
    assert "Color Table" in output
    assert "LAYOUT=COG" in output


@pytest.mark.parametrize("kind", ["nodata", "mask", "alpha", "nan"])
def test_pixels_without_data_are_nodata(make_scene: MakeScene, tmp_path: Path, kind: str) -> None:
    values = landscape(150, 170)
    valid = np.ones((150, 170), bool)
    valid[30:100, 60:170] = False
    dtype = "float32" if kind == "nan" else "uint8"
    model = tmp_path / "model.onnx"
    model.write_bytes(make_model(dtype=dtype, scale=1 / 255))
    values = values.astype(dtype)
    if kind == "nan":
        values[:, ~valid] = np.nan
        scene = make_scene(values)
    elif kind == "nodata":
        values[:, ~valid] = 0
        scene = make_scene(values, nodata=0)
    elif kind == "mask":
        scene = make_scene(values)
        with rasterio.open(scene, "r+") as dataset:
            dataset.write_mask(valid)
    else:
        alpha = np.where(valid, 255, 0).astype(np.uint8)
        names = ("red", "green", "blue", "nir", "alpha")
        scene = make_scene(np.concatenate([values, alpha[None]]), descriptions=names)
        with rasterio.open(scene, "r+") as dataset:
            dataset.colorinterp = [*dataset.colorinterp[:4], rasterio.enums.ColorInterp.alpha]
    out, sure = tmp_path / "map.tif", tmp_path / "confidence.tif"
    summary = segment_raster(scene, out, model, tile=32, device="cpu", confidence=sure)
    expected = whole_image(model, np.nan_to_num(values), valid)
    assert np.array_equal(read_band(out), expected)
    assert (read_band(out)[~valid] == 255).all()
    assert (read_band(out)[valid] < 4).all()
    assert summary.tiles_without_data > 0
    assert np.array_equal(read_band(sure) == 255, ~valid)


def test_confidence_is_the_probability(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(90, 70)
    out, sure = tmp_path / "map.tif", tmp_path / "confidence.tif"
    segment_raster(make_scene(values), out, model, tile=32, device="cpu", confidence=sure)
    expected = Segmenter(model, device="cpu", tile=4096)(values).confidence
    assert np.array_equal(read_band(sure), np.minimum(expected, 254))
    assert cog_validate(sure, strict=True, quiet=True)[0]


def test_bounds_cut_the_map_without_changing_it(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(200, 300)
    scene, out = make_scene(values), tmp_path / "map.tif"
    bounds = (500000 + 0.5 * 101.2, 5400000 - 0.5 * 150, 500000 + 0.5 * 201, 5400000 - 0.5 * 77)
    segment_raster(scene, out, model, tile=40, device="cpu", bounds=bounds)
    assert np.array_equal(read_band(out), whole_image(model, values)[77:150, 101:201])
    with rasterio.open(out) as dataset:
        assert dataset.transform == from_origin(500000 + 0.5 * 101, 5400000 - 0.5 * 77, 0.5, 0.5)


def test_bands_in_another_order(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(60, 70)
    out = tmp_path / "map.tif"
    named = make_scene(values[::-1], "named.tif", descriptions=("NIR", "Blue", "Green", "Red"))
    segment_raster(named, out, model, device="cpu")
    assert np.array_equal(read_band(out), whole_image(model, values))
    unnamed = make_scene(values[[2, 1, 0, 3]], "unnamed.tif", descriptions=None)
    segment_raster(unnamed, out, model, device="cpu", bands=["3", "2", "1", "4"], overwrite=True)
    assert np.array_equal(read_band(out), whole_image(model, values))


def test_uint16_is_mapped_with_a_sentence(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(60, 70)
    scene, out = make_scene(values.astype(np.uint16) * 20), tmp_path / "map.tif"
    with pytest.warns(
        AssumptionWarning,
        match=r"is uint16, and the model takes 8 bits: values are scaled so that \d+, their 99th percentile",
    ):
        segment_raster(scene, out, model, device="cpu")
    bright = 20.0 * np.percentile(values[:3], 99, method="inverted_cdf")
    function = Rescale(((0.0, bright),) * 4, ((0.0, 235.0),) * 4)
    assert np.array_equal(
        read_band(out), whole_image(model, function.apply(values.astype(np.uint16) * 20, "uint8"))
    )
    segment_raster(scene, out, model, device="cpu", rescale="0,5100", overwrite=True)
    assert np.array_equal(read_band(out), whole_image(model, values))
    segment_raster(scene, out, model, device="cpu", rescale="auto", overwrite=True)
    assert len(np.unique(read_band(out))) > 1


def test_a_model_for_uint16_takes_uint16(make_scene: MakeScene, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(make_model(dtype="uint16"))
    values = landscape(60, 70).astype(np.uint16) * 40
    segment_raster(make_scene(values), tmp_path / "map.tif", model, device="cpu", tile=32)
    assert np.array_equal(read_band(tmp_path / "map.tif"), whole_image(model, values))


@pytest.mark.parametrize(
    "placed",
    [
        {"crs": None, "transform": Affine.identity()},
        {"transform": Affine.translation(500000, 5400000) @ Affine.rotation(30) @ Affine.scale(0.5, -0.5)},
        {"crs": "EPSG:4326", "transform": from_origin(3.123456789012345, 45.1, 1 / 3e5, 1 / 3e5)},
        {
            "transform": Affine(
                0.6000000000000129, 0.0, 596823.6000000045, 0.0, -0.6000000000000129, 4399952.9
            )
        },
    ],
)
def test_every_georeference_is_kept(
    make_scene: MakeScene, model: Path, tmp_path: Path, placed: dict[str, object]
) -> None:
    scene, out = make_scene(landscape(50, 60), **placed), tmp_path / "map.tif"
    segment_raster(scene, out, model, device="cpu")
    with rasterio.open(scene) as a, rasterio.open(out) as b:
        assert a.crs == b.crs
        assert a.transform == b.transform


def test_ground_control_points_are_kept(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene, out = make_scene(landscape(50, 60), crs=None, transform=None), tmp_path / "map.tif"
    points = [GroundControlPoint(r, c, 3 + c / 1e4, 45 - r / 1e4) for r in (0, 50) for c in (0, 60)]
    with rasterio.open(scene, "r+") as dataset:
        dataset.gcps = (points, rasterio.CRS.from_epsg(4326))
    segment_raster(scene, out, model, device="cpu")
    with rasterio.open(out) as dataset:
        kept, crs = dataset.gcps
    assert crs.to_epsg() == 4326
    assert [(g.row, g.col, g.x, g.y) for g in kept] == [(g.row, g.col, g.x, g.y) for g in points]


def test_rational_polynomials_are_kept_and_cut(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    line = [0.0, 0.0, 1.0, *[0.0] * 17]
    one = [1.0, *[0.0] * 19]
    offsets = {"line_off": 20.0, "samp_off": 25.0, "lat_off": 45.0, "long_off": 5.0, "height_off": 100.0}
    scales = {
        "line_scale": 20.0,
        "samp_scale": 25.0,
        "lat_scale": 0.1,
        "long_scale": 0.1,
        "height_scale": 500.0,
    }
    rpcs = RPC(
        **offsets,
        **scales,
        line_num_coeff=line,
        line_den_coeff=one,
        samp_num_coeff=line[::-1],
        samp_den_coeff=one,
    )
    scene = make_scene(landscape(40, 50), crs=None, transform=Affine.identity(), rpcs=rpcs)
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu")
    with rasterio.open(tmp_path / "map.tif") as dataset:
        assert dataset.rpcs.line_off == 20.0
        assert dataset.rpcs.samp_num_coeff == line[::-1]
    grid = describe(str(scene)).grid.crop(Rect(10, 5, 20, 20))
    assert grid.rpcs is not None
    assert (grid.rpcs.line_off, grid.rpcs.samp_off) == (15.0, 15.0)


@pytest.mark.parametrize("placed", [True, False])
def test_what_a_geotiff_cannot_hold_is_said(
    make_scene: MakeScene, model: Path, tmp_path: Path, placed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = make_scene(landscape(40, 50), crs=None, transform=Affine.identity())
    points = "".join(
        f'<GCP Id="{row}-{col}" Pixel="{col}" Line="{row}" X="{5 + col / 1000}" Y="{45 - row / 1000}" Z="0"/>'
        for row in (0, 40)
        for col in (0, 50)
    )
    bands = "".join(
        f'<VRTRasterBand dataType="Byte" band="{band}"><SimpleSource><SourceFilename>{source}</SourceFilename>'
        f"<SourceBand>{band}</SourceBand></SimpleSource></VRTRasterBand>"
        for band in range(1, 5)
    )
    transform = "<GeoTransform>500000,1,0,5000000,0,-1</GeoTransform>" if placed else ""
    scene = tmp_path / "both.vrt"
    scene.write_text(
        f'<VRTDataset rasterXSize="50" rasterYSize="40"><SRS>EPSG:32631</SRS>{transform}'
        f'<GCPList Projection="EPSG:4326">{points}</GCPList>{bands}</VRTDataset>'
    )
    segment_raster(scene, tmp_path / "map.tif", model, bands=["1", "2", "3", "4"], device="cpu")
    with rasterio.open(tmp_path / "map.tif") as dataset:
        if placed:
            assert dataset.crs.to_epsg() == 32631
            assert dataset.transform == from_origin(500000, 5000000, 1, 1)
        else:
            assert len(dataset.gcps[0]) == 4
    lost = "ground control points" if placed else "CRS"
    assert f"The map could not keep the {lost} of {scene}" in caplog.text


def test_a_scene_in_a_zip(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    from zipfile import ZipFile

    values = landscape(50, 60)
    with ZipFile(tmp_path / "scene.zip", "w") as archive:
        archive.write(make_scene(values), "inner.tif")
    segment_raster(f"zip://{tmp_path}/scene.zip!inner.tif", tmp_path / "map.tif", model, device="cpu")
    assert np.array_equal(read_band(tmp_path / "map.tif"), whole_image(model, values))


def test_creation_options(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    segment_raster(
        make_scene(landscape(300, 300)), out, model, device="cpu", co={"COMPRESS": "ZSTD", "BLOCKSIZE": "256"}
    )
    with rasterio.open(out) as dataset:
        assert dataset.profile["compress"] == "zstd"
        assert dataset.block_shapes == [(256, 256)]
