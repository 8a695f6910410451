"""Maps that are cleaned while they are made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
from pyogrio.raw import read as read_vector
from support.maps import read_band
from support.scenes import landscape
from typer.testing import CliRunner

from iic_geotools.errors import OutputError, UsageError
from iic_geotools.products import cleaning
from iic_geotools.products.cleaning import clean_map
from iic_geotools.products.sieve import Sieve
from iic_runtime import segment_raster, segment_rasters
from iic_runtime.cli.segment_raster import app

MakeScene = Callable[..., Path]
SIEVE = 20.0


@pytest.fixture
def scene(make_scene: MakeScene) -> Path:
    values = landscape(240, 300).astype(int)
    noise = np.random.default_rng(0).normal(size=values.shape) * 25
    values = np.clip(values + noise, 1, 255).astype(np.uint8)
    values[:, 50:70, 40:90] = 0
    return make_scene(values, nodata=0)


@pytest.mark.parametrize("bounds", [None, (500010, 5399890, 500140, 5399990)])
def test_a_map_is_cleaned_as_one_that_was_made_before(
    scene: Path, model: Path, tmp_path: Path, bounds: tuple[float, float, float, float] | None
) -> None:
    raw, direct, later = (tmp_path / f"{name}.tif" for name in ("raw", "direct", "later"))
    kwargs = {"device": "cpu", "tile": 64, "bounds": bounds}
    segment_raster(scene, raw, model, confidence=tmp_path / "raw-c.tif", **kwargs)
    segment_raster(
        scene, direct, model, sieve=SIEVE, majority=1, confidence=tmp_path / "direct-c.tif", **kwargs
    )
    clean_map(raw, later, sieve=SIEVE, majority=1)
    np.testing.assert_array_equal(read_band(direct), read_band(later))
    assert (read_band(direct) != read_band(raw)).any()
    np.testing.assert_array_equal(read_band(direct) == 255, read_band(raw) == 255)
    np.testing.assert_array_equal(read_band(tmp_path / "direct-c.tif"), read_band(tmp_path / "raw-c.tif"))
    with rasterio.open(direct) as dataset:
        assert dataset.tags()["IIC_SIEVE"] == "20 m2"
        assert dataset.tags()["IIC_MAJORITY"] == "1 px"


def test_products_are_those_of_the_clean_map(scene: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    products = {"polygons": tmp_path / "p.gpkg", "stats": tmp_path / "s.json", "preview": tmp_path / "v.png"}
    segment_raster(scene, out, model, device="cpu", sieve=SIEVE, simplify=1.0, **products)
    labels = read_band(out)
    for row in json.loads(products["stats"].read_text())["classes"]:
        assert row["pixels"] == int((labels == row["value"]).sum())
    meta, _, wkb, columns = read_vector(products["polygons"])
    areas = columns[list(meta["fields"]).index("m2")]
    assert shapely.coverage_is_valid(shapely.from_wkb(wkb)).all()
    assert areas.sum() == pytest.approx((labels != 255).sum() * 0.25, rel=0.02)


def test_an_interrupted_run_resumes_with_clean_tiles(
    scene: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "TILE", 100)
    out = tmp_path / "map.tif"
    sieve_tile = Sieve.__call__
    calls: list[Any] = []

    def run(sieve: float = SIEVE) -> int:
        calls.clear()
        segment_raster(scene, out, model, device="cpu", tile=64, sieve=sieve)
        return len(calls)

    def fail_after_four(self: Sieve, *arguments: object) -> np.ndarray:
        calls.append(1)
        if len(calls) > 4:
            raise OutputError("The disk is full.")
        return sieve_tile(self, *arguments)  # type: ignore[arg-type]

    def count(self: Sieve, *arguments: object) -> np.ndarray:
        calls.append(1)
        return sieve_tile(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Sieve, "__call__", fail_after_four)
    with pytest.raises(OutputError, match="disk is full"):
        run()
    assert not out.exists()
    monkeypatch.setattr(Sieve, "__call__", count)
    assert run() == 9 - 4
    resumed = read_band(out)
    out.unlink()
    (tmp_path / "map.qml").unlink()
    assert run() == 9
    np.testing.assert_array_equal(read_band(out), resumed)


def test_clean_tiles_of_another_area_are_not_taken(
    scene: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, other = tmp_path / "map.tif", tmp_path / "other.tif"
    with monkeypatch.context() as patch:
        patch.setattr("iic_runtime.raster.segment.write_outputs", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            segment_raster(scene, out, model, device="cpu", sieve=300.0)
    summary = segment_raster(scene, out, model, device="cpu", sieve=SIEVE)
    assert summary.tiles_run == 0, "the labels are those of the same work"
    segment_raster(scene, other, model, device="cpu", sieve=SIEVE)
    np.testing.assert_array_equal(read_band(out), read_band(other))


def test_many_scenes_are_cleaned_and_kept(scene: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "maps"
    kwargs = {"model": model, "device": "cpu"}
    (first,) = segment_rasters([scene], folder, sieve=SIEVE, **kwargs)
    assert first.summary is not None
    assert not first.summary.made_before
    (again,) = segment_rasters([scene], folder, sieve=SIEVE, **kwargs)
    assert again.summary is not None
    assert again.summary.made_before
    (other,) = segment_rasters([scene], folder, sieve=2 * SIEVE, **kwargs)
    assert "exists" in str(other.error), "another area is other work"
    single = tmp_path / "single.tif"
    segment_raster(scene, single, sieve=SIEVE, **kwargs)
    np.testing.assert_array_equal(read_band(folder / "scene.tif"), read_band(single))


def test_bad_numbers(scene: Path, model: Path, make_scene: MakeScene, tmp_path: Path) -> None:
    def fails(*options: object, of: Path = scene) -> str:
        arguments = (of, tmp_path / "map.tif", "--model", model, "--device", "cpu", *options)
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 2, result.output
        assert not (tmp_path / "map.tif").exists()
        return str(result.stderr)

    assert "--sieve must be 0 or more square metres, not -2." in fails("--sieve", -2)
    assert "--majority must be 0 to 100 pixels, not 400." in fails("--majority", 400)
    assert "--simplify applies only to --polygons" in fails("--simplify", 2)
    polygons = ("--polygons", tmp_path / "p.gpkg")
    assert "--simplify must be 0 or more metres" in fails(*polygons, "--simplify", -2)
    nowhere = make_scene(landscape(60, 60), "nowhere.tif", crs=None)
    assert "--sieve is in square metres, and this map has no reference" in fails("--sieve", 2, of=nowhere)
    with pytest.raises(UsageError, match="`sieve`"):
        segment_raster(scene, tmp_path / "map.tif", model, device="cpu", sieve=float("nan"))
