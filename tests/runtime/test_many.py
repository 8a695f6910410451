"""A list of scenes: one model load, a map each, failures told at the end, a mosaic over the results."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from conftest import landscape
from rasterio.transform import from_origin
from typer.testing import CliRunner

from iic_runtime import Segmenter, segment_raster, segment_rasters
from iic_runtime.cli.segment_raster import app

MakeScene = Callable[..., Path]


@pytest.fixture
def scenes(make_scene: MakeScene) -> list[Path]:
    """Two scenes side by side, overlapping by 20 columns, the right one with a hole in the overlap."""
    values = landscape(100, 200)
    right = values[:, :, 100:].copy()
    right[:, 40:60, :30] = 0
    return [
        make_scene(values[:, :, :120], "west.tif"),
        make_scene(right, "east.tif", transform=from_origin(500050, 5400000, 0.5, 0.5), nodata=0),
    ]


def read(path: Path) -> np.ndarray:
    with rasterio.open(path) as dataset:
        return dataset.read(1)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    return result.exit_code, result.output


def test_the_maps_are_those_of_single_runs(
    scenes: list[Path], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    original = Segmenter.__init__

    def count(self: Segmenter, *args: object, **kwargs: object) -> None:
        opened.append(self)
        original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Segmenter, "__init__", count)
    out = tmp_path / "maps"
    extra = tmp_path / "{name}-areas.json"
    code, told = run(*scenes, out, "--model", model, "--device", "cpu", "--tile", 64, "--stats", extra)
    assert code == 0, told
    assert len(opened) == 1
    assert "2 of 2 scenes mapped" in told
    for scene in scenes:
        segment_raster(scene, tmp_path / "single.tif", model, device="cpu", overwrite=True)
        assert (out / scene.name).read_bytes() == (tmp_path / "single.tif").read_bytes()
        assert (tmp_path / f"{scene.stem}-areas.json").exists()


def test_a_failure_is_told_at_the_end(scenes: list[Path], model: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.tif").write_bytes(scenes[0].read_bytes()[:3000])
    order = [scenes[0], tmp_path / "broken.tif", scenes[1]]
    code, told = run(*order, tmp_path / "maps", "--model", model, "--device", "cpu")
    assert code == 1
    assert "2 of 3 scenes mapped" in told
    assert told.splitlines()[-1].startswith(f"Error: {tmp_path}/broken.tif: ")
    assert sorted(path.name for path in (tmp_path / "maps").glob("*.tif")) == ["east.tif", "west.tif"]


def test_the_same_command_goes_on(scenes: list[Path], model: Path, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    segment_rasters(scenes[:1], out, model, device="cpu")
    first = _written(out / "west.tif")
    outcomes = segment_rasters(scenes, out, model, device="cpu", tile=64)
    assert [outcome.summary.made_before for outcome in outcomes if outcome.summary] == [True, False]
    assert _written(out / "west.tif") == first
    for change in ({"rescale": "0,200"}, {"resume": False}, {"bands": ["4", "3", "2", "1"]}):
        other = segment_rasters(scenes, out, model, device="cpu", **change)
        assert all("exists" in str(outcome.error) for outcome in other), change
    os.utime(scenes[0], ns=(0, 0))
    outcomes = segment_rasters(scenes, out, model, device="cpu")
    assert "exists" in str(outcomes[0].error), "the scene was written again"
    again = segment_rasters(scenes, out, model, device="cpu", overwrite=True)
    assert not any(outcome.summary.made_before for outcome in again if outcome.summary)


def _written(path: Path) -> tuple[int, int]:
    """What changes when a file is written, but not when it is read."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def test_mosaic(scenes: list[Path], model: Path, tmp_path: Path) -> None:
    out, mosaic = tmp_path / "maps", tmp_path / "all.vrt"
    code, told = run(*scenes, out, "--model", model, "--device", "cpu", "--mosaic", mosaic)
    assert code == 0, told
    west, east = read(out / "west.tif"), read(out / "east.tif")
    expected = np.full((100, 200), 255, np.uint8)
    expected[:, :120] = west
    expected[:, 100:] = np.where(east == 255, expected[:, 100:], east)
    assert (expected[40:60, 100:120] != 255).all(), "the west shows through the hole in the east"
    with rasterio.open(mosaic) as dataset:
        assert np.array_equal(dataset.read(1), expected)
        assert dataset.transform == from_origin(500000, 5400000, 0.5, 0.5)
        assert dataset.crs == "EPSG:32631"
        assert dataset.colormap(1)[0] == (0, 114, 178, 255)
    (tmp_path / "moved").mkdir()
    for path in (out, mosaic):
        path.rename(tmp_path / "moved" / path.name)
    assert np.array_equal(read(tmp_path / "moved" / "all.vrt"), expected)


@pytest.mark.gdal
def test_a_mosaic_names_its_classes(
    scenes: list[Path], model: Path, tmp_path: Path, gdalinfo: Callable[[Path], str]
) -> None:
    segment_rasters(scenes, tmp_path, model, device="cpu", mosaic=tmp_path / "all.vrt", overwrite=True)
    assert segment_rasters(scenes, tmp_path / "maps", model, device="cpu", mosaic=tmp_path / "all.vrt")
    told = gdalinfo(tmp_path / "all.vrt")
    assert "0: cluster 0" in told
    assert "Color Table" in told


def test_a_mosaic_that_cannot_be(
    scenes: list[Path], make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    coarse = make_scene(landscape(30, 30), "coarse.tif", transform=from_origin(500000, 5400000, 2, 2))
    out = tmp_path / "maps"
    code, told = run(scenes[0], coarse, out, "--model", model, "--mosaic", tmp_path / "all.vrt")
    assert code == 1
    assert "one CRS and pixel size" in told
    (tmp_path / "mine.vrt").write_text("<VRTDataset/>")
    code, told = run(*scenes, out, "--model", model, "--mosaic", tmp_path / "mine.vrt")
    assert code == 1
    assert "mine.vrt exists" in told
    assert run(*scenes, out, "--model", model, "--mosaic", tmp_path / "all.tif")[0] == 2


def test_lists_of_scenes(scenes: list[Path], model: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(f"# two scenes\n{scenes[0]}\n\neast.tif\n")
    code, told = run(listed, tmp_path / "one", "--model", model)
    assert code == 0, told
    items = [
        {"id": f"item/{i}", "assets": {"data": {"href": f"./{s.name}"}, "thumb": {"href": "t.png"}}}
        for i, s in enumerate(scenes)
    ]
    collection = tmp_path / "items.json"
    collection.write_text(json.dumps({"type": "FeatureCollection", "features": items}))
    code, told = run(collection, tmp_path / "two", "--model", model)
    assert code == 2
    assert "Give --asset, one of data, thumb" in told
    assert run(collection, tmp_path / "two", "--model", model, "--asset", "data")[0] == 0
    assert (tmp_path / "two" / "item-1.tif").read_bytes() == (tmp_path / "one" / "east.tif").read_bytes()
    items[0]["assets"]["data"]["roles"] = ["data"]  # type: ignore[index]
    collection.write_text(json.dumps({"type": "Feature", **items[0]}))
    assert run(collection, tmp_path / "three", "--model", model)[0] == 0
    collection.write_text("[1, 2]")
    assert "neither a STAC item" in run(collection, tmp_path / "three", "--model", model)[1]


def test_scenes_of_one_name_get_their_folders_name(scenes: list[Path], model: Path, tmp_path: Path) -> None:
    for folder, scene in zip(("a", "b"), scenes, strict=True):
        (tmp_path / folder).mkdir()
        scene.rename(tmp_path / folder / "ortho.tif")
    same = [tmp_path / "a/ortho.tif", tmp_path / "b/ortho.tif"]
    outcomes = segment_rasters(same, tmp_path / "maps", model)
    assert [outcome.map.name for outcome in outcomes] == ["a-ortho.tif", "b-ortho.tif"]
    with pytest.raises(ValueError, match=r"2 scenes would have the map a-ortho\.tif"):
        segment_rasters([same[0], same[0]], tmp_path / "maps", model)


def test_wrong_usage(scenes: list[Path], model: Path, tmp_path: Path) -> None:
    code, told = run(*scenes, tmp_path / "map.tif", "--model", model)
    assert code == 2
    assert "need a folder" in told
    code, told = run(*scenes, tmp_path / "maps", "--model", model, "--polygons", tmp_path / "p.gpkg")
    assert code == 2
    assert "--polygons needs {name}" in told
    code, told = run(scenes[0], tmp_path / "map.tif", "--model", model, "--mosaic", tmp_path / "all.vrt")
    assert code == 2
    assert "--mosaic and --asset are for several scenes" in told
    assert not (tmp_path / "maps").exists()
