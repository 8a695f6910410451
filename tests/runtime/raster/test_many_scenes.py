"""Many scenes: the model is opened once, failures are reported at the end, a mosaic covers the maps."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin
from support.maps import read_band
from support.scenes import landscape
from typer.testing import CliRunner

from iic_geotools.scene.info import SceneInfo
from iic_runtime import Segmenter, segment_raster, segment_rasters
from iic_runtime.cli.segment_raster import app
from iic_runtime.raster.plan import Plan

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


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
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
    code, output = run(*scenes, out, "--model", model, "--device", "cpu", "--tile", 64, "--stats", extra)
    assert code == 0, output
    assert len(opened) == 1
    assert "2 of 2 scenes mapped" in output
    for scene in scenes:
        segment_raster(scene, tmp_path / "single.tif", model, device="cpu", overwrite=True)
        assert (out / scene.name).read_bytes() == (tmp_path / "single.tif").read_bytes()
        assert (tmp_path / f"{scene.stem}-areas.json").exists()


def test_a_failure_is_reported_at_the_end(scenes: list[Path], model: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.tif").write_bytes(scenes[0].read_bytes()[:3000])
    order = [scenes[0], tmp_path / "broken.tif", scenes[1]]
    code, output = run(*order, tmp_path / "maps", "--model", model, "--device", "cpu")
    assert code == 1
    assert "2 of 3 scenes mapped" in output
    assert output.splitlines()[-1].startswith(f"Error: {tmp_path}/broken.tif is not a raster")
    assert sorted(path.name for path in (tmp_path / "maps").glob("*.tif")) == ["east.tif", "west.tif"]


def test_an_unexpected_failure_does_not_stop_the_others(
    scenes: list[Path], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iic_runtime.raster import segment

    make_plan = segment.make_plan

    def fail(info: SceneInfo, *arguments: Any, **options: Any) -> Plan:
        if info.path == str(scenes[0]):
            raise ZeroDivisionError("by chance")
        return make_plan(info, *arguments, **options)

    monkeypatch.setattr(segment, "make_plan", fail)
    code, output = run(*scenes, tmp_path / "maps", "--model", model, "--device", "cpu")
    assert code == 1
    assert "1 of 2 scenes mapped" in output
    assert output.splitlines()[-1].startswith(f"Error: {scenes[0]}: ")
    assert "ZeroDivisionError: by chance" in output.splitlines()[-1]
    assert (tmp_path / "maps" / "east.tif").exists()


@pytest.mark.parametrize(
    "item",
    [
        {"id": "a", "assets": {"d": {"href": 5}}},
        {"id": "a", "assets": {"d": {}}},
        {"id": "a", "assets": {"d": "x"}},
        {"id": "a", "assets": [1]},
        {"id": {"x": 1}, "assets": {"d": {"href": "x.tif"}}},
        {"id": "..", "assets": {"d": {"href": "x.tif"}}},
        {"id": "a\x1b", "assets": {"d": {"href": "x.tif"}}},
        {"assets": {"d": {"href": "x.tif"}}},
        5,
    ],
)
def test_wrong_stac_items_are_a_sentence(model: Path, tmp_path: Path, item: object) -> None:
    file = tmp_path / "items.json"
    file.write_text(json.dumps({"type": "FeatureCollection", "features": [item]}))
    code, output = run(file, tmp_path / "maps", "--model", model)
    assert code in (1, 2)
    assert output.splitlines()[-1].startswith("Error: ")
    assert "Unexpected error" not in output


def test_stac_that_is_nested_without_end(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "items.json"
    file.write_text("[" * 100_000)
    code, output = run(file, tmp_path / "maps", "--model", model)
    assert (code, "neither a STAC item" in output) == (1, True)


def test_the_same_command_resumes(scenes: list[Path], model: Path, tmp_path: Path) -> None:
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
    code, output = run(*scenes, out, "--model", model, "--device", "cpu", "--mosaic", mosaic)
    assert code == 0, output
    west, east = read_band(out / "west.tif"), read_band(out / "east.tif")
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
    assert np.array_equal(read_band(tmp_path / "moved" / "all.vrt"), expected)


@pytest.mark.gdal
def test_a_mosaic_names_its_classes(
    scenes: list[Path], model: Path, tmp_path: Path, gdalinfo: Callable[[Path], str]
) -> None:
    segment_rasters(scenes, tmp_path, model, device="cpu", mosaic=tmp_path / "all.vrt", overwrite=True)
    assert segment_rasters(scenes, tmp_path / "maps", model, device="cpu", mosaic=tmp_path / "all.vrt")
    output = gdalinfo(tmp_path / "all.vrt")
    assert "0: cluster 0" in output
    assert "Color Table" in output


def test_mosaics_that_cannot_be_written(
    scenes: list[Path], make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    coarse = make_scene(landscape(30, 30), "coarse.tif", transform=from_origin(500000, 5400000, 2, 2))
    out = tmp_path / "maps"
    code, output = run(scenes[0], coarse, out, "--model", model, "--mosaic", tmp_path / "all.vrt")
    assert code == 1
    assert "one CRS and pixel size" in output
    (tmp_path / "mine.vrt").write_text("<VRTDataset/>")
    code, output = run(*scenes, out, "--model", model, "--mosaic", tmp_path / "mine.vrt")
    assert code == 1
    assert "mine.vrt exists" in output
    assert run(*scenes, out, "--model", model, "--mosaic", tmp_path / "all.tif")[0] == 2


def test_lists_of_scenes(scenes: list[Path], model: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(f"# two scenes\n{scenes[0]}\n\neast.tif\n")
    code, output = run(listed, tmp_path / "one", "--model", model)
    assert code == 0, output
    items = [
        {"id": f"item/{i}", "assets": {"data": {"href": f"./{s.name}"}, "thumb": {"href": "t.png"}}}
        for i, s in enumerate(scenes)
    ]
    collection = tmp_path / "items.json"
    collection.write_text(json.dumps({"type": "FeatureCollection", "features": items}))
    code, output = run(collection, tmp_path / "two", "--model", model)
    assert code == 2
    assert "give --asset, one or more of data, thumb" in output
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
    with pytest.raises(ValueError, match=r"2 scenes would be called a-ortho\.tif"):
        segment_rasters([same[0], same[0]], tmp_path / "maps", model)


def test_wrong_usage(scenes: list[Path], model: Path, tmp_path: Path) -> None:
    code, output = run(*scenes, tmp_path / "map.tif", "--model", model)
    assert code == 2
    assert "need a folder" in output
    code, output = run(*scenes, tmp_path / "maps", "--model", model, "--polygons", tmp_path / "p.gpkg")
    assert code == 2
    assert "--polygons needs {name}" in output
    code, output = run(scenes[0], tmp_path / "map.tif", "--model", model, "--mosaic", tmp_path / "all.vrt")
    assert code == 2
    assert "--mosaic is for several scenes" in output
    assert not (tmp_path / "maps").exists()
