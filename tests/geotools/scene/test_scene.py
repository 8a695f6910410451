from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.sources import make_source, noise

from iic_geotools.errors import SceneError
from iic_geotools.scene.info import describe
from iic_geotools.scene.scene import value_sample
from iic_geotools.tiling import Rect

MakeScene = Callable[..., Path]


def test_reading_a_window_in_band_order(make_scene: MakeScene) -> None:
    values = noise()
    path = make_scene(values)
    with make_source(path, (4, 2)).open() as scene:
        pixels = scene.read(Rect(5, 7, 11, 13))
    assert np.array_equal(pixels.values, values[[3, 1], 7:20, 5:16])
    assert pixels.valid is None


def test_nodata_means_every_band(make_scene: MakeScene) -> None:
    values = noise()
    values[:, :4] = 0
    values[0, 10] = 0
    path = make_scene(values, nodata=0)
    assert describe(str(path)).nodata == 0
    with make_source(path, nodata=0.0, fill=(9.0,) * 4).open() as scene:
        pixels = scene.read(Rect(0, 0, 60, 40))
    assert pixels.valid is not None
    assert not pixels.valid[:4].any()
    assert pixels.valid[4:].all()
    assert (pixels.values[:, :4] == 9).all()


def test_a_band_that_is_not_finite_makes_a_hole(make_scene: MakeScene) -> None:
    values = noise().astype(np.float32)
    values[2, 3, 3], values[0, 4, 4] = np.nan, np.inf
    with make_source(make_scene(values), dtype="float32").open() as scene:
        pixels = scene.read(Rect(0, 0, 60, 40))
    assert pixels.valid is not None
    assert np.argwhere(~pixels.valid).tolist() == [[3, 3], [4, 4]]
    assert np.isfinite(pixels.values).all()


def test_failing_reads_raise(make_scene: MakeScene, tmp_path: Path) -> None:
    path = make_scene(noise(4, 200, 300), compress="deflate", tiled=True, blockxsize=64, blockysize=64)
    content = path.read_bytes()
    path.write_bytes(content[:20000] + bytes(20000) + content[40000:])
    with (
        make_source(path).open() as scene,
        pytest.raises(SceneError, match=r"Cannot read rows 0-199, columns 0-299 of .*TIFFReadEncodedTile"),
    ):
        scene.read(Rect(0, 0, 300, 200))


@pytest.mark.parametrize(("nodata", "warned"), [(None, True), (0, False)])
def test_an_undeclared_empty_border_is_warned_of(
    make_scene: MakeScene, caplog: pytest.LogCaptureFixture, nodata: int | None, warned: bool
) -> None:
    values = np.full((4, 100, 100), 90, np.uint8)
    values[:, :4] = 0
    path = make_scene(values, nodata=nodata)
    values = value_sample(make_source(path, nodata=nodata), describe(str(path)))
    assert set(values[0]) == ({0, 90} if warned else {90})
    assert ("4.0 %" in caplog.text and "give `nodata` 0" in caplog.text) == warned
