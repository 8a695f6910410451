"""The probability of change between two dates, and a change map that follows it."""

from pathlib import Path

import numpy as np
import pytest
from support.dates import AUTUMN, SIDE, SPRING, date, ground, write, write_cloudy
from support.maps import read_band
from support.scenes import write_raster
from typer.testing import CliRunner

from iic_geotools import change_map
from iic_geotools.errors import IICError, UsageError
from iic_runtime import segment_raster
from iic_runtime.cli.scenes import app
from iic_runtime.naming import scene_change
from iic_runtime.naming.cluster import cluster_scene
from iic_runtime.naming.scene_change import change_probability

BUILT = np.s_[60:90, 20:60]
"""Where a field has become something else."""


def two_dates(folder: Path) -> tuple[Path, Path, np.ndarray]:
    """Two dates of one place, and where it has changed in between."""
    truth = ground()
    later, changed = truth.copy(), np.zeros(truth.shape, bool)
    later[BUILT] = (truth[BUILT] + 2) % 4
    changed[BUILT] = True
    return (
        write(folder / "before.tif", date(truth, SPRING, 1)),
        write(folder / "after.tif", date(later, AUTUMN, 2)),
        changed,
    )


def test_what_has_changed_is_probable(tmp_path: Path) -> None:
    before, after, changed = two_dates(tmp_path)
    result = change_probability(before, after, tmp_path / "p.tif")
    found = read_band(tmp_path / "p.tif")
    assert found.max() <= 254
    inside, outside = found[62:88, 22:58], found[~changed]
    assert np.median(inside) > 180
    assert (outside > 127).mean() < 0.1
    share = changed.mean()
    assert 0.5 * share < result.share < 4 * share
    assert result.hectares == pytest.approx((found > 127).sum() * 0.01, rel=1e-6)
    assert "%" in result.sentence()


def test_light_and_season_are_no_change(tmp_path: Path) -> None:
    """Dates on which everything looks different, and nothing has changed."""
    truth = ground()
    before = write(tmp_path / "a.tif", date(truth, SPRING, 1))
    after = write(tmp_path / "b.tif", date(truth, AUTUMN, 2).astype(np.uint16) * 50)
    result = change_probability(before, after, tmp_path / "p.tif")
    assert result.share < 0.05
    assert (read_band(tmp_path / "p.tif") > 127).mean() < 0.03


def test_equal_dates_have_not_changed(tmp_path: Path) -> None:
    scene = write(tmp_path / "a.tif", date(ground(), SPRING, 1))
    assert change_probability(scene, scene, tmp_path / "p.tif").share < 0.01
    assert read_band(tmp_path / "p.tif").mean() < 10


def test_the_probability_does_not_depend_on_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, _ = two_dates(tmp_path)
    change_probability(before, after, tmp_path / "whole.tif")
    monkeypatch.setattr(scene_change, "TILE", 48)
    change_probability(before, after, tmp_path / "tiles.tif")
    assert np.array_equal(read_band(tmp_path / "whole.tif"), read_band(tmp_path / "tiles.tif"))


def test_only_ground_that_both_dates_show_is_compared(tmp_path: Path) -> None:
    truth = ground()
    values = date(truth, AUTUMN, 2)
    values[:, :30] = 0
    before = write(tmp_path / "a.tif", date(truth, SPRING, 1), nodata=0)
    after = write(tmp_path / "b.tif", values[:, :, 10:], col=10, nodata=0)
    change_probability(before, after, tmp_path / "p.tif")
    found = read_band(tmp_path / "p.tif")
    assert found.shape == (SIDE, SIDE - 10)
    assert (found[:30] == 255).all()
    assert (found[30:] != 255).all()


def test_clouds_are_no_change(tmp_path: Path) -> None:
    truth, clouds = ground(), np.s_[100:140, 70:150]
    clear = write_cloudy(tmp_path / "clear.tif", date(truth, SPRING, 1), np.s_[:0, :0])
    cloudy = write_cloudy(tmp_path / "cloudy.tif", date(truth, AUTUMN, 2), clouds)
    seen = change_probability(clear, cloudy, tmp_path / "seen.tif")
    masked = change_probability(clear, cloudy, tmp_path / "masked.tif", mask="auto")
    found = read_band(tmp_path / "masked.tif")
    assert (found[clouds] == 255).all()
    assert (found != 255).sum() == SIDE * SIDE - 40 * 80
    assert masked.share < 0.5 * seen.share
    by_file = change_probability(
        clear, cloudy, tmp_path / "file.tif", mask=(tmp_path / "{name}_udm2.tif", [0])
    )
    assert by_file.share == masked.share


def test_a_change_map_follows_the_probability(tmp_path: Path) -> None:
    before, after, changed = two_dates(tmp_path)
    model = cluster_scene(before, tmp_path / "m.onnx", 4, pair=[after]).path
    for scene, out in ((before, "one.tif"), (after, "two.tif")):
        segment_raster(scene, tmp_path / out, model)
    change_probability(before, after, tmp_path / "p.tif")
    maps = (tmp_path / "one.tif", tmp_path / "two.tif")
    plain = change_map(*maps, tmp_path / "plain.tif").transitions
    sure = change_map(*maps, tmp_path / "sure.tif", probability=tmp_path / "p.tif").transitions
    certain = change_map(
        *maps, tmp_path / "none.tif", probability=tmp_path / "p.tif", min_probability=1
    ).transitions
    assert certain.changed_share == 0
    assert 0.4 * changed.mean() < sure.changed_share <= plain.changed_share
    one, two, probability = read_band(maps[0]), read_band(maps[1]), read_band(tmp_path / "p.tif")
    assert sure.changed_share == pytest.approx(((one != two) & (probability >= 128)).mean())
    with pytest.raises(UsageError, match="min_probability"):
        change_map(*maps, tmp_path / "x.tif", probability=tmp_path / "p.tif", min_probability=2)
    with pytest.raises(IICError, match="not a probability of change"):
        change_map(*maps, tmp_path / "x.tif", probability=before)
    assert not (tmp_path / "x.tif").exists()


def test_the_command_writes_it(tmp_path: Path) -> None:
    before, after, _ = two_dates(tmp_path)
    arguments = ["change", str(before), str(after), str(tmp_path / "p.tif")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "estimated" in done.output
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code != 0
    assert CliRunner().invoke(app, [*arguments, "--overwrite"]).exit_code == 0


def test_dates_that_do_not_fit_leave_no_file(tmp_path: Path) -> None:
    before, after, _ = two_dates(tmp_path)
    three = write(tmp_path / "three.tif", date(ground(), AUTUMN, 2)[:3])
    tiny = write_raster(tmp_path / "tiny.tif", date(ground(), AUTUMN, 2)[:, :3, :3])
    for one, other in ((before, three), (before, tmp_path / "none.tif"), (tiny, tiny)):
        with pytest.raises(IICError):
            change_probability(one, other, tmp_path / "p.tif")
    with pytest.raises(IICError, match=r"\.tif"):
        change_probability(before, after, tmp_path / "p.png")
    assert not (tmp_path / "p.tif").exists()
