from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine

from iic_geotools.classmap.cog import is_whole, tile_tables


@pytest.mark.parametrize("layout", [{}, {"BIGTIFF": "YES"}, {"ENDIANNESS": "BIG"}])
@pytest.mark.parametrize("side", [16, 300])
def test_tables_agree_with_gdal(tmp_path: Path, layout: dict[str, str], side: int) -> None:
    path = tmp_path / "tiled.tif"
    pixels = np.random.default_rng(0).integers(0, 255, (side, side), dtype=np.uint8)
    profile = {"driver": "GTiff", "count": 1, "dtype": "uint8", "width": side, "height": side}
    tiling = {"tiled": True, "blockxsize": 64, "blockysize": 64, "transform": Affine(2, 0, 0, 0, -2, 0)}
    with rasterio.open(path, "w", **profile, **tiling, **layout, compress="deflate") as dst:
        dst.write(pixels, 1)
    (table,) = tile_tables(path)
    across = -(-side // 64)
    with rasterio.open(path) as src:
        for y in range(across):
            for x in range(across):
                for key, numbers in (("OFFSET", table.offsets), ("SIZE", table.counts)):
                    expected = src.get_tag_item(f"BLOCK_{key}_{x}_{y}", "TIFF", bidx=1)
                    assert numbers[y * across + x] == int(expected)
    assert is_whole(path, [across**2])
    assert not is_whole(path, [across**2 + 1])
    assert not is_whole(path, [across**2, 1])
    whole = path.read_bytes()
    for length in (0, 3, 9, table.end - 1):
        path.write_bytes(whole[:length])
        assert not is_whole(path, [across**2])
