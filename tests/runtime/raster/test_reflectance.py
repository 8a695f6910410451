"""Models that take reflectance, and scenes with values of every kind."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from support.maps import read_band
from support.scenes import landscape
from support.tiny_onnx import make_model
from typer.testing import CliRunner

from iic_geotools.errors import AssumptionWarning, UsageError
from iic_runtime import Segmenter, segment_raster, segment_rasters
from iic_runtime.cli import model as model_commands
from iic_runtime.cli import segment_raster as command

MakeScene = Callable[..., Path]
TENTHOUSANDTHS = landscape(70, 90).astype(np.uint16) * 20 + 40
LANDSAT = "LC08_L2SP_017051_20151205_20200908_02_T1.tif"
LANDSAT_VALUES = np.rint((TENTHOUSANDTHS / 1e4 + 0.2) / 2.75e-5).astype(np.uint16)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "reflectance.onnx"
    path.write_bytes(make_model(dtype="int16", values="reflectance"))
    return path


def mapped(scene: Path, model: Path, **options: Any) -> np.ndarray:
    out = scene.with_name("map.tif")
    segment_raster(scene, out, model, device="cpu", overwrite=True, **options)
    return read_band(out)


@pytest.mark.parametrize("tile", [None, 32])
def test_scenes_with_values_of_any_kind_have_one_map(
    make_scene: MakeScene, model: Path, caplog: pytest.LogCaptureFixture, tile: int | None
) -> None:
    expected = Segmenter(model, device="cpu")(TENTHOUSANDTHS.astype(np.int16), rescale="off").labels
    assert len(np.unique(expected)) > 1
    scenes = {
        "a.tif": (TENTHOUSANDTHS, "Values: assuming reflectance x 10000 ("),
        "b.tif": ((TENTHOUSANDTHS / 1e4).astype(np.float32), "Values: assuming reflectance ("),
        LANDSAT: (LANDSAT_VALUES, "value x 2.75e-05 - 0.2, by its name, surface reflectance of Landsat"),
    }
    for name, (values, sentence) in scenes.items():
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert np.array_equal(mapped(make_scene(values, name), model, tile=tile), expected)
        assert sentence in caplog.text


def test_scale_and_offset_of_the_user(make_scene: MakeScene, model: Path) -> None:
    scene = make_scene(TENTHOUSANDTHS + 3000)
    expected = mapped(make_scene(TENTHOUSANDTHS, "plain.tif"), model)
    assert np.array_equal(mapped(scene, model, reflectance=(1e-4, -0.3)), expected)
    assert not np.array_equal(mapped(scene, model), expected)
    assert not np.array_equal(mapped(scene, model, rescale="auto"), expected)


def test_8_bit_imagery_is_estimated(make_scene: MakeScene, model: Path) -> None:
    values = landscape(70, 90)
    with pytest.warns(AssumptionWarning, match="estimated over the whole scene"):
        labels = mapped(make_scene(values), model, tile=32)
    assert len(np.unique(labels)) > 1
    assert np.array_equal(Segmenter(model, device="cpu")(values).labels, labels)


def test_arrays(make_scene: MakeScene, model: Path) -> None:
    segment = Segmenter(model, device="cpu")
    expected = segment(TENTHOUSANDTHS.astype(np.int16), rescale="off").labels
    assert np.array_equal(segment(TENTHOUSANDTHS).labels, expected)
    assert np.array_equal(segment(TENTHOUSANDTHS / 1e4).labels, expected)
    assert np.array_equal(segment(LANDSAT_VALUES, reflectance=(2.75e-5, -0.2)).labels, expected)


def test_an_empty_border_of_an_array_decides_nothing(
    make_scene: MakeScene, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sentinel-2 shifted by 1000, with a border of zeros that is not declared as nodata."""
    spectra = np.array([[300, 500, 600, 100], [200, 400, 200, 3500], [2000, 1500, 1000, 3000]])
    values = np.kron(spectra.T[:, None], np.ones((1, 70, 30))) + landscape(70, 90) + 1000
    image = np.pad(values.astype(np.uint16), ((0, 0), (0, 0), (20, 0)))
    expected = mapped(make_scene(image), model)
    assert len(np.unique(expected)) > 1
    with caplog.at_level(logging.INFO):
        assert np.array_equal(Segmenter(model, device="cpu")(image).labels, expected)
    assert "since baseline 04.00" in caplog.text


def test_arrays_with_coordinates(make_scene: MakeScene, model: Path) -> None:
    rioxarray = pytest.importorskip("rioxarray")
    from iic_runtime.adapters.xarray import segment

    scene = make_scene(LANDSAT_VALUES)
    with rasterio.open(scene, "r+") as dataset:
        dataset.scales, dataset.offsets = (2.75e-5,) * 4, (-0.2,) * 4
    expected = mapped(scene, model)
    for chunks in (None, {"x": 33, "y": 20}):
        image = rioxarray.open_rasterio(scene, chunks=chunks)
        assert np.array_equal(segment(image, model, device="cpu").values, expected)
        image.attrs = {"long_name": image.attrs["long_name"]}
        given = segment(image, model, device="cpu", reflectance=(2.75e-5, -0.2))
        assert np.array_equal(given.values, expected)


@pytest.mark.parametrize("shift", [0, 1000])
def test_arrays_that_are_decoded_already(make_scene: MakeScene, model: Path, shift: int) -> None:
    """Opened with `mask_and_scale`, the array holds reflectance, and its encoding says what it was made from."""
    rioxarray = pytest.importorskip("rioxarray")
    from iic_runtime.adapters.xarray import segment

    values = TENTHOUSANDTHS + shift
    values[:, :20, :30] = 0
    scene = make_scene(values, nodata=0)
    with rasterio.open(scene, "r+") as dataset:
        dataset.scales, dataset.offsets = (1e-4,) * 4, (-shift / 1e4,) * 4
    expected = mapped(scene, model)
    assert len(np.unique(expected)) > 2
    for chunks in (None, {"x": 33, "y": 20}):
        image = rioxarray.open_rasterio(scene, chunks=chunks, mask_and_scale=True)
        assert image.encoding["rasterio_dtype"] == "uint16"
        assert np.array_equal(segment(image, model, device="cpu").values, expected)


def test_a_stac_item_says_how(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene = make_scene(LANDSAT_VALUES, "somewhere.tif")
    asset = {"href": scene.name, "roles": ["data"], "raster:bands": [{"scale": 2.75e-5, "offset": -0.2}] * 4}
    item = tmp_path / "item.json"
    item.write_text(
        json.dumps({"type": "Feature", "id": "there", "properties": {}, "assets": {"image": asset}})
    )
    (outcome,) = segment_rasters([item], tmp_path / "maps", model, device="cpu")
    assert np.array_equal(read_band(outcome.map), mapped(make_scene(LANDSAT_VALUES, LANDSAT), model))


def test_maps_of_another_reflectance_are_not_kept(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene, out = make_scene(TENTHOUSANDTHS), tmp_path / "maps"
    assert not segment_rasters([scene], out, model, device="cpu")[0].summary.made_before
    same = segment_rasters([scene], out, model, device="cpu", reflectance=(1e-4, 0.0))
    assert same[0].summary.made_before
    assert segment_rasters([scene], out, model, device="cpu", reflectance=(1e-4, -0.1))[0].error is not None


def test_where_reflectance_has_no_meaning(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene = make_scene(TENTHOUSANDTHS)
    with pytest.raises(UsageError, match="give one of them"):
        mapped(scene, model, reflectance=(1e-4, 0.0), rescale="auto")
    with pytest.raises(UsageError, match="a scale above 0"):
        mapped(scene, model, reflectance=(-1e-4, 0.0))
    plain = tmp_path / "plain.onnx"
    plain.write_bytes(make_model(dtype="uint16"))
    with pytest.raises(UsageError, match="tiny does not; use `rescale`"):
        mapped(scene, plain, reflectance=(1e-4, 0.0))
    with pytest.raises(UsageError, match="tiny does not"):
        Segmenter(plain, device="cpu")(TENTHOUSANDTHS, reflectance=(1e-4, 0.0))
    assert not (tmp_path / "map.tif").exists()


def test_the_command(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene, out = make_scene(TENTHOUSANDTHS + 3000), tmp_path / "out.tif"
    arguments = [str(scene), str(out), "--model", str(model), "--device", "cpu"]
    result = CliRunner().invoke(command.app, [*arguments, "--reflectance", "1e-4,-0.3"])
    assert result.exit_code == 0
    assert np.array_equal(read_band(out), mapped(scene, model, reflectance=(1e-4, -0.3)))
    result = CliRunner().invoke(command.app, [*arguments, "--reflectance", "much"])
    assert result.exit_code == 2
    shown = CliRunner().invoke(model_commands.app, ["show", str(model)])
    assert "reflectance, by what the scene says" in shown.output
