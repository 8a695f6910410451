"""Models whose card says that scenes are rescaled by their own percentiles."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.maps import read_band
from support.scenes import landscape
from support.tiny_onnx import make_model
from typer.testing import CliRunner

from iic_runtime import segment_raster, segment_rasters
from iic_runtime.cli import model as model_commands

MakeScene = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "auto.onnx"
    path.write_bytes(make_model(rescale="auto"))
    return path


def deep(values: np.ndarray) -> np.ndarray:
    return values.astype(np.uint16) * 40 + 300


@pytest.mark.parametrize("options", [{}, {"workers": 2, "threads": 1}, {"tile": 32}])
def test_scenes_of_any_type_and_stretch_have_one_map(
    make_scene: MakeScene,
    model: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, int],
) -> None:
    values = landscape(100, 90)
    scenes = [
        make_scene(values, "a.tif"),
        make_scene(deep(values), "b.tif"),
        make_scene(values.astype(np.float32) / 4 - 3, "c.tif"),
    ]
    with caplog.at_level(logging.INFO):
        outcomes = segment_rasters(scenes, tmp_path / "maps", model, device="cpu", **options)
    first, *others = (read_band(outcome.map) for outcome in outcomes)
    assert len(np.unique(first)) > 1
    assert all(np.array_equal(first, other) for other in others)
    output = [
        line for line in caplog.messages if "Values: each band from its 2nd to its 98th percentile" in line
    ]
    assert len(output) == 3
    low, high = np.percentile(deep(values)[0], [2, 98], method="inverted_cdf")
    assert f"red {low:g} to {high:g}," in output[1]


def test_rescale_overrides_the_card(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    plain.write_bytes(make_model())
    values = landscape(64, 64) // 2 + 20
    scene = make_scene(values)

    def mapped(model: Path, rescale: str | None, scene: Path = scene) -> np.ndarray:
        out = tmp_path / "map.tif"
        segment_raster(scene, out, model, device="cpu", rescale=rescale, overwrite=True)
        return read_band(out)

    assert np.array_equal(mapped(model, None), mapped(plain, "auto"))
    assert np.array_equal(mapped(model, "off"), mapped(plain, None))
    assert np.array_equal(mapped(model, "10,200"), mapped(plain, "10,200"))
    assert not np.array_equal(mapped(model, "off"), mapped(model, None))
    other = make_scene(deep(values), "deep.tif")
    with pytest.raises(ValueError, match="uint16, but the model was made for uint8; give `rescale`"):
        mapped(model, "off", other)
    with pytest.raises(ValueError, match='MIN,MAX, "auto" or "off"'):
        mapped(model, "none")


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("hole", [0, 5000, 65535])
def test_no_data_is_never_counted_nor_made(
    make_scene: MakeScene, model: Path, tmp_path: Path, hole: int
) -> None:
    """The holes' value may lie in the middle of the others, and others may become what fills holes."""
    values = deep(landscape(80, 80))
    values[:, 30:50, 20:60] = hole
    holes = (values == hole).all(0)
    segment_raster(make_scene(values, "a.tif", nodata=hole), tmp_path / "a-map.tif", model, device="cpu")
    assert np.array_equal(read_band(tmp_path / "a-map.tif") == 255, holes)
    real = np.where(holes, np.nan, values).astype(np.float32)
    segment_raster(make_scene(real, "b.tif"), tmp_path / "b-map.tif", model, device="cpu")
    assert np.array_equal(read_band(tmp_path / "a-map.tif"), read_band(tmp_path / "b-map.tif"))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_bands_of_one_value_and_scenes_of_none(
    make_scene: MakeScene, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = deep(landscape(64, 64))
    values[1] = 777
    segment_raster(make_scene(values), tmp_path / "map.tif", model, device="cpu")
    assert (read_band(tmp_path / "map.tif") != 255).all()
    for name, empty in (("zero", np.zeros_like(values)), ("nan", np.full(values.shape, np.nan, np.float32))):
        out = tmp_path / f"{name}-map.tif"
        segment_raster(make_scene(empty, f"{name}.tif", nodata=0), out, model, device="cpu")
        assert (read_band(out) == 255).all()
        assert "the map will be empty" in caplog.text


def test_maps_of_another_rescaling_are_not_kept(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    scene = make_scene(landscape(64, 64))
    assert not segment_rasters([scene], out, model, device="cpu")[0].summary.made_before
    assert segment_rasters([scene], out, model, device="cpu")[0].summary.made_before
    assert segment_rasters([scene], out, model, device="cpu", rescale="auto")[0].summary.made_before
    assert segment_rasters([scene], out, model, device="cpu", rescale="off")[0].error is not None


def test_the_card_is_shown(model: Path) -> None:
    output = CliRunner().invoke(model_commands.app, ["show", str(model)])
    assert "auto: each band's 2nd and 98th percentile" in output.output


def test_arrays_with_coordinates(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("rioxarray")
    import rioxarray

    from iic_runtime.adapters.xarray import segment

    scene = make_scene(deep(landscape(60, 70)))
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu")
    for chunks in (None, {"x": 33, "y": 20}):
        labels = segment(rioxarray.open_rasterio(scene, chunks=chunks), model, device="cpu")
        assert np.array_equal(labels.values, read_band(tmp_path / "map.tif"))
