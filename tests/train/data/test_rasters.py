import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.enums import ColorInterp
from rasterio.transform import from_origin
from support.steps import batches

from iic_geotools.errors import DataError, SceneError, UsageError
from iic_geotools.tiling import Rect
from iic_train.config import DataConfig
from iic_train.data.rasters import Chips, LabelRasters, Windows, parse_groups
from iic_train.data.scene_reader import SceneReader, Scenes
from iic_train.data.survey import Resolution, Survey, describe_scenes, fingerprint, survey_scenes


def write(
    path: Path,
    array: Any,
    *,
    names: tuple[str, ...] | None = None,
    nodata: float | None = None,
    crs: str | None = "EPSG:32631",
    pixel: float = 0.5,
) -> str:
    array = np.asarray(array)
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        count=array.shape[0],
        height=array.shape[1],
        width=array.shape[2],
        dtype=array.dtype,
        crs=crs,
        transform=from_origin(500000, 4500000, pixel, pixel),
        nodata=nodata,
    ) as out:
        out.write(array)
        if names:
            out.descriptions = names
        out.colorinterp = [ColorInterp.undefined] * array.shape[0]
    return str(path)


def open_scenes(paths: list[str], channels: tuple[str, ...], **data: Any) -> Scenes:
    return describe_scenes(DataConfig("rasters", scenes=tuple(paths), **data), channels)


def open_survey(paths: list[str], channels: tuple[str, ...], **data: Any) -> Survey:
    return survey_scenes(DataConfig("rasters", scenes=tuple(paths), **data), channels)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_windows_hold_the_scene_s_pixels_in_the_order_asked_for(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    red = np.arange(40 * 60, dtype=np.uint16).reshape(40, 60)
    path = write(tmp_path / "a.tif", np.stack([red + 10_000, red]), names=("nir", "red"))
    scenes = open_scenes([path], ("red", "nir"))
    assert (scenes.dtype, scenes.gsd) == ("uint16", pytest.approx(0.5))
    batch = Windows(scenes, 16, (1.0,)).read(np.arange(5), rng)
    assert batch.valid is None
    for window in batch.pixels.numpy():
        assert (window[1] - window[0] == 10_000).all()
        row, column = divmod(int(window[0, 0, 0]), 60)
        np.testing.assert_array_equal(window[0], red[row : row + 16, column : column + 16])


def test_nodata_is_never_counted_and_hardly_read(tmp_path: Path, rng: np.random.Generator) -> None:
    values = rng.integers(1, 200, (1, 128, 128)).astype(np.uint8)
    values[:, :, 48:] = 0  # most of the scene is empty
    survey = open_survey([write(tmp_path / "a.tif", values, names=("grey",), nodata=0)], ("grey",))
    assert survey.valid_shares == (pytest.approx(48 / 128),)
    windows = Windows(survey.scenes.with_fill((0.0,)), 32, survey.valid_shares)
    assert len(windows) == round(128 * 48 / 32**2)
    batch = windows.read(np.arange(30), rng)
    assert batch.valid is not None
    assert (batch.valid.flatten(1).float().mean(1) >= 0.5).all()
    assert ((batch.pixels[:, 0] != 0) == batch.valid).all()


def test_constants_are_robust_and_ignore_nodata(tmp_path: Path, rng: np.random.Generator) -> None:
    values = rng.normal(1000, 100, (2, 300, 300)).astype(np.float32)
    values[1] *= 3
    values[:, :100] = -9999
    values[:, 150, 150] = 1e6
    path = write(tmp_path / "a.tif", values, names=("red", "nir"), nodata=-9999)
    survey = open_survey([path], ("red", "nir"))
    scaled = (np.array([1000, 3000]) - survey.offset) * survey.scale
    assert scaled == pytest.approx([0.5, 0.5], abs=0.02)
    assert survey.offset[0] == pytest.approx(1000 - 2.576 * 100, rel=0.02)


def test_small_scenes_are_padded_with_pixels_that_do_not_count(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    path = write(tmp_path / "a.tif", np.full((1, 10, 40), 7, np.uint8), names=("grey",))
    batch = Windows(open_scenes([path], ("grey",)), 24, (1.0,)).read(np.arange(3), rng)
    assert batch.pixels.shape == (3, 1, 24, 24)
    assert (batch.valid.sum((1, 2)) == 10 * 24).all()


def test_reduced_resolution_averages_squares(tmp_path: Path) -> None:
    values = np.arange(36, dtype=np.float32).reshape(1, 6, 6)
    values[0, 0, 0] = np.nan
    scenes = open_scenes([write(tmp_path / "a.tif", values, names=("grey",))], ("grey",), reduce=2)
    assert (scenes.shapes, scenes.gsd) == (((3, 3),), pytest.approx(1.0))
    pixels = SceneReader(scenes).read(0, Rect(0, 0, 3, 3))
    assert not pixels.valid[0, 0]
    assert pixels.valid.sum() == 8
    assert pixels.values[0, 1, 1] == np.mean([14, 15, 20, 21])


def test_a_range_of_resolutions_reads_each_scene_at_all_that_its_pixels_make(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    fine = write(
        tmp_path / "fine.tif", rng.integers(0, 255, (1, 60, 80)).astype(np.uint8), names=("grey",), pixel=0.2
    )
    coarse = write(
        tmp_path / "coarse.tif",
        rng.integers(0, 255, (1, 60, 60)).astype(np.uint8),
        names=("grey",),
        pixel=0.6,
    )
    scenes = open_scenes([fine, coarse], ("grey",), gsd=(0.2, 1.0))
    assert scenes.files == (0, 0, 0, 0, 0, 1)
    assert scenes.times == (1, 2, 3, 4, 5, 1)
    assert scenes.shapes == ((60, 80), (30, 40), (20, 26), (15, 20), (12, 16), (60, 60))
    assert scenes.gsd == pytest.approx(0.2**0.5 * 1.0)
    reader = SceneReader(scenes)
    whole = reader.read(0, Rect(0, 0, 80, 60)).values
    np.testing.assert_allclose(
        reader.read(4, Rect(3, 2, 2, 2)).values[0, 0, 0], whole[0, 10:15, 15:20].mean(), atol=0.5
    )
    labels = LabelRasters([fine, coarse], scenes, {"a": tuple(range(255))})
    assert labels.read(4, Rect(0, 0, 16, 12)).shape == (12, 16)


def test_resolutions_of_a_scene_are_drawn_alike_and_scenes_by_their_pixels(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    small = write(tmp_path / "a.tif", np.full((1, 40, 40), 1, np.uint8), names=("grey",), pixel=1.0)
    large = write(tmp_path / "b.tif", np.full((1, 80, 120), 2, np.uint8), names=("grey",), pixel=0.5)
    survey = open_survey([small, large], ("grey",), gsd=(0.5, 1.0))
    windows = Windows(survey.scenes, 16, survey.valid_shares)
    values = windows.read(np.arange(700), rng).pixels[:, 0, 0, 0]
    assert 60 <= (values == 1).sum() <= 145  # one seventh of the pixels
    assert np.isclose(windows._chances, [1 / 7, 3 / 7, 3 / 7]).all()


@pytest.mark.parametrize(
    ("pixel_size", "message"),
    [
        (None, "give `pixel_size`"),
        (5.0, "pixels of 5 m"),
    ],
)
def test_resolutions_that_cannot_be_made(tmp_path: Path, pixel_size: float | None, message: str) -> None:
    path = write(tmp_path / "a.tif", np.ones((1, 40, 40), np.uint8), names=("grey",), crs=None)
    with pytest.raises(DataError, match=message):
        open_scenes([path], ("grey",), gsd=(0.2, 1.0), pixel_size=pixel_size)


def test_missing_metadata_of_pixels_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", np.ones((1, 40, 40), np.uint8), names=("grey",), crs=None)
    scenes = open_scenes([path], ("grey",), gsd=(5, 10), pixel_size=5.0)
    assert scenes.times == (1, 2)
    assert open_scenes([path], ("grey",), pixel_size=5.0).gsd == 5.0
    with pytest.raises(UsageError, match="`reduce`"):
        Resolution(2, (5, 10))


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_read_the_same_windows(tmp_path: Path, rng: np.random.Generator, workers: int) -> None:
    paths = [
        write(tmp_path / f"{i}.tif", rng.integers(0, 255, (1, 64, 64)).astype(np.uint8), names=("grey",))
        for i in range(3)
    ]
    windows = Windows(open_scenes(paths, ("grey",)), 16, (1.0,) * 3)
    windows.read(np.arange(1), rng)  # a handle is open before the workers start
    first = [batch.pixels.numpy() for batch in batches(windows, 4, (0, 1, 0), steps=3, workers=workers)]
    again = [batch.pixels.numpy() for batch in batches(windows, 4, (0, 1, 0), steps=3)]
    np.testing.assert_array_equal(first, again)
    assert len({window.tobytes() for batch in first for window in batch}) == 12


def test_a_source_can_be_sent_to_another_process(tmp_path: Path, rng: np.random.Generator) -> None:
    path = write(tmp_path / "a.tif", rng.integers(0, 255, (1, 64, 64)).astype(np.uint8), names=("grey",))
    windows = Windows(open_scenes([path], ("grey",)), 16, (1.0,))
    first = windows.read(np.arange(2), np.random.default_rng(1)).pixels
    sent = pickle.loads(pickle.dumps(windows))
    assert (sent.read(np.arange(2), np.random.default_rng(1)).pixels == first).all()


def test_chips_cover_scenes_once_with_their_labels(tmp_path: Path, rng: np.random.Generator) -> None:
    values = rng.integers(1, 255, (1, 70, 50)).astype(np.uint8)
    values[0, 0, 0] = 0
    truth = rng.integers(1, 6, (1, 70, 50)).astype(np.uint8)
    scene = write(tmp_path / "a.tif", values, names=("grey",), nodata=0)
    labels = write(tmp_path / "l.tif", truth)
    scenes = open_scenes([scene], ("grey",))
    groups = parse_groups(["low=1,2", "high=4,5"])
    chips = Chips(scenes, LabelRasters([labels], scenes, groups), side=32)
    assert len(chips) == 6
    assert sum(chips.image(i).size for i in range(6)) == 70 * 50
    label = chips.label(0)
    expected = np.select([truth[0, :32, :32] <= 2, truth[0, :32, :32] >= 4], [0, 1], 255)
    expected[0, 0] = 255
    np.testing.assert_array_equal(label, expected)
    assert LabelRasters([labels], scenes, {}).classes == tuple(f"class {value}" for value in range(1, 6))


def test_bad_input_is_one_sentence(tmp_path: Path, rng: np.random.Generator) -> None:
    grey = rng.integers(0, 255, (1, 64, 64))
    a = write(tmp_path / "a.tif", grey.astype(np.uint8), names=("grey",))
    b = write(tmp_path / "b.tif", grey.astype(np.uint16), names=("grey",))
    c = write(tmp_path / "c.tif", grey.astype(np.uint8), names=("grey",), pixel=5.0)
    d = write(tmp_path / "d.tif", np.zeros((1, 64, 64), np.uint8), names=("grey",), nodata=0)
    with pytest.raises(UsageError, match="at least one"):
        open_scenes([], ("grey",))
    with pytest.raises(SceneError, match="no file"):
        open_scenes([str(tmp_path / "x.tif")], ("grey",))
    with pytest.raises(SceneError, match="no band named red"):
        open_scenes([a], ("red",))
    with pytest.raises(DataError, match="different types"):
        open_scenes([a, b], ("grey",))
    with pytest.raises(DataError, match="several resolutions"):
        open_scenes([a, c], ("grey",))
    with pytest.raises(DataError, match="nodata"):
        open_survey([d], ("grey",))
    with pytest.raises(UsageError, match="`label_class`"):
        parse_groups(["trees=x"])
    scenes = open_scenes([a], ("grey",))
    with pytest.raises(UsageError, match="one label raster per scene"):
        LabelRasters([a, b], scenes, {})
    small = write(tmp_path / "s.tif", grey[:, :32].astype(np.uint8))
    with pytest.raises(SceneError, match="on its grid"):
        LabelRasters([small], scenes, {})


def test_scenes_of_other_types_and_stretches_are_read_alike(tmp_path: Path, rng: np.random.Generator) -> None:
    values = rng.integers(1, 250, (1, 70, 90)).astype(np.uint8)
    values[:, 10:20, 30:50] = 0
    deep = values.astype(np.uint16) * 40 + 300
    deep[:, 10:20, 30:50] = 4300  # no data, and a value that occurs: of a scene of one band, holes too
    real = np.where(values == 0, np.nan, values * np.float32(0.25) - 7)
    files = [
        write(tmp_path / "a.tif", values, names=("grey",), nodata=0),
        write(tmp_path / "b.tif", deep, names=("grey",), nodata=4300),
        write(tmp_path / "c.tif", real.astype(np.float32), names=("grey",)),
    ]
    scenes = open_scenes(files, ("grey",), rescale="auto")
    assert scenes.dtype == "uint8"
    reader = SceneReader(scenes)
    whole = Rect(0, 0, 90, 70)
    first, second, third = (reader.read(index, whole) for index in range(3))
    holes = values[0] == 0
    assert np.array_equal(~first.valid, holes)
    assert np.array_equal(~second.valid, holes | (values[0] == 100))
    assert np.array_equal(~third.valid, holes)
    assert first.values.tobytes() == third.values.tobytes()
    both = first.valid & second.valid
    assert np.abs(first.values[0, both].astype(int) - second.values[0, both]).max() <= 3, (
        "holes change a percentile"
    )
    valid = first.values[0, first.valid]
    assert (valid == 0).mean() == pytest.approx(0.02, abs=0.01)
    assert (valid == 255).mean() == pytest.approx(0.02, abs=0.01)
    survey = open_survey(files, ("grey",), rescale="auto")
    assert (survey.offset, survey.scale) == ((0.0,), (1 / 255,))
    assert survey.valid_shares[0] == pytest.approx(1 - holes.mean())


def test_resolutions_of_a_scene_share_its_percentiles(tmp_path: Path, rng: np.random.Generator) -> None:
    path = write(tmp_path / "a.tif", rng.integers(0, 3000, (1, 64, 64)).astype(np.uint16), names=("grey",))
    scenes = open_scenes([path], ("grey",), gsd=(0.5, 1.0), rescale="auto")
    assert scenes.times == (1, 2)
    assert scenes.sources[0] == scenes.sources[1]
    plain = open_scenes([path], ("grey",), gsd=(0.5, 1.0))
    assert fingerprint(scenes) != fingerprint(plain)


def test_an_empty_scene_among_others_is_never_drawn(tmp_path: Path, rng: np.random.Generator) -> None:
    full = write(tmp_path / "a.tif", rng.integers(1, 99, (1, 40, 40)).astype(np.uint8), names=("grey",))
    empty = write(tmp_path / "b.tif", np.zeros((1, 40, 40), np.uint16), names=("grey",), nodata=0)
    survey = open_survey([full, empty], ("grey",), rescale="auto")
    assert survey.valid_shares == (1.0, 0.0)
    assert Windows(survey.scenes, 16, survey.valid_shares).read(np.arange(8), rng).valid is None
    with pytest.raises(UsageError, match="auto"):
        open_scenes([full], ("grey",), rescale="0,255")


def test_fingerprint_follows_the_pixels(tmp_path: Path, rng: np.random.Generator) -> None:
    values = rng.integers(0, 255, (1, 64, 64)).astype(np.uint8)
    first = fingerprint(open_scenes([write(tmp_path / "a.tif", values, names=("grey",))], ("grey",)))
    values[0, 32, 32] ^= 1
    assert first != fingerprint(open_scenes([write(tmp_path / "a.tif", values, names=("grey",))], ("grey",)))
