"""The plan of a run: plain data for other processes, with one fingerprint."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rasterio.transform import from_origin
from support.scenes import landscape
from support.tiny_onnx import make_model

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.products.cleaning import Cleaning
from iic_geotools.scene.info import describe
from iic_geotools.tiling import Rect
from iic_runtime import Segmenter, segment_raster
from iic_runtime.options import ProductSettings, SegmentSettings
from iic_runtime.raster.plan import Outputs, Plan, Unsure, fingerprint, make_plan, parts_manifest
from iic_runtime.raster.stages import gdal_options

MakeScene = Callable[..., Path]


@pytest.fixture
def segmenter(model: Path) -> Segmenter:
    return Segmenter(model, device="cpu", tile=64)


@pytest.fixture
def plan(make_scene: MakeScene, segmenter: Segmenter, tmp_path: Path) -> Plan:
    """The plan of a scene with everything that a plan may hold."""
    triangle = [[500005, 5399995], [500040, 5399990], [500010, 5399965], [500005, 5399995]]
    feature = {
        "type": "Feature",
        "properties": {},
        "geometry": {"type": "Polygon", "coordinates": [triangle]},
    }
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32631"}}
    aoi = tmp_path / "aoi.geojson"
    aoi.write_text(json.dumps({"type": "FeatureCollection", "crs": crs, "features": [feature]}))
    outputs = Outputs(tmp_path / "map.tif", ProductSettings(polygons=tmp_path / "p.gpkg", min_area=2.0))
    info = describe(str(make_scene(landscape(90, 120), nodata=0)))
    return make_plan(info, segmenter, outputs, SegmentSettings(rescale="auto", aoi=aoi))


def with_products(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, outputs=replace(plan.outputs, products=replace(plan.outputs.products, **changes)))


def test_a_plan_can_be_sent_to_another_process(plan: Plan) -> None:
    plan.parts()  # what a plan computes when it is used must not matter
    received: Plan = pickle.loads(pickle.dumps(plan))
    assert fingerprint(received) == fingerprint(plan)
    assert parts_manifest(received) == parts_manifest(plan)
    assert [part.rect for part in received.parts()] == [part.rect for part in plan.parts()]
    assert plan.area is not None
    assert received.area is not None
    whole = Rect(0, 0, 120, 90)
    assert np.array_equal(received.area.inside(whole), plan.area.inside(whole))


def test_workers_in_another_folder_find_scene_and_parts(
    plan: Plan, segmenter: Segmenter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = make_plan(
        describe("scene.tif"), segmenter, Outputs(Path("map.tif")), SegmentSettings()
    ).for_workers(threads=3)
    assert relative.reading.path == str(tmp_path / "scene.tif")
    assert relative.outputs.parts == tmp_path / "map.tif.parts"
    assert relative.engine.threads == 3


def test_the_fingerprint_does_not_depend_on_how_a_map_is_computed(plan: Plan, tmp_path: Path) -> None:
    engine = replace(plan.engine, tile=32, batch=3, threads=1)
    for same in (
        replace(plan, engine=engine),
        replace(plan, outputs=replace(plan.outputs, map=tmp_path / "other.tif")),
        with_products(plan, stats=tmp_path / "s.json"),
        with_products(plan, confidence=tmp_path / "c.tif"),
    ):
        assert fingerprint(same) == fingerprint(plan)
    assert parts_manifest(replace(plan, engine=engine)) != parts_manifest(plan), (
        "parts have the size of tiles"
    )


def test_the_fingerprint_depends_on_what_decides_the_outputs(plan: Plan) -> None:
    others = [
        replace(plan, region=Rect(0, 0, 50, 50)),
        replace(plan, area=None),
        replace(plan, model_digest="other"),
        replace(plan, provider="other"),
        replace(plan, version="other"),
        replace(plan, reading=replace(plan.reading, nodata=1)),
        replace(plan, reading=replace(plan.reading, rescale=None)),
        replace(plan, unsure=Unsure(0.5, 255)),
        replace(plan, unsure=Unsure(0.6, 255)),
        replace(plan, unsure=Unsure(0.5, 4)),
        with_products(plan, min_area=1.0),
        with_products(plan, simplify=1.0),
        replace(plan, outputs=replace(plan.outputs, cleaning=Cleaning(sieve=1.0))),
        replace(plan, outputs=replace(plan.outputs, cleaning=Cleaning(majority=1))),
        replace(plan, outputs=replace(plan.outputs, creation={"COMPRESS": "ZSTD"})),
    ]
    assert len({fingerprint(other) for other in [plan, *others]}) == 1 + len(others)


def test_absurd_work_is_refused_with_a_number(
    make_scene: MakeScene, segmenter: Segmenter, tmp_path: Path
) -> None:
    info = describe(str(make_scene(landscape(90, 120), nodata=0)))
    huge = replace(info, grid=replace(info.grid, width=2**31 - 1, height=2**31 - 1))
    with pytest.raises(SceneError, match=r"4\.61e\+18 pixels of 2147483647 x 2147483647 .*`bounds`"):
        make_plan(huge, segmenter, Outputs(tmp_path / "map.tif"), SegmentSettings())
    left, top = info.grid.transform.c, info.grid.transform.f
    settings = SegmentSettings(bounds=(left, top - 10, left + 10, top))
    plan = make_plan(huge, segmenter, Outputs(tmp_path / "map.tif"), settings)
    assert plan.region == Rect(0, 0, 20, 20)


def test_rows_of_jpeg_2000_stay_decoded(plan: Plan) -> None:
    """Blocks of Sentinel-2 are 1024 px high, and up to three rows of tiles touch each of them."""
    wide = replace(plan.scene, grid=replace(plan.scene.grid, width=10_980), block=(1024, 1024))
    composed = "<VRTDataset><SourceFilename>B04.jp2</SourceFilename></VRTDataset>"
    row = 10_980 * (1024 + 1024) * 4 * 2
    changes: list[dict[str, Any]] = [{}, {"driver": "JP2OpenJPEG"}, {"path": composed}]
    scenes = [replace(wide, **change) for change in changes]
    caches = [int(gdal_options(replace(plan, scene=scene))["GDAL_CACHEMAX"]) for scene in scenes]
    assert [cache >= row for cache in caches] == [False, True, True]


def test_pixels_are_not_refined_without_end(make_scene: MakeScene, tmp_path: Path) -> None:
    model = tmp_path / "fine.onnx"
    model.write_bytes(make_model(gsd=0.5))
    scene = make_scene(landscape(90, 120), crs="EPSG:4326", transform=from_origin(-180, 90, 3, 2))
    with pytest.raises(SceneError, match=r"120 x 90 pixels of .* m as \d+ x \d+ pixels of 0.5 m"):
        segment_raster(scene, tmp_path / "map.tif", model, device="cpu", match_gsd=True)


@pytest.mark.parametrize("name", ["x" * 201 + ".tif", "\udcff.tif"])
def test_names_of_outputs_that_cannot_be_written(
    make_scene: MakeScene, model: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(UsageError, match=r"The name .*give"):
        segment_raster(make_scene(landscape(40, 50)), tmp_path / name, model, device="cpu")


@pytest.mark.parametrize("batch", [10**9, 10**18])
def test_what_no_machine_has_the_memory_for(model: Path, batch: int) -> None:
    with pytest.raises(UsageError, match=r"needs about .* GiB .* this machine has"):
        Segmenter(model, device="cpu", batch=batch)


def test_a_tile_may_be_larger_than_the_scene_but_not_than_the_memory(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    segmenter = Segmenter(model, device="cpu", tile=10**7)
    info = describe(str(make_scene(landscape(90, 120), nodata=0)))
    make_plan(info, segmenter, Outputs(tmp_path / "map.tif"), SegmentSettings())
    large = replace(info, grid=replace(info.grid, width=900_000, height=900_000))
    with pytest.raises(UsageError, match=r"A `tile` of 900000 px .* needs about .* GiB .* this machine has"):
        make_plan(large, segmenter, Outputs(tmp_path / "map.tif"), SegmentSettings())


@pytest.mark.parametrize("threads", [0, -1, 1000, 10**12])
def test_threads_without_end(model: Path, threads: int) -> None:
    with pytest.raises(UsageError, match="`threads` must be 1 to"):
        Segmenter(model, device="cpu", threads=threads)
