"""DataArrays in, DataArrays out: for any chunks the labels of the whole image, bit for bit."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import rasterio
import rioxarray
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scenes import landscape
from support.tiny_onnx import make_model

from iic_geotools.errors import AssumptionWarning, UsageError
from iic_runtime import Segmenter, segment_raster
from iic_runtime.adapters.xarray import segment

MakeScene = Callable[..., Path]
BANDS = ["red", "green", "blue", "nir"]


@cache
def segmenter() -> Segmenter:
    path = Path(mkdtemp()) / "model.onnx"
    path.write_bytes(make_model())
    return Segmenter(path, device="cpu", threads=1, tile=64)


def image(values: np.ndarray) -> xr.DataArray:
    return xr.DataArray(values, {"band": BANDS}, ("band", "y", "x"))


def chunks(length: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Every way to cut `length`, mostly into pieces narrower than the halo of 12 and at odd places."""
    cuts = st.sets(st.integers(1, length - 1), max_size=6)
    return cuts.map(lambda at: tuple(int(n) for n in np.diff([0, *sorted(at), length])))


@settings(max_examples=10, deadline=None)
@given(rows=chunks(70), columns=chunks(90), bands=st.sampled_from([1, 3, 4]))
def test_any_chunks_give_the_same_labels(rows: tuple[int, ...], columns: tuple[int, ...], bands: int) -> None:
    values = landscape(70, 90)
    values[:, 20:45, 33:52] = 0
    whole = image(values).rio.write_nodata(0)
    lazy = segment(whole.chunk({"band": bands, "y": rows, "x": columns}), segmenter(), confidence=True)
    assert isinstance(lazy, xr.Dataset)
    assert lazy.labels.chunks == (rows, columns)
    expected = segment(whole, segmenter(), confidence=True)
    assert (expected.labels == 255).sum() == 25 * 19
    xr.testing.assert_identical(lazy.compute(scheduler="sync"), expected)


def test_the_file_and_the_array_give_one_map(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(120, 150)
    values[:, :30, :40] = 0
    scene = make_scene(values, nodata=0)
    segment_raster(scene, tmp_path / "map.tif", model, confidence=tmp_path / "c.tif", device="cpu")
    with rioxarray.open_rasterio(scene, chunks={"x": 37, "y": 50}) as da:
        result = segment(da, model, confidence=True, device="cpu", threads=1)
        assert isinstance(result, xr.Dataset)
        for name, file in (("labels", "map.tif"), ("confidence", "c.tif")):
            with rasterio.open(tmp_path / file) as dataset:
                assert np.array_equal(result[name].values, dataset.read(1))
                assert dataset.transform == result[name].rio.transform()
                assert dataset.crs == result[name].rio.crs
                assert result[name].rio.nodata == 255
        assert result.x.equals(da.x)
        assert result.y.equals(da.y)
    labels = result.labels
    assert labels.attrs["categories"] == [f"cluster {i}" for i in range(4)]
    assert labels.attrs["flag_meanings"].split()[3] == "cluster_3"
    assert labels.attrs["flag_values"].tolist() == [0, 1, 2, 3]
    labels.rio.to_raster(tmp_path / "again.tif")
    with rasterio.open(tmp_path / "again.tif") as dataset:
        assert dataset.nodata == 255
        assert np.array_equal(dataset.read(1), labels.values)
    for decoding in ({"masked": True}, {"mask_and_scale": True}):
        with rioxarray.open_rasterio(scene, **decoding) as decoded:
            assert decoded.dtype == np.float32
            assert segment(decoded, model, device="cpu", threads=1).equals(labels)


@pytest.mark.parametrize(
    ("gsd", "advice"), [(1.0, "resample it to 1 m first, e.g. with da.rio.reproject"), (0.2, "train a model")]
)
def test_an_array_is_never_read_at_another_resolution(
    make_scene: MakeScene, tmp_path: Path, gsd: float, advice: str
) -> None:
    """A file whose pixels of 0.5 m are too fine for the model is; the warning says what to do instead."""
    scene, model, out = make_scene(landscape(60, 80)), tmp_path / "sized.onnx", tmp_path / "map.tif"
    model.write_bytes(make_model(gsd=gsd))
    segment_raster(scene, out, model, device="cpu", match_gsd=False)
    with (
        pytest.warns(AssumptionWarning, match=f"so the map may be poor; {re.escape(advice)}"),
        rioxarray.open_rasterio(scene) as da,
        rasterio.open(out) as dataset,
    ):
        assert np.array_equal(segment(da, model, device="cpu").values, dataset.read(1))


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    import dask.array

    def never(block: np.ndarray) -> np.ndarray:
        raise AssertionError("computed")

    data = dask.array.zeros((4, 60, 60), np.uint8, chunks=20).map_blocks(never, dtype=np.uint8)
    lazy = segment(xr.DataArray(data, {"band": BANDS}, ("band", "y", "x")), segmenter())
    with pytest.raises(AssertionError, match="computed"):
        lazy.compute(scheduler="sync")


def test_rescaled_and_chosen_bands() -> None:
    values = landscape(50, 60)
    deep = image(values[[3, 0, 1, 2]].astype(np.uint16) * 10).assign_coords(band=[1, 2, 3, 4])
    expected = segment(image(values), segmenter())
    bands = ["2", "3", "4", "1"]
    rescaled = segment(deep, segmenter(), bands=bands, rescale="0,2550")
    assert rescaled.equals(expected)
    lazy = deep.chunk({"x": 13, "y": 11})
    assert segment(lazy, segmenter(), bands=bands, rescale="auto").equals(
        segment(deep, segmenter(), bands=bands, rescale="auto")
    )
    with pytest.raises(ValueError, match="uint16, but the model was made for uint8"):
        segment(deep, segmenter(), bands=bands, rescale="off")
    with pytest.raises(OSError, match="not clear which bands"):
        segment(deep, segmenter(), rescale="0,2550")


def test_arrays_that_are_not_an_image() -> None:
    with pytest.raises(OSError, match=r"da\.isel\(time=0\)"):
        segment(image(landscape(20, 20)).expand_dims(time=2), segmenter())
    with pytest.raises(OSError, match="no spatial dimensions"):
        segment(xr.DataArray(np.zeros((4, 5)), dims=("a", "b")), segmenter())
    with pytest.raises(UsageError, match="`da` must be DataArray"):
        segment(landscape(20, 20), segmenter())
    for wrong in (image(landscape(20, 20)).astype(complex), image(landscape(20, 20))[:, :0]):
        with pytest.raises(OSError, match="Only DataArrays with pixels"):
            segment(wrong, segmenter())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "x", [np.zeros(20), np.full(20, np.nan), np.full(20, np.inf), list("abcdefghijklmnopqrst")]
)
def test_coordinates_that_place_no_pixel(x: object) -> None:
    da = image(landscape(20, 20)).assign_coords(x=("x", x), y=np.arange(20))
    with pytest.raises(OSError, match="do not place its pixels"):
        segment(da, segmenter())


def test_bands_are_given_by_number_too() -> None:
    values = landscape(40, 50)
    by_number = segment(image(values), segmenter(), bands=[1, 2, 3, 4])
    xr.testing.assert_identical(by_number, segment(image(values), segmenter(), bands=["1", "2", "3", "4"]))
