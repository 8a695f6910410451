"""Products of satellites, as folders or archives of one file per band, read as one scene without copying them.

Bands are known by the end of the names of their files: `.SAFE` folders of Sentinel-2, Landsat Collection 2, HLS,
PlanetScope, and any folder with files such as `scene_B04.tif` or `red.tif`. Bands of 10 and 20 m come onto one grid.
The cloud mask that comes with a product is found too.
"""

import os
import re
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product as combinations
from pathlib import Path, PurePosixPath

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.scene.bands import band_code, common_name
from iic_geotools.scene.composition import RasterBand, apply_mask, compose
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.valuemask import ValueMask

MOST_FILES = 20_000
"""The most files of a folder or archive that are looked at."""
AUTO = "auto"
"""As `mask`: the cloud mask that comes with the product."""
_RASTERS = (".tif", ".tiff", ".jp2", ".img")
_ARCHIVES = {".zip": "/vsizip/", ".tar": "/vsitar/", ".tgz": "/vsitar/", ".tar.gz": "/vsitar/"}
# Quality layers and pictures that come with products and are no bands.
_NO_BAND = re.compile(
    r"_(?:AOT|WVP|TCI|PVI|SCL|CLDPRB|SNWPRB|QA\w*|SAA|SZA|VAA|VZA|ST_\w+|SR_QA\w*|udm2?|DN_udm|browse|thumb\w*|preview)"
    r"(?:_\d+m)?$|\.(?:Fmask|SAA|SZA|VAA|VZA)$|^(?:MSK_|T\w+_PVI)",
    re.IGNORECASE,
)
_RESOLUTION = re.compile(r"_(\d{1,3})m$", re.IGNORECASE)
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
        metres: Its resolution by its name; 0 if the name does not tell it.
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
            info = _name_planet(describe(self.raster, self.name))
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
    return None


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
    stem = PurePosixPath(path).stem
    if _NO_BAND.search(stem):
        return None
    size = _RESOLUTION.search(stem)
    token = _TOKEN.match(_RESOLUTION.sub("", stem))
    if token is None:
        return None
    band = token["band"]
    if band_code(band) is None and common_name(band) is None:
        return None
    # A letter or two at the end of a name is chance, unless it is the whole name.
    if len(band) < 3 and band_code(band) is None and token["product"]:
        return None
    return BandFile(path, token["product"], band, int(size[1]) if size else 0)


def _finest(files: Sequence[BandFile], title: str) -> tuple[BandFile, ...]:
    """The finest file of each band."""
    bands: dict[str, BandFile] = {}
    for file in sorted(files, key=lambda file: (file.metres, file.path)):
        other = bands.setdefault(file.band.upper(), file)
        if other is not file and other.metres == file.metres:
            raise SceneError(
                f"{title} holds the band {file.band} twice, {other.path} and {file.path}; keep one."
            )
    return tuple(bands[key] for key in sorted(bands))


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
        if re.search(r"_udm2$", stem, re.IGNORECASE):
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


def _name_planet(info: SceneInfo) -> SceneInfo:
    """Name the bands of PlanetScope, whose files often do not."""
    count = len(info.descriptions)
    planet = re.search(r"_3B_|AnalyticMS|_SR_8b|PSScene", info.title, re.IGNORECASE)
    names = _PLANET_8 if count == len(_PLANET_8) else _PLANET.get(count)
    if any(info.descriptions) or planet is None or names is None:
        return info
    return replace(info, descriptions=names)


def _shorten(name: str) -> str:
    return name[:60] or "one without a name"
