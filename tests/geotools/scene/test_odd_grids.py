"""Scenes whose grid or size makes no sense are refused with a sentence, before any work."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.sources import noise

from iic_geotools.errors import SceneError
from iic_geotools.scene.bands import list_bands
from iic_geotools.scene.info import describe

MakeScene = Callable[..., Path]


def virtual(source: Path, transform: str = "0,1,0,0,0,-1", width: int = 60, height: int = 40) -> str:
    bands = "".join(
        f'<VRTRasterBand dataType="Byte" band="{band}"><SimpleSource><SourceFilename>{source}</SourceFilename>'
        f"<SourceBand>{band}</SourceBand></SimpleSource></VRTRasterBand>"
        for band in range(1, 5)
    )
    return (
        f'<VRTDataset rasterXSize="{width}" rasterYSize="{height}"><SRS>EPSG:32631</SRS>'
        f"<GeoTransform>{transform}</GeoTransform>{bands}</VRTDataset>"
    )


@pytest.mark.parametrize(
    "transform",
    [
        "0,0,0,0,0,0",
        "0,1,1,0,1,1",
        "nan,1,0,0,0,-1",
        "0,nan,0,0,0,-1",
        "0,inf,0,0,0,-1",
        "0,1e300,0,0,0,-1e300",
        "0,1e-300,0,0,0,-1e-300",
        "1e200,1,0,0,0,-1",
    ],
)
def test_transforms_that_place_no_pixel(make_scene: MakeScene, transform: str) -> None:
    with pytest.raises(SceneError, match="gives its pixels no place or no size"):
        describe(virtual(make_scene(noise()), transform))


@pytest.mark.parametrize("transform", ["0,0,1,0,-1,0", "0,1,0.3,0,0.3,-1", "5,1e-9,0,5,0,1e-9"])
def test_turned_sheared_and_tiny_pixels_have_a_place(make_scene: MakeScene, transform: str) -> None:
    assert describe(virtual(make_scene(noise()), transform)).grid.width == 60


def test_a_raster_without_pixels(make_scene: MakeScene) -> None:
    with pytest.raises(SceneError):
        describe(virtual(make_scene(noise()), height=0))


@pytest.mark.parametrize("path", ["x" * 300 + ".tif", "a\0b.tif", "\udcff.tif", "", "<VRTDataset>"])
def test_names_that_cannot_be_files(path: str) -> None:
    with pytest.raises(SceneError):
        describe(path)


@pytest.mark.timeout(120)  # work that grows with the square of the bands takes ten times as long
def test_thousands_of_bands_are_described(make_scene: MakeScene) -> None:
    many = make_scene(np.zeros((8_000, 1, 1), np.uint8), "many.tif", descriptions=None, interleave="band")
    assert len(describe(str(many)).interpretations) == 8_000


def test_a_sentence_does_not_list_thousands_of_bands() -> None:
    text = list_bands(("x" * 100,) * 4000, ("undefined",) * 4000)
    assert text.endswith("and 3976 more")
    assert len(text) < 2000
