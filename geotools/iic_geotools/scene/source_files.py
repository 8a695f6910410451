"""The files that a raster is made of, whether they changed, and whether they may refer to the network.

A virtual raster, an index of tiles or an archive may stay as it is while what it refers to changes, so references are
followed to the files that hold pixels. What cannot be followed is not identified at all, never by its name alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

from iic_geotools.addresses import send
from iic_geotools.errors import NetworkError, SceneError
from iic_geotools.files import check_no_stream
from iic_geotools.gdal import (
    NETWORK_VARIABLE,
    allows_network,
    is_remote,
    names_address,
    vsi_name,
    web_address,
)
from iic_geotools.scene.vectors import read_names

MOST_FILES = 100_000
"""Rasters of more files are not identified: to look at all of them would take minutes."""
_SIDECARS = (".aux.xml", ".msk", ".ovr")
_ARCHIVE = re.compile(r"/vsi(?:zip|tar|gzip|7z|rar)/(.+)")
_ARCHIVE_END = re.compile(r"\.(?:zip|kmz|tar|tgz|tar\.gz|gz|7z|rar)(?=[/}]|$)", re.IGNORECASE)
_REFERRING = (".vrt", ".gti", ".xml", ".json")
# Local files that name a service, whose pixels may change at any time.
_SERVICES = ("GDAL_WMS", "GDAL_WMTS", "GDAL_WCS", "WCS_GDAL", "WMS_Tile_Service", "WMT_MS_Capabilities")
_SERVICE_HEAD = re.compile(rb"<(?:" + "|".join(_SERVICES).encode() + rb")\b")


@dataclass(frozen=True)
class SourceFile:
    """A file that a raster is made of.

    Attributes:
        name: Its full path or address.
        version: What changes when its content does: size and time, or what a server says about it.
        inode: The number of a local file on its disk, which changes when another file takes its name.
    """

    name: str
    version: tuple[str | int, ...]
    inode: int = 0


class _Collection(dict[str, SourceFile]):
    """The files of a raster so far, by name."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._network = allows_network(path)

    def check_address(self, name: str) -> None:
        """Refuse an address in a local file, which may be untrusted, unless the network is allowed."""
        if not self._network:
            raise NetworkError(
                f"{self._path[:200]} refers to {name[:200]}, which is not on this machine; set the environment "
                f"variable {NETWORK_VARIABLE} to 1 if you trust it."
            )


class _NotIdentifiedError(Exception):
    """A source cannot be followed to files whose versions are known."""


def identify_sources(path: str, files: Sequence[str] = ()) -> tuple[SourceFile, ...] | None:
    """Return every file that a raster is made of, in order of name; None if they cannot all be identified.

    Args:
        files: The files that GDAL names for it.

    Raises:
        NetworkError: A local file refers to an address, and the network is not allowed.
    """
    sources = _Collection(path)
    try:
        _follow(path, Path(), sources)
        for file in files:
            if vsi_name(file) not in sources and str(Path(file).resolve()) not in sources:
                _follow_file(file, sources)
    except SceneError:
        raise
    except (_NotIdentifiedError, OSError, ValueError, LookupError, RecursionError, ElementTree.ParseError):
        return None
    return tuple(sources[name] for name in sorted(sources))


def _follow(name: str, folder: Path, sources: _Collection) -> None:
    """Add the files of a raster by its name, as it is written in a file in `folder`."""
    if len(sources) > MOST_FILES:
        raise _NotIdentifiedError(name)
    text = name.strip()
    if text.startswith("<"):
        _follow_xml(ElementTree.fromstring(text), folder, sources)
    elif text.startswith("vrt://"):
        _follow(text.removeprefix("vrt://").partition("?")[0], folder, sources)
    elif text.startswith("GTI:"):
        if is_remote(text):
            sources.check_address(text)
        _follow_index(folder / text.removeprefix("GTI:"), sources)
    elif (folder / vsi_name(name)).exists():
        _follow_local(folder / vsi_name(name), sources)
    elif vsi_name(name).startswith("/vsi"):
        _follow_vsi(vsi_name(name), sources)
    else:
        if is_remote(name):
            sources.check_address(name)
        _follow_local(_file_of_part(name, folder), sources)


def _follow_file(file: str, sources: _Collection) -> None:
    """Add a file that GDAL names as one of a raster's own: a sidecar, an image of a product of many files."""
    if file.startswith("/vsi"):
        _follow_vsi(file, sources)
    else:
        _add_local(Path(file), sources)


def _follow_local(path: Path, sources: _Collection) -> None:
    if str(path.resolve()) in sources:
        return
    if path.is_dir():
        for file in path.rglob("*"):
            if file.is_file():
                _add_local(file, sources)
        return
    _add_local(path, sources)
    for suffix in _SIDECARS:
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            _add_local(beside, sources)
    with path.open("rb") as content:
        head = content.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    if _SERVICE_HEAD.search(head):
        sources.check_address("a service")
        raise _NotIdentifiedError(path)
    if head.startswith(b"{"):  # an item of a catalogue, which GDAL can open as a raster
        raise _NotIdentifiedError(path)
    if b"<VRTDataset" in head or b"<GDALTileIndexDataset" in head:
        _follow_xml(_parse_file(path, sources), path.parent, sources)
    elif ".gti." in path.name.lower():
        _follow_index(path, sources)


def _parse_file(path: Path, sources: _Collection) -> ElementTree.Element:
    """Parse XML; malformed XML, which GDAL reads too, must not hold an address at all."""
    try:
        return ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, ValueError, LookupError):  # encodings that do not exist
        if names_address(path.read_text(errors="replace")):
            sources.check_address("an address")
        raise


def _follow_xml(root: ElementTree.Element, folder: Path, sources: _Collection) -> None:
    """Add the sources of a virtual raster or of the XML form of an index."""
    if root.tag in _SERVICES:
        sources.check_address("a service")
        raise _NotIdentifiedError(root.tag)
    if root.get("subClass") == "VRTProcessedDataset":
        raise _NotIdentifiedError("its steps may read any file")
    if next(root.iter("LocationField"), None) is not None:
        raise _NotIdentifiedError("its index has the names of its tiles in another field")
    for index in root.iter("IndexDataset"):
        if is_remote(index.text or ""):
            sources.check_address(index.text or "")
        _follow_index(folder / (index.text or ""), sources)
    for element in _references(root):
        relative = element.get("relativeToVRT", element.get("relativetoVRT", "0")) == "1"
        _follow(element.text or "", folder if relative else Path(), sources)


def _references(root: ElementTree.Element) -> Iterator[ElementTree.Element]:
    for tag in ("SourceFilename", "SourceDataset"):
        yield from root.iter(tag)


def _follow_index(path: Path, sources: _Collection) -> None:
    """Add an index of tiles and its tiles."""
    _add_local(path, sources)
    names = read_names(path, "location", unless="LOCATION_FIELD")
    if names is None:
        raise _NotIdentifiedError(path)
    for name in names:
        beside = path.parent / name
        _follow(name, path.parent if beside.exists() else Path(), sources)


def _follow_vsi(name: str, sources: _Collection) -> None:
    """Add a file in an archive, at an address, or within another file."""
    if is_remote(name):
        sources.check_address(name)
    archive = _ARCHIVE.fullmatch(name)
    if archive:
        path = archive[1].removeprefix("{")
        if path.removesuffix("/").lower().endswith(_REFERRING):
            raise _NotIdentifiedError(name)
        end = _ARCHIVE_END.search(path)
        outer = path[: end.end()] if end else path
        if outer.startswith("/vsi"):
            _follow_vsi(outer, sources)
        else:
            _add_local(Path(outer), sources)
    elif name.startswith("/vsisubfile/"):
        _follow(name.partition(",")[2], Path(), sources)
    elif (address := web_address(name)) is not None:
        _add_remote(address, sources)
    else:
        raise _NotIdentifiedError(name)


def _file_of_part(name: str, folder: Path) -> Path:
    """The file in the name of a sub-dataset, e.g. NETCDF:"a.nc":red or GTIFF_DIR:2:a.tif."""
    pieces = [piece for piece in re.split(r'["]|:(?!//)', name)[1:] if piece]
    files = [folder / piece for piece in pieces if (folder / piece).is_file()]
    if len(files) != 1:
        raise _NotIdentifiedError(name)
    return files[0]


def _add_local(path: Path, sources: _Collection) -> None:
    check_no_stream(path)
    status = path.stat()
    name = str(path.resolve())
    sources[name] = SourceFile(name, (status.st_size, status.st_mtime_ns), status.st_ino)


def _add_remote(address: str, sources: _Collection) -> None:
    """Add a file of a web server by its ETag, or by its size and the time of its last change."""
    place = urlsplit(address)
    if place.scheme not in ("http", "https") or place.path.lower().endswith(_REFERRING):
        raise _NotIdentifiedError(address)
    if address in sources:
        return
    # Imported here because few runs need them.
    from http.client import HTTPException
    from urllib.request import Request

    try:
        with send(Request(address, method="HEAD")) as answer:
            tag, size, time = (answer.headers.get(key) for key in ("ETag", "Content-Length", "Last-Modified"))
    except HTTPException as error:
        raise _NotIdentifiedError(address) from error
    if not tag and not (size and time):
        raise _NotIdentifiedError(address)
    sources[address] = SourceFile(address, (tag or "", size or "", time or ""))
