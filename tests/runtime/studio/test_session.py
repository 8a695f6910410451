"""Sessions: clicks, what they teach, and the map, without a page."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
from numpy.typing import NDArray
from pyogrio import raw, read_info
from rasterio.warp import transform as reproject
from support.scenes import NORTH, PIXEL, WEST, write_raster

from iic_geotools.classmap.classes import rgb
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.tiling import Rect
from iic_runtime import name_model, segment_raster
from iic_runtime.studio import Session
from iic_runtime.studio.clicks import CLASSES_KEY
from iic_runtime.studio.live import LiveSession
from iic_runtime.studio.session import _along
from iic_runtime.studio.tiles import TILE, TileAddress

SIDE = 300


def place(row: float, column: float) -> tuple[float, float]:
    return WEST + (column + 0.5) * PIXEL, NORTH - (row + 0.5) * PIXEL


def two_halves() -> NDArray[np.uint8]:
    """A bright half and a dark one, both with noise."""
    image = np.random.default_rng(0).normal(0, 6, (4, SIDE, SIDE)) + 60
    image[:, :, : SIDE // 2] += 90
    return np.clip(image, 1, 255).astype(np.uint8)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    image = two_halves()
    image[:, :40, :40] = 0
    return write_raster(tmp_path / "scene.tif", image, nodata=0)


def teach(session: Session) -> None:
    """Two classes, five clicks each: the bright and the dark half."""
    for row in (60, 110, 160, 210, 260):
        session.add("bright", [place(row, 70)])
        session.add("dark", [place(row, 230)])


def test_clicks_teach_a_map_and_come_back(scene: Path) -> None:
    with Session(scene) as session:
        teach(session)
        clicks, classes = session.clicks, session.classes
        labels, confidence = session.view(Rect(0, 0, SIDE, SIDE))
        assert (labels[:40, :40] == 255).all()
        assert (labels[60:, :130] == 0).mean() > 0.95
        assert (labels[60:, 170:] == 1).mean() > 0.95
        assert confidence[100, 70] > 128
    with Session(scene) as again:
        assert again.clicks == clicks
        assert again.classes == classes
        np.testing.assert_array_equal(again.view(Rect(0, 0, SIDE, SIDE))[0], labels)
        assert again.undo()
        assert again.clicks == clicks[:-1]


def test_the_saved_map_is_that_of_the_commands_and_of_the_view(scene: Path, tmp_path: Path) -> None:
    with Session(scene) as session:
        teach(session)
        mapped = session.save()
        assert session.is_map_current
        session.fit(full=True)
        labels, _ = session.view(Rect(0, 0, SIDE, SIDE))
        session.add("dark", [place(20, 230)])
        assert not session.is_map_current
        session.undo()
    folder = scene.with_suffix(".studio")
    name_model(None, folder / "clicks.gpkg", scene, tmp_path / "model.onnx")
    segment_raster(scene, tmp_path / "map.tif", tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == (folder / "model.onnx").read_bytes()
    assert (tmp_path / "map.tif").read_bytes() == (folder / "map.tif").read_bytes()
    with rasterio.open(folder / "map.tif") as dataset:
        np.testing.assert_array_equal(dataset.read(1), labels)
    assert [row.name for row in mapped.areas.classes] == ["bright", "dark"]
    assert (folder / "polygons.gpkg").exists()
    assert (folder / "areas.csv").exists()


def test_tiles_have_no_seams_and_coarse_ones_show_the_same_pixels(scene: Path) -> None:
    with Session(scene) as session:
        teach(session)
        whole, confidence = session.view(Rect(0, 0, SIDE, SIDE))
        for column, row in ((0, 0), (1, 0), (0, 1), (1, 1)):
            tile = session.tile(TileAddress(0, column, row))
            assert tile is not None
            place_of_tile = slice(row * TILE, (row + 1) * TILE), slice(column * TILE, (column + 1) * TILE)
            np.testing.assert_array_equal(tile[0], whole[place_of_tile])
            np.testing.assert_array_equal(tile[1], confidence[place_of_tile])
        coarse = session.tile(TileAddress(1, 0, 0))
        assert coarse is not None
        assert coarse[0].shape == (SIDE // 2, SIDE // 2)
        assert (coarse[0] == whole[::2, ::2]).mean() > 0.95
        with pytest.raises(UsageError, match="no tile"):
            session.tile(TileAddress(0, 9, 9))


def test_a_session_without_two_classes_has_nothing_to_show(scene: Path) -> None:
    with Session(scene) as session:
        session.add("bright", [place(60, 70)])
        assert session.fit() is None
        assert session.tile(TileAddress(0, 0, 0)) is None
        assert session.suggest([TileAddress(0, 0, 0)]) == []
        with pytest.raises(UsageError, match="at least two classes"):
            session.save()
        with pytest.raises(UsageError, match="Map the whole scene first"):
            session.draw(10)


def test_clicks_outside_and_on_nodata_are_refused(scene: Path) -> None:
    with Session(scene) as session:
        with pytest.raises(UsageError, match="outside the scene"):
            session.add("bright", [place(-1, 70)])
        with pytest.raises(UsageError, match="no data there"):
            session.add("bright", [place(10, 10)])
        with pytest.raises(UsageError, match="not a name"):
            session.add("  ", [place(60, 70)])
        assert session.clicks == ()
        assert session.classes == ()


def test_undo_redo_and_what_replaces_what(scene: Path) -> None:
    with Session(scene) as session:
        (first,) = session.add("bright", [place(60, 70)])
        assert session.add("bright", [place(60.2, 70.3)]) == ()  # the same pixel
        (second,) = session.add("dark", [place(60, 70)])
        assert session.clicks == (second,)
        session.undo()
        assert session.clicks == (first,)
        session.redo()
        assert session.clicks == (second,)
        session.remove([second.number])
        assert session.clicks == ()
        session.undo()
        assert session.clicks == (second,)
        session.remove_class("dark")
        assert [entry.name for entry in session.classes] == ["bright"]
        session.undo()
        assert session.clicks == (second,)
        assert [entry.name for entry in session.classes] == ["bright", "dark"]
        session.change_class("dark", new_name="shadow", colour="#112233")
        assert session.clicks[0].name == "shadow"
        while session.undo():
            pass
        assert not session.undo()
        assert session.clicks == ()


def test_a_stroke_is_clicks_at_equal_distances() -> None:
    assert _along([(0.0, 0.0), (10.0, 0.0), (10.0, 10.0)], 5.0) == [
        (0, 0),
        (5, 0),
        (10, 0),
        (10, 5),
        (10, 10),
    ]
    assert _along([(3.0, 4.0)], 5.0) == [(3, 4)]


def test_a_stroke_is_undone_at_once(scene: Path) -> None:
    with Session(scene) as session:
        clicks = session.add_stroke("bright", [place(60, 60), place(60, 120)])
        assert len(clicks) == 6
        session.undo()
        assert session.clicks == ()


def test_names_have_usual_colours(scene: Path) -> None:
    with Session(scene) as session:
        assert session.add_class("Water").colour == "#2b8cbe"
        assert session.add_class("water").colour != "#2b8cbe"
        assert session.add_class("harvested fields").colour == "#e3c75f"
        assert session.add_class("quarry", "#123456").colour == "#123456"
        unknown = session.add_class("something").colour
        others = [entry.colour for entry in session.classes[:-1]]
        assert (
            min(sum(abs(a - b) for a, b in zip(rgb(unknown), rgb(other), strict=True)) for other in others)
            > 100
        )
        with pytest.raises(UsageError, match="not a colour"):
            session.add_class("mud", "brown")


def test_what_cannot_be_written_is_kept_and_written_later(scene: Path) -> None:
    folder = scene.with_suffix(".studio")
    with Session(scene) as session:
        teach(session)
        folder.rename(folder.with_suffix(".away"))
        session.add("dark", [place(20, 200)])
        assert session.unsaved is not None
        assert "cannot be written" in session.unsaved
        assert len(session.clicks) == 11
        with pytest.raises(OutputError, match="cannot be written"):
            session.save()
        folder.with_suffix(".away").rename(folder)
        session.flush()
        assert session.unsaved is None
    with Session(scene) as again:
        assert len(again.clicks) == 11


def test_a_scene_that_vanishes_loses_no_click(scene: Path) -> None:
    with Session(scene) as session:
        teach(session)
        away = scene.rename(scene.with_name("away.tif"))
        with pytest.raises(SceneError, match="There is no file"):
            session.add("dark", [place(20, 200)])
        with pytest.raises(SceneError, match="There is no file"):
            session.imagery.tile("colour", TileAddress(0, 0, 0))
        assert len(session.clicks) == 10
        away.rename(scene)
        session.add("dark", [place(20, 200)])
        assert len(session.clicks) == 11
        write_raster(scene, two_halves()[:, :100, :100])
        with pytest.raises(SceneError, match="has become smaller"):
            session.add("dark", [place(200, 200)])
        assert len(session.clicks) == 11


def test_one_process_at_a_time(scene: Path) -> None:
    with Session(scene), pytest.raises(OutputError, match="Another studio"):
        Session(scene)
    Session(scene).close()


def test_suggestions_keep_away_from_clicks_and_each_other(scene: Path) -> None:
    with Session(scene) as session:
        teach(session)
        session.fit()
        places = session.suggest([TileAddress(0, column, row) for column in (0, 1) for row in (0, 1)])
        assert places
        pixels = np.array([session.pixel(*point) for point in places])
        clicked = np.array([session.pixel(click.x, click.y) for click in session.clicks])
        near = np.abs(pixels[:, None] - clicked[None]).max(-1)
        assert near.min() > 48
        labels, _ = session.view(Rect(0, 0, SIDE, SIDE))
        assert (labels[pixels[:, 0], pixels[:, 1]] != 255).all()


def test_answers_give_accuracy_with_an_interval(scene: Path) -> None:
    with Session(scene) as session:
        teach(session)
        session.save()
        for sample in session.draw(40):
            _, column = session.pixel(sample.x, sample.y)
            session.answer(sample.number, "bright" if column < SIDE // 2 else "dark")
        with pytest.raises(UsageError, match="has no class mud"):
            session.answer(1, "mud")
        with pytest.raises(UsageError, match="no place 41"):
            session.answer(41, "dark")
        assessment = session.assess()
        assert assessment.overall.value > 0.9
        assert assessment.overall.margin is not None
        assert session.files.report.exists()
    with Session(scene) as again:
        assert sum(bool(sample.name) for sample in again.samples.list()) == 40


def test_clicks_changed_in_qgis_are_read(scene: Path) -> None:
    with Session(scene) as session:
        teach(session)
        session.add_class("water")
    file = scene.with_suffix(".studio") / "clicks.gpkg"
    info = read_info(file)
    assert info["features"] == 10
    assert info["crs"] == "EPSG:32631"
    meta, _, geometry, fields = raw.read(file)
    names = list(meta["fields"])
    fields = [np.append(values, [None if values.dtype == object else 0]) for values in fields]
    fields[names.index("class")][-1] = "quarry"
    raw.write(file, np.append(geometry, geometry[:1]), fields, names, geometry_type="Point", crs=meta["crs"])
    with Session(scene) as again:
        assert [entry.name for entry in again.classes] == ["bright", "dark", "quarry"]
        assert len(again.clicks) == 11


def write_clicks_by_hand(scene: Path, crs: str = "EPSG:32631", listed: str = "[]", **fields: Any) -> None:
    """Write four clicks as QGIS or a script might."""
    xs, ys = np.transpose([place(row, column) for column in (70, 230) for row in (60, 160)])
    xs, ys = reproject("EPSG:32631", crs, xs, ys)
    folder = scene.with_suffix(".studio")
    folder.mkdir(exist_ok=True)
    fields = {"class": ["bright", "bright", "dark", "dark"], **fields}
    raw.write(
        *(folder / "clicks.gpkg", shapely.to_wkb(shapely.points(xs, ys))),
        *([np.array(values) for values in fields.values()], list(fields)),
        geometry_type="Point",
        crs=crs,
        layer_metadata={CLASSES_KEY: listed},
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"crs": "EPSG:3857"},
        {"class": [1, 1, 2, 2]},
        {"class": [1.0, 1.0, 2.5, 2.5]},
        {"class": [True, True, False, False]},
        {"step": ["x", "", "7", "8"]},
        {"step": [1e300, np.nan, np.inf, -3]},
        {"step": [2**63 - 1, -(2**63), 0, 1]},
        {"step": np.array(["2024-01-01"] * 4, "datetime64[D]")},
    ],
    ids=str,
)
def test_clicks_written_by_hand_are_read(scene: Path, changes: dict[str, Any]) -> None:
    write_clicks_by_hand(scene, **changes)
    with Session(scene) as session:
        assert [session.pixel(click.x, click.y) for click in session.clicks] == [
            (row, column) for column in (70, 230) for row in (60, 160)
        ]
        labels, _ = session.view(Rect(0, 0, SIDE, SIDE))
        assert labels[100, 70] != labels[100, 230]
        session.add("water", [place(20, 200)])
        assert session.undo()
    with Session(scene) as again:
        assert len(again.clicks) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listed": '[[null, "#112233"]]'}, "list of classes"),
        ({"listed": '[[["a"], "#112233"]]'}, "list of classes"),
        ({"listed": "[" * 100_000}, "list of classes"),
        ({"listed": json.dumps([[f"k{n}", "#112233"] for n in range(253)])}, "255 classes"),
        ({"class": ["a\x1b[2J"] * 4}, "cannot be used"),
    ],
    ids=["null", "list", "deep", "too many", "control"],
)
def test_clicks_that_no_studio_can_show_are_refused(
    scene: Path, changes: dict[str, Any], message: str
) -> None:
    write_clicks_by_hand(scene, **changes)
    with pytest.raises(SceneError, match=message):
        Session(scene)


def test_clicks_of_another_scene_are_refused(scene: Path) -> None:
    write_clicks_by_hand(scene)
    write_raster(scene, two_halves()[:, :, :200], nodata=0)
    with pytest.raises(SceneError, match=r"2 of the 4 clicks in .* lie outside the scene"):
        Session(scene)


def test_a_scene_without_crs_is_taught_by_a_named_model(tmp_path: Path) -> None:
    image = two_halves()
    scene = write_raster(tmp_path / "plain.tif", image, crs=None, transform=rasterio.Affine.identity())
    with Session(scene, model="aerial") as session:
        for row in (60, 160, 260):
            session.add("bright", [(70.5, row)])
            session.add("dark", [(230.5, row)])
        labels, _ = session.view(Rect(0, 0, SIDE, SIDE))
        mapped = session.save()
        assert mapped.areas.method == "none"
    with Session(scene, model="aerial") as again:
        assert len(again.clicks) == 6
    with rasterio.open(scene.with_suffix(".studio") / "map.tif") as dataset:
        assert (dataset.read(1) == labels).mean() > 0.95


def test_why_there_is_no_map_before_the_first_click(tmp_path: Path) -> None:
    scene = write_raster(tmp_path / "radar.tif", np.ones((2, 60, 60), np.float32))
    with Session(scene, tmp_path / "out") as session:
        assert session.bundled is None
        assert "no band named red" in session.unmapped
        assert LiveSession(session).scene()["unmapped"] == session.unmapped


def test_a_file_that_holds_no_clicks_is_refused(scene: Path) -> None:
    folder = scene.with_suffix(".studio")
    folder.mkdir()
    (folder / "clicks.gpkg").write_bytes(b"not a GeoPackage")
    with pytest.raises(SceneError, match="cannot be read"):
        Session(scene)
    assert (folder / "clicks.gpkg").read_bytes() == b"not a GeoPackage"
    (folder / "clicks.gpkg").unlink()
    Session(scene).close()


def test_clusters_are_a_start(scene: Path) -> None:
    with Session(scene) as session:
        clusters = session.find_clusters(2)
        assert sum(cluster.share for cluster in clusters) == pytest.approx(1)
        sides = [{session.pixel(*point)[1] < SIDE // 2 for point in cluster.points} for cluster in clusters]
        assert sorted(map(tuple, sides)) == [(False,), (True,)]  # each in one half, and in another one
        assert session.cluster_tile(TileAddress(0, 0, 0)) is not None
        for number in (0, 1):
            assert len(session.name_cluster(number, f"thing {number}")) > 1
        labels, _ = session.view(Rect(0, 0, SIDE, SIDE))
        assert (labels[60:, :130] == labels[200, 50]).mean() > 0.95
        assert labels[200, 50] != labels[200, 250]
        with pytest.raises(UsageError, match="no cluster 2"):
            session.name_cluster(2, "water")


def test_a_picture_of_a_scene_without_infrared_for_a_model_that_can_do_without(tmp_path: Path) -> None:
    scene = write_raster(tmp_path / "scene.tif", two_halves()[:3])
    with Session(scene) as session:
        assert session.bundled is not None
        assert session.imagery.composites == {"colour": (1, 2, 3)}
        teach(session)
        assert session.fit().classes == ("bright", "dark")
