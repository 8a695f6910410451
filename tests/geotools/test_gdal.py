import ast
from pathlib import Path

import pytest
import rasterio.shutil
from rasterio.crs import CRS
from rasterio.errors import RasterioError
from rasterio.warp import transform

from iic_geotools.gdal import gdal_errors, vsi_name


def test_errors_of_gdal_are_public() -> None:
    with pytest.raises(RasterioError, match="projection domain"), gdal_errors():
        transform(CRS.from_string("+proj=ortho +lat_0=40"), CRS.from_epsg(4326), [1e7], [1e7])
    with pytest.raises(RasterioError), gdal_errors():
        rasterio.shutil.copy("missing.tif", "copy.tif", driver="GTiff")


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), gdal_errors():
        raise ZeroDivisionError


def test_nothing_private_of_rasterio_is_imported() -> None:
    root = Path(__file__).parents[2]
    for path in sorted(root.glob("[!.]*/iic_*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import | ast.ImportFrom):
                prefix = f"{names[0]}." if names else ""
                names += [prefix + alias.name for alias in node.names]
            private = [name for name in names if name.startswith("rasterio.") and "._" in name]
            assert not private, f"{path} imports {private}"


@pytest.mark.parametrize(
    "address",
    [
        "a.tif", "/data/a.tif", "a/b:c.vrt", "NETCDF:a.nc:red", "/vsizip/a.zip/b.tif", "zip://./a.zip",
        "zip:///data/a.zip!in/b.tif", "zip:///data/a.zip!/b.tif", "tar:///data/a.tar!b.tif", "gzip://a.gz", "file:///data/a.tif",
        "https://example.org/a.tif", "http://example.org/a.tif?x=1", "ftp://example.org/a.tif", "s3://bucket/a.tif",
        "gs://bucket/a.tif", "az://box/a.tif", "zip+https://example.org/a.zip!b.tif", "zip+s3://bucket/a.zip!b.tif",
    ],
)  # fmt: skip
def test_names_are_those_that_rasterio_itself_gives_to_gdal(address: str) -> None:
    from rasterio._path import _parse_path

    assert vsi_name(address) == _parse_path(address).as_vsi()
