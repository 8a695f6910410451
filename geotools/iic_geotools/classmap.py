"""One Cloud-Optimised GeoTIFF out of the parts of a map."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import rasterio
import rasterio.shutil
from rasterio._err import CPLE_BaseError
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from iic_geotools.colours import MAX_CLASSES, MapClass
from iic_geotools.errors import OutputError, UsageError
from iic_geotools.files import replacing, sync, write_atomically
from iic_geotools.grid import Rect
from iic_geotools.levels import (
    NODATA,
    NOWHERE,
    Level,
    Reducer,
    mean_of_four,
    mode_of_four,
    nearest_of_four,
    overviews,
    touched_blocks,
    without_empty_blocks,
)
from iic_geotools.pam import sidecar, sidecar_path
from iic_geotools.tiff import is_whole
from iic_geotools.vrt import MapGrid, georeference, write_vrt

__all__ = ["NODATA", "MapGrid", "assemble", "creation_options"]

DEFAULT_OPTIONS = {
    "COMPRESS": "LZW",  # labels come out about as small as with DEFLATE, two to three times as fast
    "BLOCKSIZE": "512",
    "BIGTIFF": "IF_SAFER",
    "NUM_THREADS": "ALL_CPUS",
    "SPARSE_OK": "TRUE",
}
# GDAL would keep 450 parts open, each with buffers of megabytes; a row of the map needs few at a time.
OPEN_PARTS = 24
_LOSSLESS = ("DEFLATE", "LZW", "ZSTD", "LZMA", "NONE")
_LEVELS = {"DEFLATE": range(1, 13), "ZSTD": range(1, 23), "LZMA": range(10)}
_BLOCKS = range(128, 4097, 16)
_REDUCERS: dict[str, Reducer] = {"MODE": mode_of_four, "AVERAGE": mean_of_four, "NEAREST": nearest_of_four}


# GDAL only mutters about a value that it does not know and goes on without it. The COG driver's other options
# would change the grid, lose labels or compute what no map has a use for.
_VALUES: dict[str, tuple[str, ...]] = {
    "COMPRESS": _LOSSLESS,
    "OVERVIEW_COMPRESS": ("AUTO", *_LOSSLESS),
    "PREDICTOR": ("YES", "NO", "STANDARD"),
    "OVERVIEW_PREDICTOR": ("YES", "NO", "STANDARD"),
    "BIGTIFF": ("YES", "NO", "IF_NEEDED", "IF_SAFER"),
    "SPARSE_OK": ("TRUE", "FALSE", "YES", "NO", "ON", "OFF"),
    "GEOTIFF_VERSION": ("AUTO", "1.0", "1.1"),
    "OVERVIEWS": ("AUTO", "NONE"),
    "OVERVIEW_RESAMPLING": tuple(_REDUCERS),
}
_NUMBERS = {
    "BLOCKSIZE": _BLOCKS,
    "OVERVIEW_COUNT": range(31),
    "NUM_THREADS": range(1, 1025),
    "LEVEL": range(23),
}


def creation_options(given: Mapping[str, str]) -> dict[str, str]:
    """The COG driver's options for a map: the defaults with `given` over them.

    Raises:
        UsageError: An option the driver does not know, or that a map must not have.
    """
    options = DEFAULT_OPTIONS | {key.upper(): str(value) for key, value in given.items()}
    for key, value in options.items():
        if key in _VALUES:
            if value.upper() not in _VALUES[key]:
                raise UsageError(f"{key}={value} is not for maps: use {', '.join(_VALUES[key])}.")
        elif key not in _NUMBERS:
            known = ", ".join(sorted({*_VALUES, *_NUMBERS}))
            raise UsageError(f"{key} is no creation option of a map: use {known}.")
        elif (key, value.upper()) != ("NUM_THREADS", "ALL_CPUS"):
            _check_number(key, value, _NUMBERS[key])
    if "LEVEL" in options:
        compress = options["COMPRESS"].upper()
        if compress not in _LEVELS:
            raise UsageError(f"LEVEL is for COMPRESS={', '.join(_LEVELS)}, not for {compress}.")
        _check_number("LEVEL", options["LEVEL"], _LEVELS[compress])
    return options


def _check_number(key: str, value: str, allowed: range) -> None:
    if not (value.isascii() and value.isdigit() and int(value) in allowed):
        step = f"a multiple of {allowed.step} " if allowed.step > 1 else ""
        raise UsageError(f"{key}={value} is not possible: use {step}from {allowed[0]} to {allowed[-1]}.")


def assemble(
    parts: Sequence[tuple[Path, Rect]],
    out: Path,
    grid: MapGrid,
    *,
    classes: Sequence[MapClass] | None,
    tags: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> None:
    """Build the map from its parts, or leave nothing.

    The work and the memory follow the parts, not the size of the map: what no part covers is NODATA and
    takes no room in the file. The sidecar with class names is in place before the map's name appears.

    Args:
        parts: One-band GeoTIFF files of bytes and the rectangle of the map each of them is; an empty file
            stands for a rectangle without data.
        out: The map.
        grid: The map's grid and georeference.
        classes: Names and colours of the values 0, 1, ...; None for a continuous band such as confidence,
            whose overviews are averages.
        tags: Metadata of the file.
        options: Creation options of GDAL's COG driver over `DEFAULT_OPTIONS`.

    Raises:
        UsageError: Options or classes that cannot be right.
        OutputError: A part cannot be read or the map cannot be written.
    """
    wanted = creation_options(options or {})
    if classes is not None and not 0 < len(classes) <= MAX_CLASSES:
        raise UsageError(f"A map has 1 to {MAX_CLASSES} classes, not {len(classes)}.")
    full = [(path, rect) for path, rect in parts if _holds_data(path)]
    try:
        with rasterio.Env(GDAL_MAX_DATASET_POOL_SIZE=OPEN_PARTS), _scratch(out) as scratch:
            levels = _levels(full, grid, scratch, wanted, classes)
            virtual = scratch("map.vrt")
            layers = [level.path for level in levels[1:]]
            block = int(wanted["BLOCKSIZE"])
            write_vrt(virtual, grid, full, block=block, overviews=layers, classes=classes, tags=tags)
            with replacing(out) as temporary:
                _copy(virtual, temporary, wanted)
                _check(temporary, out, levels, wanted)
                _put_sidecar(temporary, out, grid, classes)
    except OutputError:
        raise
    except (RasterioError, CPLE_BaseError, OSError) as error:
        raise OutputError(f"The map {out} cannot be written: {error}") from error


def _holds_data(part: Path) -> bool:
    try:
        return part.stat().st_size > 0
    except OSError as error:
        raise OutputError(f"A part of the map is missing: {error}") from error


@contextmanager
def _scratch(out: Path) -> Iterator[Callable[[str], Path]]:
    """Yield a function that names files beside `out`; they are removed in the end."""
    prefix = f".{out.stem}.{os.getpid()}.tmp-"
    try:
        yield lambda name: out.with_name(prefix + name)
    finally:
        for entry in out.parent.iterdir():
            if entry.name.startswith(prefix):
                entry.unlink()


def _levels(
    parts: Sequence[tuple[Path, Rect]],
    grid: MapGrid,
    scratch: Callable[[str], Path],
    options: Mapping[str, str],
    classes: Sequence[MapClass] | None,
) -> list[Level]:
    """The map at full resolution and its overviews."""
    block = int(options["BLOCKSIZE"])
    pieced = scratch("parts.vrt")
    write_vrt(pieced, MapGrid(grid.width, grid.height, NOWHERE), parts, block=block)
    touched = touched_blocks((rect for _, rect in parts), grid.width, grid.height, block)
    base = Level(pieced, grid.width, grid.height, block, touched)
    if not _has_overviews(options):
        return [without_empty_blocks(base)]
    resampling = options.get("OVERVIEW_RESAMPLING", "AVERAGE" if classes is None else "MODE").upper()
    count = options.get("OVERVIEW_COUNT")
    smaller = overviews(base, scratch, _REDUCERS[resampling], None if count is None else int(count))
    return [base if smaller else without_empty_blocks(base), *smaller]


def _has_overviews(options: Mapping[str, str]) -> bool:
    return options.get("OVERVIEWS", "AUTO").upper() != "NONE"


def _copy(virtual: Path, target: Path, options: Mapping[str, str]) -> None:
    ours = {"OVERVIEW_RESAMPLING", "OVERVIEW_COUNT", "OVERVIEWS"}
    given = {key: value for key, value in options.items() if key not in ours}
    existing = "FORCE_USE_EXISTING" if _has_overviews(options) else "NONE"
    rasterio.shutil.copy(virtual, target, driver="COG", OVERVIEWS=existing, **given)


def _check(written: Path, out: Path, levels: Sequence[Level], options: Mapping[str, str]) -> None:
    sync(written)
    sparse = options["SPARSE_OK"].upper() in ("TRUE", "YES", "ON", "1")
    tiles = [int(level.touched.sum() if sparse else level.touched.size) for level in levels]
    if not is_whole(written, tiles):
        raise OutputError(f"The map {out} was not written whole: make room on the disk and run again.")


def _put_sidecar(written: Path, out: Path, grid: MapGrid, classes: Sequence[MapClass] | None) -> None:
    """Put the sidecar of `out` in place, with whatever of the georeference `written` could not hold."""
    sidecar_path(written).unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)  # nor may the scene be
        with rasterio.open(written) as dataset:
            lost = not grid.same_place(MapGrid.of(dataset))
    if classes is not None or lost:
        write_atomically(sidecar_path(out), sidecar(classes, georeference(grid) if lost else ""))
    else:
        sidecar_path(out).unlink(missing_ok=True)
