from collections.abc import Callable
from pathlib import Path

import numpy as np
import rasterio
from rasterio.transform import from_origin
from support.sources import make_source, noise

from iic_geotools.scene.scene import Coverage
from iic_geotools.tiling import Rect

MakeScene = Callable[..., Path]


def sparse_vrt(folder: Path, tile: Path, side: int, nodata: str) -> Path:
    band = (
        f"{nodata}<SimpleSource><SourceFilename relativeToVRT='1'>{tile.name}</SourceFilename>"
        "<SourceBand>{0}</SourceBand><SrcRect xOff='0' yOff='0' xSize='60' ySize='40'/>"
        "<DstRect xOff='100' yOff='200' xSize='60' ySize='40'/></SimpleSource>"
    )
    bands = "".join(
        f"<VRTRasterBand dataType='Byte' band='{i}'>{band.format(i)}</VRTRasterBand>" for i in (1, 2, 3, 4)
    )
    path = folder / "sparse.vrt"
    path.write_text(f"<VRTDataset rasterXSize='{side}' rasterYSize='{side}'>{bands}</VRTDataset>")
    return path


def test_holes_of_a_mosaic_are_known_without_reading(make_scene: MakeScene, tmp_path: Path) -> None:
    tile = make_scene(noise(), nodata=0)
    path = sparse_vrt(tmp_path, tile, 100000, "<NoDataValue>0</NoDataValue>")
    with make_source(path, nodata=0.0).open() as scene:
        assert not scene.may_hold_data(Rect(0, 0, 100, 100000))
        assert scene.may_hold_data(Rect(0, 0, 101, 201))
        assert not scene.may_hold_data(Rect(160, 0, 99840, 100000))
    with make_source(path, nodata=7.0).open() as scene:  # a hole reads as 0, which is a value here
        assert scene.may_hold_data(Rect(0, 0, 10, 10))


def test_holes_without_a_nodata_value_are_zeros(make_scene: MakeScene, tmp_path: Path) -> None:
    path = sparse_vrt(tmp_path, make_scene(noise()), 1000, "")
    with make_source(path).open() as scene:
        assert scene.may_hold_data(Rect(0, 0, 10, 10))


def test_blocks_of_a_sparse_tiff_are_known_without_reading(tmp_path: Path) -> None:
    path = tmp_path / "sparse.tif"
    profile = {"width": 4000, "height": 4000, "count": 4, "dtype": "uint8", "nodata": 0, "crs": "EPSG:32631"}
    with rasterio.open(
        path, "w", driver="GTiff", tiled=True, sparse_ok=True, transform=from_origin(0, 0, 1, 1), **profile
    ) as dataset:
        dataset.write(np.ones((4, 256, 256), np.uint8), window=((512, 768), (256, 512)))
    with make_source(path, nodata=0.0).open() as scene:
        assert scene.may_hold_data(Rect(0, 0, 300, 600))
        assert not scene.may_hold_data(Rect(0, 0, 4000, 512))
        assert not scene.may_hold_data(Rect(600, 0, 3000, 4000))


def test_a_scaled_coverage_leaves_the_first_as_it_was(make_scene: MakeScene, tmp_path: Path) -> None:
    path = sparse_vrt(tmp_path, make_scene(noise(), nodata=0), 1000, "<NoDataValue>0</NoDataValue>")
    with rasterio.open(path) as dataset:
        coverage = Coverage.of(dataset, (1, 2, 3, 4), 0.0, masked=False)
        half = coverage.scaled((500, 500))
        # The source covers columns 100 to 159: 50 to 79 at half the resolution, and a margin for resampling.
        assert not coverage.touches(Rect(0, 0, 99, 1000))
        assert half.touches(Rect(0, 0, 51, 500))
        assert not half.touches(Rect(0, 0, 40, 500))
        assert not half.touches(Rect(90, 0, 410, 500))
        assert not coverage.touches(Rect(0, 0, 99, 1000))
