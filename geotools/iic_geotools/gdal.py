"""GDAL's errors as one public class, its names of files, and what it may do over the network."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import rasterio.env
from rasterio.errors import RasterioError

NETWORK_VARIABLE = "IIC_ALLOW_NETWORK"
"""Set to 1, this environment variable lets local files refer to addresses."""
_REMOTE_FILE = r"/vsi(?:curl|s3|gs|az|adls|oss|swift|webhdfs|hdfs)(?:_streaming)?[/?]"
# An address anywhere in a name, as in NETCDF:"http://...", or a driver that reads from a service.
_REMOTE = re.compile(
    rf"{_REMOTE_FILE}|(?:https?|ftp|s3|gs|az)://"
    r"|^(?:WMS|WMTS|WCS|IIP|DAAS|PLMosaic|EEDAI?|OGCAPI|OAPIF(?:_COLLECTION)?|NGW|PG|AGS|WFS3?|CSW|ES|Carto):",
    re.IGNORECASE,
)
# What GDAL calls the schemes of rasterio's addresses; a local file has no handler.
_HANDLERS = {
    "zip": "zip", "tar": "tar", "gzip": "gzip", "file": "", "http": "curl", "https": "curl", "ftp": "curl",
    "s3": "s3", "gs": "gs", "az": "az", "oss": "oss",
}  # fmt: skip
_WEB, _ALONE = "/vsicurl/", "/vsicurl?empty_dir=yes&url="
# A server that stalls: GDAL itself would wait for ever. Slow ones are fine, as long as anything arrives. One that is
# busy (429, 502, 503, 504) is asked again, after 1, 2 and 4 seconds or so.
_PATIENCE = {
    "GDAL_HTTP_CONNECTTIMEOUT": "10",
    "GDAL_HTTP_LOW_SPEED_TIME": "20",
    "GDAL_HTTP_LOW_SPEED_LIMIT": "1",
    "GDAL_HTTP_MAX_RETRY": "3",
    "GDAL_HTTP_RETRY_DELAY": "1",
}
# GDAL opens an address only if it ends in one of these, and no name does; other requests fail for lack of a proxy.
_NO_NETWORK = {
    "CPL_VSIL_CURL_ALLOWED_EXTENSIONS": "/no-network",
    "GDAL_HTTP_PROXY": "no-network://none",
    "GDAL_HTTPS_PROXY": "no-network://none",
}


@contextmanager
def gdal_errors() -> Iterator[None]:
    """Raise every error that rasterio passes on from GDAL as `RasterioError`.

    Copying files and reprojecting points raise some of GDAL's errors as classes that rasterio does not make public
    and that have no public base but `Exception`. They are recognised by the package that defines them.
    """
    try:
        yield
    except RasterioError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "rasterio":
            raise
        raise RasterioError(str(error)) from error


def vsi_name(path: str) -> str:
    """GDAL's own name of a raster: rasterio's addresses, such as zip://a.zip!b.tif, mean nothing to GDAL itself."""
    schemes, separator, rest = path.partition("://")
    handlers = [_HANDLERS.get(scheme) for scheme in schemes.split("+")]
    if not separator or None in handlers:
        return path
    archive, inside, member = rest.partition("!")
    if handlers[-1] == "curl":
        archive = f"{schemes.split('+')[-1]}://{archive}"
    prefix = "".join(f"/vsi{handler}" for handler in handlers if handler)
    name = f"{prefix}/{archive}" if prefix else archive
    return f"{name}/{member.lstrip('/')}" if inside else name


def is_text(path: str) -> bool:
    """Whether a raster is given as the text of a virtual raster, not by a name."""
    return path.lstrip().startswith("<")


def name_without_sidecars(path: str) -> str:
    """GDAL's name of a raster at an address, without the requests for some 30 sidecars that GDAL would make."""
    name = vsi_name(path)
    return f"{_ALONE}{quote(name.removeprefix(_WEB), safe='')}" if name.startswith(_WEB) else name


def web_address(name: str) -> str | None:
    """The address in GDAL's name of a file on a web server; None for another name."""
    if name.startswith(_ALONE):
        return unquote(name.removeprefix(_ALONE))
    return name.removeprefix(_WEB) if name.startswith(_WEB) else None


def absolute_name(path: str) -> str:
    """GDAL's own name of a raster, as it is for processes in other folders."""
    name = vsi_name(path)
    try:
        return str(Path(name).resolve()) if not is_text(name) and Path(name).exists() else name
    except (OSError, ValueError):  # a name that no file can have
        return name


def is_remote(path: str) -> bool:
    """Whether a raster or vector file is read over the network, by its name."""
    # In the text of a virtual raster addresses can be names of schemas: only GDAL's own names of remote files count.
    if is_text(path):
        return re.search(_REMOTE_FILE, path) is not None
    return names_address(vsi_name(path))


def names_address(text: str) -> bool:
    """Whether there is an address or the name of a service in a text."""
    return _REMOTE.search(text) is not None


def allows_network(path: str) -> bool:
    """Whether reading a raster may use the network: its own name is an address, or the user allows it."""
    return is_remote(path) or os.environ.get(NETWORK_VARIABLE) == "1"


def network_options(path: str) -> dict[str, str]:
    """GDAL's options for reading a raster: no network for local files, and time-outs for servers.

    Time-outs that the user has set, in the environment or with rasterio, are left as they are.
    """
    if not allows_network(path):
        return dict(_NO_NETWORK)
    present = rasterio.env.getenv() if rasterio.env.hasenv() else {}
    return {
        key: value
        for key, value in _PATIENCE.items()
        if present.get(key, value) == value and key not in os.environ
    }
