"""Models that can do without a band, and that know scenes of whose values nothing is known."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.enums import ColorInterp
from support.maps import read_band
from support.scenes import landscape
from support.tiny_onnx import make_card, make_model

from iic_geotools.errors import AssumptionWarning, ModelError
from iic_geotools.scene.info import describe
from iic_geotools.tiling import Rect
from iic_runtime import Segmenter, segment_raster
from iic_runtime.model.card import Card
from iic_runtime.raster.model_input import choose_reading

MakeScene = Callable[..., Path]
RGB = ("red", "green", "blue")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(make_model(3, optional={"nir": 0}))
    return path


def expected(model: Path, values: np.ndarray) -> np.ndarray:
    """The labels of pixels fed to the graph as they are, without any rule for missing bands."""
    engine = Segmenter(model, device="cpu").engine
    return engine.run(values[None], False)[0][0]


def without_infrared(values: np.ndarray) -> np.ndarray:
    return np.concatenate([values[:3], np.zeros_like(values[:1])])


def test_a_scene_without_an_optional_band_is_fed_the_value_that_says_so(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    values = landscape(90, 110)
    for tile in (None, 32):
        scene, out = make_scene(values[:3]), tmp_path / f"map{tile}.tif"
        segment_raster(scene, out, model, device="cpu", tile=tile)
        assert np.array_equal(read_band(out), expected(model, without_infrared(values)))


def test_data_never_says_that_a_band_is_missing(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(60, 70)
    values[3, 10:30, 10:30] = 0
    segment_raster(make_scene(values), tmp_path / "map.tif", model, device="cpu")
    guarded = np.concatenate([values[:3], np.maximum(values[3:], 1)])
    assert np.array_equal(read_band(tmp_path / "map.tif"), expected(model, guarded))
    source = choose_reading(describe(str(tmp_path / "scene.tif")), Segmenter(model, device="cpu").card)
    with source.open() as scene:
        assert np.array_equal(scene.read(Rect(0, 0, 70, 60)).values, guarded)


def test_alpha_is_a_mask_and_never_infrared(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(60, 70)
    values[3] = 255
    values[3, :20] = 0
    scene = make_scene(values, descriptions=None, photometric="RGB", alpha="YES")
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu")
    clear = without_infrared(values)
    clear[:, :20] = 0
    whole = expected(model, clear)
    assert (read_band(tmp_path / "map.tif")[:20] == 255).all()
    assert np.array_equal(read_band(tmp_path / "map.tif")[20:], whole[20:])
    named = make_scene(values, "named.tif", photometric="RGB", alpha="YES")
    reading = choose_reading(describe(str(named)), Segmenter(model, device="cpu").card)
    assert reading.bidx == (1, 2, 3, 4)


def test_bands_may_leave_optional_ones_out(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(60, 70)
    scene = make_scene(values[::-1], descriptions=None)
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu", bands=[4, 3, 2])
    assert np.array_equal(read_band(tmp_path / "map.tif"), expected(model, without_infrared(values)))


def test_holes_of_a_missing_band_stay_missing(make_scene: MakeScene, model: Path) -> None:
    card = Segmenter(model, device="cpu").card
    values = landscape(20, 20)[:3]
    values[:, :5] = 7
    source = choose_reading(describe(str(make_scene(values, nodata=7))), card)
    with source.open() as scene:
        pixels = scene.read(Rect(0, 0, 20, 20))
    assert pixels.values.shape == (4, 20, 20)
    assert not pixels.values[3].any()
    assert pixels.valid is not None
    assert np.array_equal(~pixels.valid, np.arange(20)[:, None].repeat(20, 1) < 5)


def test_arrays_may_leave_optional_bands_out(model: Path) -> None:
    segment, values = Segmenter(model, device="cpu"), landscape(50, 60)
    assert np.array_equal(segment(values[:3]).labels, expected(model, without_infrared(values)))
    before = values.copy()
    assert np.array_equal(segment(values).labels, expected(model, values))
    assert np.array_equal(values, before)
    with pytest.raises(ModelError, match=r"takes \[4, H, W\] \(red, green, blue, nir\) or \[3, H, W\]"):
        segment(values[:2])


def test_xarray_without_an_optional_band(model: Path) -> None:
    xr = pytest.importorskip("xarray")
    from iic_runtime.adapters.xarray import segment

    values = landscape(50, 60)
    image = xr.DataArray(values[:3], dims=("band", "y", "x"), coords={"band": list(RGB)})
    image = image.assign_coords(x=np.arange(60.0), y=-np.arange(50.0))
    result = segment(image, Segmenter(model, device="cpu"))
    assert np.array_equal(result.values, expected(model, without_infrared(values)))


class TestUnknownValues:
    """Scenes of which nothing says how values become reflectance, for a model that knows such scenes."""

    stretch = (20000, 30000)

    @pytest.fixture
    def reflective(self, tmp_path: Path) -> Path:
        path = tmp_path / "reflective.onnx"
        facts = {"values": "reflectance", "optional": {"nir": 0}, "stretch": self.stretch}
        path.write_bytes(make_model(3, dtype="uint16", **facts))
        return path

    def test_percentiles_become_the_ends_of_the_stretch(
        self, make_scene: MakeScene, reflective: Path, tmp_path: Path
    ) -> None:
        values = landscape(60, 70)
        scene, card = make_scene(values[:3]), Segmenter(reflective, device="cpu").card
        with pytest.warns(AssumptionWarning, match="has no radiometric metadata"):
            source = choose_reading(describe(str(scene)), card)
        with source.open() as opened:
            read = opened.read(Rect(0, 0, 70, 60)).values
        raw = values[:3].astype(float)
        low, high = np.percentile(raw, (2, 98), axis=(1, 2), method="inverted_cdf")[:, :, None, None]
        assert np.abs(read[:3] - (20000 + (raw - low) / (high - low) * 10000)).max() <= 0.51
        assert not read[3].any()
        with pytest.warns(AssumptionWarning):
            result = Segmenter(reflective, device="cpu")(values[:3])
        assert np.array_equal(result.labels, expected(reflective, read))

    def test_what_is_known_is_not_stretched(self, make_scene: MakeScene, reflective: Path) -> None:
        card = Segmenter(reflective, device="cpu").card
        scene = describe(str(make_scene(landscape(60, 70))))
        source = choose_reading(scene, card, reflectance=(0.004, 0.0))
        assert source.rescale is not None
        assert source.rescale.targets == card.value_range


def test_a_card_keeps_what_it_says_about_missing_bands() -> None:
    card = make_card(dtype="int16", values="reflectance", optional={"nir": -9999}, stretch=(20000, 30000))
    again = Card.from_json(card.to_json())
    assert again == card
    assert again.required == RGB


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"optional": {"swir": 0}}, "some of its bands"),
        ({"optional": {"red": 0, "green": 0, "blue": 0, "nir": 0}}, "not all of them"),
        ({"optional": {"nir": -1}}, "numbers that uint8 holds"),
        ({"optional": {"nir": "0"}}, "numbers that uint8 holds"),
        ({"optional": ["nir"]}, "a table"),
        ({"stretch": (1, 2)}, "null unless values are reflectance"),
        ({"stretch": (2, 1), "values": "reflectance"}, "LOW and HIGH"),
    ],
)
def test_cards_that_cannot_be_right(facts: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make_card(**facts)


class TestEightBits:
    """Other data types for a model that takes 8 bits: one function for all bands, which keeps the white balance."""

    @pytest.mark.parametrize(
        ("factor", "dtype"),
        [(1, "uint16"), (257, "uint16"), (1, "float32"), (1 / 255, "float32"), (1, "int16")],
    )
    def test_eight_bits_in_another_type_are_recognised(
        self,
        make_scene: MakeScene,
        model: Path,
        tmp_path: Path,
        factor: float,
        dtype: str,
        recwarn: pytest.WarningsRecorder,
    ) -> None:
        values = landscape(60, 70)
        segment_raster(
            make_scene((values * np.float64(factor)).astype(dtype)), tmp_path / "map.tif", model, device="cpu"
        )
        assert np.array_equal(read_band(tmp_path / "map.tif"), expected(model, values))
        assert not [warning for warning in recwarn if warning.category is AssumptionWarning]

    def test_a_scene_without_data_says_nothing(
        self, make_scene: MakeScene, model: Path, tmp_path: Path
    ) -> None:
        empty = make_scene(np.zeros((4, 20, 20), np.uint16), nodata=0)
        with pytest.warns(AssumptionWarning):
            segment_raster(empty, tmp_path / "map.tif", model, device="cpu")
        assert (read_band(tmp_path / "map.tif") == 255).all()

    def test_alpha_of_sixteen_bits_is_a_mask(self, make_scene: MakeScene, model: Path) -> None:
        values = (landscape(40, 50).astype(np.uint16)) * 13
        values[3] = 65535
        values[3, :9] = 0
        scene = make_scene(values, descriptions=None)
        with rasterio.open(scene, "r+") as dataset:
            dataset.colorinterp = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
        with pytest.warns(AssumptionWarning):
            source = choose_reading(describe(str(scene)), Segmenter(model, device="cpu").card)
        assert source.bidx == (1, 2, 3)
        assert source.masked
