"""One Cloud-Optimised GeoTIFF out of the parts of a map."""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import rasterio
import rasterio.shutil
from affine import Affine
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
    remapped,
    touched_blocks,
    without_empty_blocks,
)
from iic_geotools.pam import sidecar, sidecar_path
from iic_geotools.tiff import is_whole
from iic_geotools.vrt import MapGrid, georeference, write_vrt

__all__ = ["NODATA", "MapGrid", "assemble", "creation_options"]

DEFAULT_OPTIONS = {
    "COMPRESS": "DEFLATE",
    "BLOCKSIZE": "512",
    "BIGTIFF": "IF_SAFER",
    "NUM_THREADS": "ALL_CPUS",
    "SPARSE_OK": "TRUE",
}
# The COG driver's other options would change the grid, lose labels or compute what no map has a use for.
_OPTIONS = {
    *DEFAULT_OPTIONS,
    "LEVEL",
    "PREDICTOR",
    "OVERVIEWS",
    "OVERVIEW_COUNT",
    "OVERVIEW_RESAMPLING",
    "OVERVIEW_COMPRESS",
    "OVERVIEW_PREDICTOR",
    "GEOTIFF_VERSION",
}
_LOSSLESS = ("DEFLATE", "LZW", "ZSTD", "LZMA", "NONE")
_REDUCERS: dict[str, Reducer] = {"MODE": mode_of_four, "AVERAGE": mean_of_four, "NEAREST": nearest_of_four}


def creation_options(given: Mapping[str, str]) -> dict[str, str]:
    """The COG driver's options for a map: the defaults with `given` over them.

    Raises:
        UsageError: An option the driver does not know, or that a map must not have.
    """
    options = DEFAULT_OPTIONS | {key.upper(): str(value) for key, value in given.items()}
    for key in options:
        if key not in _OPTIONS:
            raise UsageError(f"{key} is no creation option of a map: use {', '.join(sorted(_OPTIONS))}.")
    for key in ("COMPRESS", "OVERVIEW_COMPRESS"):
        if options.get(key, "DEFLATE").upper() not in _LOSSLESS:
            raise UsageError(f"{key}={options[key]} is not for labels: use {', '.join(_LOSSLESS)}.")
    block = options["BLOCKSIZE"]
    if not block.isdigit() or int(block) < 128 or int(block) % 16:
        raise UsageError(f"BLOCKSIZE={block} is not possible: use a multiple of 16 from 128 on, e.g. 512.")
    count = options.get("OVERVIEW_COUNT", "0")
    if not count.isdigit() or int(count) > 30:
        raise UsageError(f"OVERVIEW_COUNT={count} is not possible: use a number from 0 to 30.")
    resampling = options.get("OVERVIEW_RESAMPLING", "MODE").upper()
    if resampling not in _REDUCERS:
        raise UsageError(f"OVERVIEW_RESAMPLING={resampling} is not possible: use {', '.join(_REDUCERS)}.")
    if options.get("OVERVIEWS", "AUTO").upper() not in ("AUTO", "NONE"):
        raise UsageError(f"OVERVIEWS={options['OVERVIEWS']} is not possible: use AUTO or NONE.")
    return options


def assemble(
    parts: Sequence[tuple[Path, Rect]],
    out: Path,
    grid: MapGrid,
    *,
    classes: Sequence[MapClass] | None,
    tags: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    parts_grid: MapGrid | None = None,
    scratch: Path | None = None,
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
        parts_grid: The grid the parts are on, if it is not the map's: same reference system, other pixel
            size. The map then takes the nearest pixel.
        scratch: Folder for intermediate files; the map's own if not given.

    Raises:
        UsageError: Options or classes that cannot be right.
        OutputError: A part cannot be read or the map cannot be written.
    """
    wanted = creation_options(options or {})
    if classes is not None and not 0 < len(classes) <= MAX_CLASSES:
        raise UsageError(f"A map has 1 to {MAX_CLASSES} classes, not {len(classes)}.")
    full = [(path, rect) for path, rect in parts if _holds_data(path)]
    try:
        with tempfile.TemporaryDirectory(dir=scratch or out.parent, prefix=f".{out.stem}.levels-") as folder:
            levels = _levels(full, grid, Path(folder), parts_grid=parts_grid, options=wanted, classes=classes)
            virtual = Path(folder) / "map.vrt"
            rects = full if parts_grid is None else [(levels[0].path, Rect(0, 0, grid.width, grid.height))]
            layers = [level.path for level in levels[1:]]
            block = int(wanted["BLOCKSIZE"])
            write_vrt(virtual, grid, rects, block=block, overviews=layers, classes=classes, tags=tags)
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


def _levels(
    parts: Sequence[tuple[Path, Rect]],
    grid: MapGrid,
    folder: Path,
    *,
    parts_grid: MapGrid | None,
    options: Mapping[str, str],
    classes: Sequence[MapClass] | None,
) -> list[Level]:
    """The map at full resolution and its overviews, in `folder`."""
    block = int(options["BLOCKSIZE"])
    on = parts_grid or grid
    pieced = folder / "parts.vrt"
    write_vrt(pieced, MapGrid(on.width, on.height, NOWHERE), parts, block=block)
    touched = touched_blocks((rect for _, rect in parts), on.width, on.height, block)
    base = Level(pieced, on.width, on.height, block, touched)
    if parts_grid is not None:
        base = remapped(base, folder / "base.tif", grid.width, grid.height, _between(grid, parts_grid))
    if not _has_overviews(options):
        return [without_empty_blocks(base)]
    resampling = options.get("OVERVIEW_RESAMPLING", "AVERAGE" if classes is None else "MODE").upper()
    count = options.get("OVERVIEW_COUNT")
    smaller = overviews(base, folder, _REDUCERS[resampling], None if count is None else int(count))
    return [base if smaller else without_empty_blocks(base), *smaller]


def _has_overviews(options: Mapping[str, str]) -> bool:
    return options.get("OVERVIEWS", "AUTO").upper() != "NONE"


def _between(grid: MapGrid, parts_grid: MapGrid) -> Affine:
    """From pixel coordinates on `grid` to those on `parts_grid`."""
    to, of = grid.transform, parts_grid.transform
    # The origins are subtracted first: they are large, and digits lost here would move pixels.
    wanted = [[to.a, to.b, to.c - of.c], [to.d, to.e, to.f - of.f]]
    a, b, c, d, e, f = np.linalg.solve([[of.a, of.b], [of.d, of.e]], wanted).ravel().tolist()
    if max(abs(b) * grid.height, abs(d) * grid.width) > 0.01:
        raise UsageError("The parts lie on a grid turned against the map's: give them the map's orientation.")
    return Affine(a, 0.0, c, 0.0, e, f)


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
