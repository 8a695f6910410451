from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio.shutil
from support.sources import noise

from iic_geotools.errors import SceneError
from iic_geotools.scene.info import describe

MakeScene = Callable[..., Path]


def test_an_alpha_band_read_as_infrared_is_not_a_mask(make_scene: MakeScene) -> None:
    info = describe(str(make_scene(noise(), photometric="RGB", alpha="YES")))
    assert info.interpretations == ("red", "green", "blue", "alpha")
    assert info.has_mask((1, 2, 3))
    assert not info.has_mask((1, 2, 3, 4))


def test_bands_with_nodata_values_of_their_own(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(noise(), nodata=0)
    rasterio.shutil.copy(scene, tmp_path / "scene.vrt", driver="VRT")
    text = (tmp_path / "scene.vrt").read_text()
    (tmp_path / "scene.vrt").write_text(text.replace("<NoDataValue>0", "<NoDataValue>7", 1))
    info = describe(str(tmp_path / "scene.vrt"))
    assert info.nodata_of((2, 3, 4)) == 0
    assert info.nodata_of((1,)) == 7
    with pytest.raises(SceneError, match=r"different nodata values \(0, 7\).*`nodata`"):
        info.nodata_of((1, 2))


def test_files_that_are_not_scenes(tmp_path: Path, make_scene: MakeScene) -> None:
    with pytest.raises(SceneError, match="There is no file"):
        describe(str(tmp_path / "no.tif"))
    (tmp_path / "text.tif").write_text("not a raster")
    with pytest.raises(SceneError, match="not a raster that GDAL can open"):
        describe(str(tmp_path / "text.tif"))
    with pytest.raises(SceneError, match="complex numbers"):
        describe(str(make_scene(noise().astype(np.complex64))))


def test_bands_of_different_types(make_scene: MakeScene, tmp_path: Path) -> None:
    rasterio.shutil.copy(make_scene(noise()), tmp_path / "scene.vrt", driver="VRT")
    text = (tmp_path / "scene.vrt").read_text()
    (tmp_path / "scene.vrt").write_text(
        text.replace('dataType="Byte" band="2"', 'dataType="UInt16" band="2"')
    )
    info = describe(str(tmp_path / "scene.vrt"))
    assert info.dtype_of((1, 3)) == "uint8"
    with pytest.raises(SceneError, match=r"different types \(uint16, uint8\)"):
        info.dtype_of((1, 2))
