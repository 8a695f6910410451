from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.crs import CRS
from support.maps import LAMBERT, TRANSFORM, make_classes, write_map

from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.vrt import check_mosaic, lay_out, write_mosaic
from iic_geotools.errors import OutputError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect

GRID = GeoBox(40, 30, TRANSFORM, LAMBERT)


def test_grids_are_laid_out_to_the_nearest_pixel() -> None:
    moved = GeoBox(10, 10, TRANSFORM @ Affine.translation(-20, 25.0001), LAMBERT)
    whole, rects = lay_out([GRID, moved], ["a", "b"])
    assert rects == [Rect(20, 0, 40, 30), Rect(0, 25, 10, 10)]
    assert (whole.width, whole.height) == (60, 35)
    assert whole.transform @ (20, 0) == pytest.approx(TRANSFORM @ (0, 0))


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (GeoBox(9, 9, TRANSFORM, CRS.from_epsg(32631)), "one CRS"),
        (GeoBox(9, 9, TRANSFORM @ Affine.scale(1.01), LAMBERT), "pixel size"),
        (GeoBox(9, 9, Affine.identity(), LAMBERT), "georeferenced"),
    ],
)
def test_grids_of_different_kinds_are_refused(other: GeoBox, problem: str) -> None:
    with pytest.raises(OutputError, match=rf"`mosaic` needs .*{problem}"):
        lay_out([GRID, other], ["a", "b"])


def test_later_maps_lie_over_earlier_ones_and_holes_show_through(tmp_path: Path) -> None:
    over = np.full((20, 20), 2, np.uint8)
    over[:10] = NODATA
    maps = [
        write_map(tmp_path / "a.tif", np.full((20, 20), 1, np.uint8)),
        write_map(tmp_path / "b.tif", over, transform=TRANSFORM @ Affine.translation(10, 0)),
    ]
    write_mosaic(maps, tmp_path / "all.vrt", make_classes(3))
    with rasterio.open(tmp_path / "all.vrt") as dataset:
        labels = dataset.read(1)
        assert dataset.colormap(1)[2] == (0, 158, 115, 255)
        assert dataset.tags()["IIC_MOSAIC"] == "2 maps"
    assert labels.shape == (20, 30)
    assert (labels[:10, :20] == 1).all()
    assert (labels[10:, 10:] == 2).all()
    assert (labels[:10, 20:] == NODATA).all()


def test_only_mosaics_are_replaced(tmp_path: Path) -> None:
    mosaic = tmp_path / "all.vrt"
    write_mosaic([write_map(tmp_path / "a.tif", np.ones((5, 5), np.uint8))], mosaic, make_classes(3))
    check_mosaic(mosaic, overwrite=False)
    mosaic.write_text("<VRTDataset/>")
    with pytest.raises(OutputError, match="`overwrite`"):
        check_mosaic(mosaic, overwrite=False)
    check_mosaic(mosaic, overwrite=True)
    with pytest.raises(UsageError, match=r"\.vrt"):
        check_mosaic(tmp_path / "all.tif", overwrite=True)
    with pytest.raises(OutputError, match="no folder"):
        check_mosaic(tmp_path / "missing" / "all.vrt", overwrite=True)
