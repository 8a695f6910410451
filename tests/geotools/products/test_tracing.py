import numpy as np
import pytest
import rasterio
import rasterio.features
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from support.maps import random_labels, write_map

from iic_geotools.classmap.classes import NODATA
from iic_geotools.products import polygons


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    tile=st.sampled_from([1, 7, 16, 33, 2048]),
    patch=st.sampled_from([1, 3, 10]),
    seed=st.integers(0, 10_000),
)
def test_regions_are_those_of_the_whole_map_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, size: tuple[int, int], tile: int, patch: int, seed: int
) -> None:
    pixels = random_labels(*size, 3, seed, patch)
    path = write_map(tmp_path_factory.mktemp("m") / "map.tif", pixels)
    whole = rasterio.features.shapes(pixels, mask=pixels != NODATA, connectivity=4)
    expected = {(shapely.normalize(shapely.geometry.shape(shape)), int(value)) for shape, value in whole}
    present = np.ones((-(-size[0] // 32), -(-size[1] // 32)), bool)
    with pytest.MonkeyPatch.context() as monkeypatch, rasterio.open(path) as dataset:
        monkeypatch.setattr(polygons, "TILE", tile)
        regions = list(polygons.trace_regions(dataset, present, (32, 32)))
    assert len(regions) == len(expected)
    assert all(shape.is_valid for shape, _ in regions)
    assert {(shapely.normalize(shape), value) for shape, value in regions} == expected
