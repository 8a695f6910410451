"""Resolve names to scenes: rasters, products, lists of them, and STAC items.

**Products** of satellites are folders or archives of one file per band, read as one scene without copying them. Bands
are known by the end of the names of their files: `.SAFE` folders of Sentinel-2, Landsat Collection 2, HLS,
PlanetScope, and any folder with files such as `scene_B04.tif` or `red.tif`. Bands of 10 and 20 m come onto one grid.
The cloud mask that comes with a product is found too.

**STAC items** are files or addresses. An asset is chosen by its name, or a band by its common name
(`eo:common_name`). What the item says about its bands, their names, scale, offset and nodata value, is added to
what the files say about themselves.
"""

import json
import logging
import os
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product as combinations
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urljoin, urlsplit

from iic_geotools.addresses import fetch, is_web
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.gdal import name_without_sidecars
from iic_geotools.option_texts import AssetArgument, MaskArgument
from iic_geotools.scene.bands import MOST_LISTED, OTHERS, band_code, canonical, common_name, identify_bands
from iic_geotools.scene.composition import RasterBand, apply_mask, bands_of, compose, expand_palette
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.radiometry import stac_radiometry
from iic_geotools.scene.valuemask import ValueMask

_LOG = logging.getLogger(__name__)
SUFFIXES = (".json", ".geojson")
REMOTE_SCHEMES = ("http", "https", "s3", "gs", "az", "oss")
"""Where an item at an address may keep its assets: never on this machine."""
MOST_ITEMS = 10_000
# Where STAC APIs have items, and pages of items.
_API_ITEMS = re.compile(r"/collections/[^/]+/items(?:/[^/]+)?/?$")

LIST_SUFFIXES = (".txt", ".lst")
NAME = "{name}"
"""Stands for the name of a scene in the names of files."""


MOST_FILES = 20_000
"""The most files of a folder or archive that are looked at."""
AUTO = "auto"
"""As `mask`: the cloud mask that comes with the product."""
_RASTERS = (".tif", ".tiff", ".jp2", ".img")
_ARCHIVES = {".zip": "/vsizip/", ".tar": "/vsitar/", ".tgz": "/vsitar/", ".tar.gz": "/vsitar/"}
# Quality layers and pictures that come with products and are no bands.
_NO_BAND = re.compile(
    r"_(?:AOT|WVP|TCI|PVI|SCL|CLDPRB|SNWPRB|QA\w*|SAA|SZA|VAA|VZA|ST_\w+|SR_QA\w*|udm2?|DN_udm|browse|thumb\w*|preview)"
    r"(?:_\d+m|_clip|_file_format)*$|\.(?:Fmask|SAA|SZA|VAA|VZA)$|^(?:MSK_|T\w+_PVI)|-QL_\w+$",
    re.IGNORECASE,
)
_RESOLUTION = re.compile(r"_(\d{1,3})m$", re.IGNORECASE)
_RAW = re.compile(r"[_ ]*\(raw\)$", re.IGNORECASE)
"""What downloads from the Copernicus Browser add to the name of a band."""
_TOKEN = re.compile(
    r"^(?P<product>.*?)[_.\- ]?(?P<band>(?:SR_|ST_)?B(?:and)?_?\d{1,2}A?|[A-Za-zÀ-ÿ]+\d{0,2})$"
)
_PLANET = {4: ("blue", "green", "red", "nir")}
_PLANET_8 = ("coastal", "blue", "greeni", "green", "yellow", "red", "rededge", "nir")
_SCL_CLOUDS = (0, 1, 3, 8, 9, 10)
_FMASK_BITS = 0b1110
"""Bits of Fmask in HLS: cloud, next to a cloud, cloud shadow."""


@dataclass(frozen=True)
class BandFile:
    """A file of a product that is one of its bands.

    Attributes:
        path: GDAL's name of the file.
        product: The name of the product, from the name of the file.
        band: What the file calls the band: "B04", "SR_B4", "red".
        metres: Its resolution by its name; 0 if the name does not state it.
    """

    path: str
    product: str
    band: str
    metres: int


@dataclass(frozen=True)
class Product:
    """A product: its bands, or the one raster that holds them, and its cloud mask.

    Attributes:
        name: What it is called.
        bands: Its bands by file; empty if one raster holds all of them.
        raster: The raster that holds all bands.
        mask: Where there are clouds or shadows, if it says so.
    """

    name: str
    bands: tuple[BandFile, ...]
    raster: str | None = None
    mask: ValueMask | None = None

    def describe(self, mask: ValueMask | None = None) -> SceneInfo:
        """Describe the product as one scene.

        Args:
            mask: Where it holds no data, if the user says so.

        Raises:
            SceneError: A band cannot be opened, or does not lie on the others.
        """
        if self.raster is not None:
            info = _name_bands(describe(self.raster, self.name))
            return info if mask is None else apply_mask(info, mask)
        bands = []
        for file in self.bands:
            info = describe(file.path)
            bands.append(RasterBand(info, 1, file.band, info.nodatavals[0]))
        scene = compose(self.name, bands, mask)
        return replace(scene, product=self.name)


def find_product(name: str) -> Product | None:
    """Return the product that a folder or an archive holds; None if the name is that of anything else."""
    files = _list_files(name)
    if files is None:
        return None
    rasters = [path for path in files if PurePosixPath(path).suffix.lower() in _RASTERS]
    found = [file for path in rasters if (file := _band_file(path)) is not None]
    products = sorted({file.product for file in found})
    title = PurePosixPath(name.rstrip("/")).name
    complete = [key for key in products if len({file.band for file in found if file.product == key}) > 1]
    if len(complete) > 1:
        raise SceneError(
            f"{title} holds {len(complete)} products, {_shorten(complete[0])} and {_shorten(complete[1])}"
            f"{' among them' if len(complete) > 2 else ''}; give one of them."
        )
    if complete:
        bands = _finest([file for file in found if file.product == complete[0]], title)
        safe = re.search(r"([^/\\]+)\.SAFE[/\\]", bands[0].path)
        return Product(safe[1] if safe else complete[0] or title, bands, mask=_find_mask(rasters))
    plain = [path for path in rasters if not _NO_BAND.search(PurePosixPath(path).stem)]
    if len(plain) == 1:
        return Product(PurePosixPath(plain[0]).stem, (), plain[0], _find_mask(rasters))
    if plain:
        raise SceneError(
            f"{title} holds {len(plain)} rasters, and their names do not say which bands they are; give one of them, "
            "or name them as in scene_B04.tif or scene_red.tif."
        )
    if not files:
        raise SceneError(f"{title} is empty: give a folder or archive that holds the bands of a scene.")
    return None


def is_part_of_product(path: str) -> bool:
    """Return whether the name of a file says that it is one of the bands of a product."""
    return not path.startswith("<") and _band_file(path) is not None


def auto_mask(name: str, product: Product | None) -> ValueMask:
    """Return the cloud mask that comes with a scene.

    Args:
        product: The product that it is, if it is one.
    """
    mask = product.mask if product is not None else None
    if product is None and "://" not in name and Path(name).is_file():
        stem = re.sub(r"(?:_3B)?_Analytic\w*$", "", Path(name).stem)
        mask = _find_mask([str(path) for path in Path(name).parent.glob(f"{stem}*.tif")])
    if mask is None:
        raise UsageError(f"No cloud mask comes with {name}; give `mask` as FILE:VALUES, or leave it out.")
    return mask


def _list_files(name: str) -> list[str] | None:
    """GDAL's names of the files of a folder or archive, in order; None if the name is that of anything else."""
    if "://" in name or name.startswith(("/vsi", "<")):
        return None
    path = Path(name)
    suffix = ".tar.gz" if name.lower().endswith(".tar.gz") else path.suffix.lower()
    try:
        if path.is_dir():
            inside = sorted(str(file) for file in _walk(path))
        elif suffix in _ARCHIVES and path.is_file():
            members = _members(path)
            inside = sorted(f"{_ARCHIVES[suffix]}{path.resolve()}/{member}" for member in members)
        else:
            return None
    except SceneError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise SceneError(f"Cannot read {name} ({error}).") from error
    return inside[:MOST_FILES]


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(root) / file for file in files)


def _members(path: Path) -> list[str]:
    """The files of an archive."""
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    else:
        with tarfile.open(path) as archive:
            members = [entry.name for entry in archive.getmembers() if entry.isfile()]
    for member in members:
        parts = PurePosixPath(member.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts:
            raise SceneError(
                f"{path} holds the path {member[:200]!r}, which lies outside of the archive; do not use this file."
            )
    return members


def _band_file(path: str) -> BandFile | None:
    """Understand the name of a file of one band; None if it is not one."""
    stem = _RAW.sub("", PurePosixPath(path).stem)
    if _NO_BAND.search(stem):
        return None
    size = _RESOLUTION.search(stem)
    token = _TOKEN.match(_RESOLUTION.sub("", stem))
    if token is None:
        return None
    band = token["band"]
    if band_code(band) is None and common_name(band) in (None, *OTHERS):
        return None
    # A letter or two at the end of a name is chance, unless it is the whole name.
    if len(band) < 3 and band_code(band) is None and token["product"]:
        return None
    return BandFile(path, token["product"], band, int(size[1]) if size else 0)


def _finest(files: Sequence[BandFile], title: str) -> tuple[BandFile, ...]:
    """The finest file of each band, in the order of their numbers, without a panchromatic one among others."""
    bands: dict[str, BandFile] = {}
    for file in sorted(files, key=lambda file: (file.metres, file.path)):
        other = bands.setdefault(file.band.upper(), file)
        if other is not file and other.metres == file.metres:
            raise SceneError(
                f"{title} holds the band {file.band} twice, {other.path} and {file.path}; keep one."
            )
    keys = sorted(bands, key=_in_order)
    files = [bands[key] for key in keys]
    texts = tuple(file.band for file in files)
    names = identify_bands(texts, ("undefined",) * len(texts), product=files[0].path).certain
    coloured = [file for file, name in zip(files, names, strict=True) if name != "pan"]
    return tuple(coloured or files)


def _in_order(band: str) -> tuple[int | str, ...]:
    """The sort key of the name of a band: B2 before B10, and B8A after B8."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", band.upper()))


def _find_mask(rasters: Sequence[str]) -> ValueMask | None:
    """The cloud mask among the files of a product, and those of its values that are clouds or shadows."""
    for path in sorted(rasters):
        stem = PurePosixPath(path).stem
        if re.search(r"_SCL(?:_20m)?$", stem, re.IGNORECASE):
            return ValueMask(path, _SCL_CLOUDS)
        if re.search(r"_QA_PIXEL$", stem, re.IGNORECASE):
            return ValueMask(path, qa_pixel_clouds())
        if re.search(r"\.Fmask$", stem, re.IGNORECASE):
            return ValueMask(path, (*(value for value in range(255) if value & _FMASK_BITS), 255))
        if re.search(r"_udm2(?:_clip|_file_format)*$", stem, re.IGNORECASE):
            return ValueMask(path, (0,))  # its first band is 1 where the view is clear
    return None


@cache
def qa_pixel_clouds() -> tuple[int, ...]:
    """Return the values of Landsat's QA_PIXEL at fill, clouds, what is next to them, cirrus and shadows."""
    values = {1}
    for dilated, cirrus, cloud, shadow, snow, water in combinations((0, 1), repeat=6):
        if not (dilated or cirrus or cloud or shadow):
            continue
        for clear, cloudy, shady, snowy, high in combinations((0, 1), (1, 2, 3), (1, 3), (1, 3), (0, 1, 3)):
            flags = (0, dilated, cirrus, cloud, shadow, snow, clear, water)
            confidences = cloudy << 8 | shady << 10 | snowy << 12 | high << 14
            values.add(sum(flag << bit for bit, flag in enumerate(flags)) | confidences)
    return tuple(sorted(values))


def _name_bands(info: SceneInfo) -> SceneInfo:
    """Name the bands of a raster by what its name, or the file of metadata next to it, says of them."""
    count = len(info.descriptions)
    planet = re.search(r"_3B_|AnalyticMS|_SR_8b|PSScene", info.title, re.IGNORECASE)
    names = _PLANET_8 if count == len(_PLANET_8) else _PLANET.get(count)
    if not any(info.descriptions) and planet is not None and names is not None:
        return replace(info, descriptions=names)
    lengths = () if info.wavelengths else _enmap_wavelengths(info.path)
    return replace(info, wavelengths=lengths) if len(lengths) == count else info


def _enmap_wavelengths(path: str) -> tuple[float, ...]:
    """The wavelengths in nm of an image of EnMAP, which are in the file of metadata next to it; nothing for others."""
    name, enmap = re.subn(r"-SPECTRAL_IMAGE\.(TIF+)$", "-METADATA.XML", path, flags=re.IGNORECASE)
    if not enmap:
        return ()
    try:
        text = Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(map(float, re.findall(r"<wavelengthCenterOfBand>\s*([\d.]+)\s*<", text)))


def _shorten(name: str) -> str:
    return name[:60] or "one without a name"


@dataclass(frozen=True)
class Pick:
    """What is taken of an item: an asset, or one band of it.

    Attributes:
        asset: Name of the asset.
        band: Number of the band, counted from 1; None for all of them.
    """

    asset: str
    band: int | None = None


@dataclass(frozen=True)
class Item:
    """A STAC item.

    Attributes:
        id: Its identifier.
        properties: What it says about all of its assets.
        assets: Its assets by name.
        base: Path or address of the file that it is in.
    """

    id: str
    properties: Mapping[str, Any]
    assets: Mapping[str, Mapping[str, Any]]
    base: str

    def href(self, asset: str) -> str:
        """Path or address of an asset."""
        href = self.assets[asset].get("href")
        if not isinstance(href, str) or not href:
            raise SceneError(f"The asset {asset} of the item {self.id} has no address; choose another.")
        if not is_web(self.base):
            return _beside(href.removeprefix("file://"), self.base)
        address = urljoin(self.base, href)
        if urlsplit(address).scheme not in REMOTE_SCHEMES:
            raise SceneError(
                f"The item {self.id} is at an address, but its asset {asset} is {href[:200]}, which is not; download "
                "the item if you trust it."
            )
        return address

    def choose(self, names: Sequence[str] | None) -> tuple[Pick, ...]:
        """Choose assets or bands.

        Args:
            names: Names of assets, or common names of bands; None for the only asset with the role "data".
        """
        if not self.assets:
            raise SceneError(f"The item {self.id} has no assets, and so no scene.")
        if names is not None:
            return tuple(self._choose(name) for name in names)
        data = [key for key in self.assets if "data" in _entries_of(self.assets[key], "roles")]
        candidates = data or list(self.assets)
        if len(candidates) > 1:
            raise UsageError(
                f"The item {self.id} does not say which of its assets is the scene; give `asset`, one or more of "
                f"{self._list_assets()}."
            )
        return (Pick(candidates[0]),)

    def _choose(self, name: str) -> Pick:
        if name in self.assets:
            return Pick(name)
        picks = [
            Pick(key, number)
            for key, asset in self.assets.items()
            for number, band in enumerate(band_entries(asset), 1)
            if canonical(_common_name(band) or "") == canonical(name) != ""
        ]
        data = [pick for pick in picks if "data" in _entries_of(self.assets[pick.asset], "roles")]
        alone = [pick for pick in data or picks if len(band_entries(self.assets[pick.asset])) == 1]
        picks = alone or data or picks
        if not picks:
            raise UsageError(
                f"The item {self.id} has no asset, and no band with the common name, {name}; give `asset`, one or more "
                f"of {self._list_assets()}."
            )
        if len(picks) > 1:
            keys = " and ".join(sorted({pick.asset for pick in picks}))
            raise UsageError(
                f"The item {self.id} has several bands with the common name {name}, in {keys}; give `asset` the name "
                "of one of these."
            )
        return picks[0]

    def _list_assets(self) -> str:
        keys = sorted(self.assets)
        more = f" and {len(keys) - MOST_LISTED} more" if len(keys) > MOST_LISTED else ""
        return ", ".join(key[:40] for key in keys[:MOST_LISTED]) + more

    def describe(self, picks: Sequence[Pick], mask: ValueMask | None = None) -> SceneInfo:
        """Describe the scene that some assets or bands are, under a mask if one is given."""
        rasters = {pick.asset: self._describe_asset(pick.asset) for pick in picks}
        if len(picks) == 1 and picks[0].band is None:
            info = rasters[picks[0].asset]
            return info if mask is None else apply_mask(info, mask)
        bands: list[RasterBand] = []
        for pick in picks:
            offered = bands_of(rasters[pick.asset])
            if pick.band is not None and pick.band > len(offered):
                raise SceneError(
                    f"The item {self.id} says that its asset {pick.asset} has {pick.band} bands or more, but it has "
                    f"{len(offered)}; choose another."
                )
            bands += offered if pick.band is None else offered[pick.band - 1 : pick.band]
        return compose(self.id, bands, mask)

    def _describe_asset(self, name: str) -> SceneInfo:
        """Describe the raster that an asset is, by what the item says about it if the item says something."""
        href = self.href(name)
        info = describe(name_without_sidecars(href), href)
        asset = {**self.properties, **self.assets[name]}
        count = len(info.dtypes)
        entries = band_entries(asset)
        if len(entries) != count:
            entries = [{}] * count
        radiometry = stac_radiometry(asset, count)
        fallback = name if count == 1 else None
        return replace(
            info,
            descriptions=tuple(
                _common_name(entry) or own or _text(entry, "name") or fallback
                for entry, own in zip(entries, info.descriptions, strict=True)
            ),
            nodatavals=tuple(
                _number(entry, "nodata") if own is None else own
                for entry, own in zip(entries, info.nodatavals, strict=True)
            ),
            radiometry=info.radiometry if radiometry is None else radiometry,
        )


def is_stac(name: str) -> bool:
    """Whether a name is that of a STAC file: .json or .geojson, or an item or items of a STAC API."""
    if "://" not in name:
        return Path(name).suffix.lower() in SUFFIXES
    path = urlsplit(name).path
    return PurePosixPath(path).suffix.lower() in SUFFIXES or (is_web(name) and bool(_API_ITEMS.search(path)))


def read_items(name: str) -> Iterator[Item]:
    """Read the items of a STAC file: an item, an item collection, or a catalogue that links to items."""
    content = _read(name)
    kind = content.get("type") if isinstance(content, Mapping) else None
    if kind in ("Collection", "Catalog"):
        links = [link for link in _entries_of(content, "links") if link.get("rel") == "item"]
        if not links:
            raise SceneError(
                f"{name} is a STAC {kind.lower()} without items; find some with iic-scenes search."
            )
        for link in links[:MOST_ITEMS]:
            href = str(link.get("href"))
            address = urljoin(name, href) if is_web(name) else _beside(href, name)
            yield parse_item(_read(address), address)
        return
    features = content.get("features") if kind == "FeatureCollection" else [content]
    if not isinstance(features, list):
        raise _not_stac(name)
    if any(link.get("rel") == "next" for link in _entries_of(content, "links")):
        _LOG.warning("%s is the first page of more; its %d items are taken.", name, len(features))
    for feature in features:
        yield parse_item(feature, name)


def parse_item(content: Any, base: str) -> Item:
    """Read an item."""
    if not isinstance(content, Mapping):
        raise _not_stac(base)
    identifier, assets, properties = content.get("id"), content.get("assets"), content.get("properties") or {}
    if not isinstance(identifier, str) or not identifier.isprintable():
        raise SceneError(f"{base} has an item with the id {identifier!r}, which cannot be the name of a map.")
    if not isinstance(properties, Mapping) or not isinstance(assets, Mapping):
        raise _not_stac(base)
    if not all(isinstance(asset, Mapping) for asset in assets.values()):
        raise _not_stac(base)
    return Item(identifier, properties, assets, base)


def band_entries(asset: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What an asset says about each of its bands: in `eo:bands`, `raster:bands`, or since STAC 1.1 `bands`."""
    lists = [_entries_of(asset, key) for key in ("eo:bands", "raster:bands", "bands")]
    count = max(len(entries) for entries in lists)
    shared = {key: asset[key] for key in ("eo:common_name", "nodata") if key in asset}
    merged: list[dict[str, Any]] = [dict(shared) for _ in range(count or bool(shared))]
    for entries in lists:
        if len(entries) == len(merged):
            for target, entry in zip(merged, entries, strict=True):
                target.update(entry)
    return list(merged)


def _read(name: str) -> Any:
    try:
        text = fetch(name) if is_web(name) else Path(name).read_bytes()
        # Numbers of hundreds of digits are infinite, as they are with a decimal point.
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 19 else float(digits))
    except SceneError:
        raise
    except OSError as error:
        advice = "; give an item by its https:// address" if "://" in name else ""
        raise SceneError(
            f"Cannot read the list of scenes {name} ({error.strerror or error}){advice}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise _not_stac(name) from error


def _beside(href: str, file: str) -> str:
    """The path or address that a local file names: relative to itself, wherever the command runs."""
    beside = Path(file).parent / href
    with suppress(OSError, ValueError):  # names that no file can have
        if "://" not in href and beside.exists():
            return str(beside)
    return href


def _not_stac(name: str) -> SceneError:
    return SceneError(
        f"{name} is neither a STAC item nor an item collection; list the scenes in a text file instead."
    )


def _entries_of(content: Any, key: str) -> list[Any]:
    """A list in a JSON object, if there is one; of objects, only those that are."""
    values = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(values, list):
        return []
    return values if key == "roles" else [value for value in values if isinstance(value, Mapping)]


def _text(entry: Mapping[str, Any], key: str) -> str | None:
    value = entry.get(key)
    return value if isinstance(value, str) and value.isprintable() else None


def _common_name(entry: Mapping[str, Any]) -> str | None:
    return _text(entry, "eo:common_name") or _text(entry, "common_name")


def _number(entry: Mapping[str, Any], key: str) -> float | None:
    """A number, also one of those that JSON cannot hold."""
    value = entry.get(key)
    if value == "nan":
        return float("nan")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class ListedScene:
    """A scene in a list.

    Attributes:
        path: Path or address of the scene, or of its first asset.
        name: Name of its map without a suffix.
        item: The STAC item that it comes from, if it does.
        picks: What is taken of the item.
        mask: Where it holds no data, if the user says so.
        product: The folder or archive of band files that it is, if it is one.
    """

    path: str
    name: str
    item: Item | None = None
    picks: tuple[Pick, ...] = ()
    mask: ValueMask | None = None
    product: Product | None = None

    def describe(self) -> SceneInfo:
        """Describe the scene.

        Raises:
            SceneError: The scene or its mask cannot be opened, or they do not lie on each other.
        """
        if self.item is not None:
            return self.item.describe(self.picks, self.mask)
        if self.product is not None:
            return self.product.describe(self.mask)
        info = _name_bands(describe(self.path))
        if info.interpretations == ("palette",):
            info = expand_palette(info)
        return info if self.mask is None else apply_mask(info, self.mask)


def find_scene(
    name: str | os.PathLike[str], asset: AssetArgument | None = None, mask: MaskArgument | None = None
) -> SceneInfo:
    """Describe the scene that a name refers to.

    Args:
        name: A raster, anything GDAL opens; a STAC item, a file or an address; or a product, a folder or an archive
            with one file per band.
        asset: The asset of a STAC item that is the scene, or several that are its bands; by default the only one with
            the role "data".
        mask: A raster, or an asset of the item, and those of its values at which the scene holds no data; or "auto"
            for the cloud mask that comes with a product.

    Raises:
        UsageError: The name refers to several scenes, or `asset` does not suit it.
        SceneError: The scene cannot be opened.
    """
    scenes = _list([os.fspath(name)], asset, mask, lists=False)
    if len(scenes) > 1:
        raise UsageError(f"{name} holds {len(scenes)} scenes; give a folder as `out`.")
    return scenes[0].describe()


def list_scenes(
    names: Sequence[str], asset: AssetArgument | None = None, mask: MaskArgument | None = None
) -> list[ListedScene]:
    """The scenes that names refer to.

    Args:
        names: Rasters, text files with one scene per line (`#` begins a comment), STAC items or item collections.

    Raises:
        UsageError: There is no scene, `asset` does not suit one of them, or the maps of two scenes would have the same
            name.
        SceneError: A list cannot be read.
    """
    return _list(names, asset, mask, lists=True)


def _list(
    names: Sequence[str], asset: AssetArgument | None, mask: MaskArgument | None, lists: bool
) -> list[ListedScene]:
    """The scenes that names refer to; a text file may be a list or, since GDAL has such rasters, a scene."""
    assets = [asset] if isinstance(asset, str) else asset
    if assets is not None and not all(assets or [""]):
        raise UsageError("`asset` takes names of assets, separated by commas, and none of them is empty.")
    chosen = mask if mask is None or isinstance(mask, str) else ValueMask.of(mask)
    if isinstance(chosen, str) and chosen != AUTO:
        raise UsageError(f'`mask` is "{AUTO}", or a raster and values, not "{chosen}".')
    scenes = [scene for name in names for scene in _expand(name, assets, lists)]
    if not scenes:
        raise UsageError("The list holds no scene.")
    if assets is not None and all(scene.item is None for scene in scenes):
        raise UsageError(f"`asset` is for STAC items, and {scenes[0].path} is not one.")
    scenes = _make_distinct(scenes) if lists else scenes
    return scenes if chosen is None else [_add_mask(scene, chosen) for scene in scenes]


def _expand(name: str, assets: Sequence[str] | None, lists: bool) -> Iterator[ListedScene]:
    if is_stac(name):
        for item in read_items(name):
            picks = item.choose(assets)
            yield ListedScene(item.href(picks[0].asset), _file_name(item), item, picks)
    elif lists and Path(name).suffix.lower() in LIST_SUFFIXES:
        for entry in _read_list(name):
            yield from _expand(entry, assets, lists=False)
    elif (product := find_product(name)) is not None:
        yield ListedScene(name, product.name, product=product)
    else:
        yield ListedScene(name, PurePosixPath(name.partition("?")[0].replace("\\", "/")).stem)


def _read_list(name: str) -> Iterator[str]:
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SceneError(f"Cannot read the list of scenes {name} ({error}).") from error
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield _locate(entry, Path(name))


def _locate(entry: str, file: Path) -> str:
    """The path of an entry of a list: as written if it exists or is not a local path, else next to the list."""
    beside = file.parent / entry
    with suppress(OSError, ValueError):  # names that no file can have
        if "://" not in entry and not Path(entry).exists() and beside.exists():
            return str(beside)
    return entry


def _add_mask(scene: ListedScene, mask: ValueMask | str) -> ListedScene:
    """Give a scene its mask: an asset of its item if there is one of that name, else a raster."""
    if isinstance(mask, str):
        return replace(scene, mask=auto_mask(scene.path, scene.product))
    path, item = mask.path.replace(NAME, scene.name), scene.item
    if item is not None and path in item.assets:
        href = item.href(path)
        return replace(scene, mask=replace(mask, path=name_without_sidecars(href), name=href))
    if item is not None and "://" not in path and not path.startswith("/vsi") and not Path(path).exists():
        raise UsageError(f"`mask` is {path}, which is neither an asset of the item {item.id} nor a file.")
    return replace(scene, mask=replace(mask, path=path))


def _file_name(item: Item) -> str:
    """The id of an item as the name of a file."""
    name = re.sub(r"[/\\\0]", "-", item.id)
    if not name.strip(". "):
        raise UsageError(
            f"{item.base} has an item with the id {item.id!r}, which cannot be the name of a map."
        )
    return name


def _make_distinct(scenes: Sequence[ListedScene]) -> list[ListedScene]:
    """Put the name of the folder before names that occur twice, e.g. of `a/ortho.tif` and `b/ortho.tif`."""
    counts = Counter(scene.name for scene in scenes)
    named = [
        scene
        if counts[scene.name] == 1
        else replace(scene, name=f"{PurePosixPath(scene.path).parent.name}-{scene.name}")
        for scene in scenes
    ]
    for name, count in Counter(scene.name for scene in named).items():
        if count > 1:
            raise UsageError(
                f"The maps of {count} scenes would be called {name}.tif; map them into separate folders."
            )
    return named
