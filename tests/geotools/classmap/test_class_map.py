"""Maps that exist: names, colours and values as they were written."""

from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from support.maps import LAMBERT, TRANSFORM, make_classes, random_labels, write_map

from iic_geotools.classmap.alignment import common_rect, shared_pixels, view_on
from iic_geotools.classmap.class_map import open_map
from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.cog import assemble
from iic_geotools.classmap.map_writer import place_files, write_windows
from iic_geotools.classmap.vrt import write_mosaic
from iic_geotools.errors import SceneError
from iic_geotools.files import scratch_folder
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect

CLASSES = make_classes(5)


def test_a_map_of_ours_and_a_mosaic_of_it(tmp_path: Path) -> None:
    labels = random_labels(90, 70, 5)
    part = write_map(tmp_path / "part.tif", labels)
    grid = GeoBox(70, 90, TRANSFORM, LAMBERT)
    assemble(
        [(part, Rect(0, 0, 70, 90))], tmp_path / "map.tif", grid, classes=CLASSES, tags={"IIC_MODEL": "x"}
    )
    write_mosaic([tmp_path / "map.tif"], tmp_path / "all.vrt", CLASSES)
    for name in ("map.tif", "all.vrt"):
        with open_map(tmp_path / name) as class_map:
            assert class_map.classes == tuple(CLASSES)
            assert class_map.has_names
            assert (class_map.read(Rect(10, 20, 30, 40)) == labels[20:60, 10:40]).all()
            assert not class_map.grid.differences(grid)


def test_a_map_without_names_has_numbers(tmp_path: Path) -> None:
    with open_map(write_map(tmp_path / "map.tif", random_labels(9, 9, 5))) as class_map:
        assert not class_map.has_names
        assert class_map.names[:2] == ["class 0", "class 1"]
        assert len(class_map.classes) == 254


def test_windows_make_a_map(tmp_path: Path) -> None:
    labels = random_labels(600, 700, 5, patch=40)
    labels[:550, :600] = NODATA
    grid = GeoBox(700, 600, TRANSFORM, LAMBERT)
    rects = [Rect(0, 0, 700, 300), Rect(0, 300, 350, 300), Rect(350, 300, 350, 300)]
    with scratch_folder(tmp_path / "map.tif") as folder:
        windows = ((rect, labels[rect.slices]) for rect in rects)
        place_files(
            write_windows(tmp_path / "map.tif", folder, grid, windows, classes=CLASSES, tags={"A": "b"})
        )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["map.qml", "map.tif", "map.tif.aux.xml"]
    with open_map(tmp_path / "map.tif") as class_map:
        assert (class_map.read(Rect(0, 0, 700, 600)) == labels).all()
        assert class_map.tags["A"] == "b"
        assert class_map.dataset.overviews(1) == [2]


def test_grids_that_share_pixels() -> None:
    grid = GeoBox(100, 80, TRANSFORM, LAMBERT)
    assert shared_pixels(grid, grid.crop(Rect(7, 9, 20, 30))) == (7, 9)
    assert shared_pixels(grid, GeoBox(20, 30, TRANSFORM @ Affine.translation(0.4, 0), LAMBERT)) is None
    assert shared_pixels(grid, GeoBox(20, 30, TRANSFORM @ Affine.scale(0.5), LAMBERT)) is None
    assert shared_pixels(grid, GeoBox(200, 30, TRANSFORM, LAMBERT)) is None
    assert common_rect(grid, (GeoBox(50, 80, TRANSFORM @ Affine.translation(60, -3), LAMBERT),)) == Rect(
        60, 0, 40, 77
    )
    assert common_rect(grid, (GeoBox(5, 5, TRANSFORM @ Affine.translation(100, 0), LAMBERT),)).empty


def test_a_view_takes_the_value_under_the_centre(tmp_path: Path) -> None:
    labels = random_labels(40, 50, 5)
    turned = TRANSFORM @ Affine.translation(5, 8) @ Affine.rotation(20) @ Affine.scale(0.7)
    grid = GeoBox(30, 20, turned, LAMBERT)
    with (
        open_map(write_map(tmp_path / "map.tif", labels)) as class_map,
        view_on(class_map.dataset, grid, 254, class_map.path) as view,
    ):
        whole = view.read(Rect(0, 0, 30, 20))
        assert (view.read(Rect(11, 3, 9, 13)) == whole[3:16, 11:20]).all()
    to_map = ~TRANSFORM @ turned
    for row, column in np.ndindex(20, 30):
        x, y = to_map @ (column + 0.5, row + 0.5)
        inside = 0 <= x < 50 and 0 <= y < 40
        assert whole[row, column] == (labels[int(y), int(x)] if inside else NODATA)


def test_a_damaged_map(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.tif", random_labels(400, 400, 5))
    path.write_bytes(path.read_bytes()[:5000] + bytes(1000))
    with pytest.raises(SceneError), open_map(path) as class_map:
        class_map.read(Rect(0, 0, 400, 400))
