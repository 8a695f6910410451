"""A map written window by window, with its sidecar and its style."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import rasterio
from rasterio.errors import RasterioError
from rasterio.windows import Window

from iic_geotools.classmap.class_map import Bytes
from iic_geotools.classmap.classes import NODATA, MapClass
from iic_geotools.classmap.cog import DEFAULT_OPTIONS, assemble
from iic_geotools.classmap.sidecars import map_style, sidecar_path, style_path
from iic_geotools.errors import OutputError
from iic_geotools.files import put_in_place
from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect


def write_windows(
    out: Path,
    folder: Path,
    grid: GeoBox,
    windows: Iterable[tuple[Rect, Bytes]],
    *,
    classes: Sequence[MapClass] | None,
    tags: Mapping[str, str],
) -> list[tuple[Path, Path]]:
    """Write a map into a folder from windows that come one by one, with its sidecar and its style.

    Args:
        windows: Rectangles of the map and their values; what they do not cover is nodata.
        classes: Names and colours of the values 0, 1, ...; None for a continuous band, which has neither sidecar nor
            style.

    Returns:
        The files that were written and where each of them belongs, the map last; `put_in_place` moves them.
    """
    block = int(DEFAULT_OPTIONS["BLOCKSIZE"])
    part, written = folder / "part.tif", folder / f"map{out.suffix.lower()}"
    _write_part(part, out, grid, windows, block)
    whole = [(part, Rect(0, 0, grid.width, grid.height))]
    assemble(whole, written, grid, classes=classes, tags=tags)
    part.unlink()
    if classes is None:
        return [(written, out)]
    style = folder / "map.qml"
    style.write_bytes(map_style(classes))
    return [(sidecar_path(written), sidecar_path(out)), (style, style_path(out)), (written, out)]


def _write_part(
    part: Path, out: Path, grid: GeoBox, windows: Iterable[tuple[Rect, Bytes]], block: int
) -> None:
    profile = {
        "driver": "GTiff",
        "count": 1,
        "dtype": "uint8",
        "nodata": NODATA,
        "width": grid.width,
        "height": grid.height,
        "crs": grid.crs,
        "transform": grid.transform,
        "tiled": True,
        "blockxsize": block,
        "blockysize": block,
        "compress": "lzw",
        "SPARSE_OK": "TRUE",
        "BIGTIFF": "IF_SAFER",
    }
    try:
        with gdal_errors(), rasterio.open(part, "w", **profile) as dataset:
            for rect, values in windows:
                if (values != NODATA).any():
                    dataset.write(values, 1, window=Window(rect.col, rect.row, rect.width, rect.height))
    except RasterioError as error:
        raise OutputError(f"The map {out} cannot be written: {error}") from error


def place_files(moves: Sequence[tuple[Path, Path]]) -> None:
    """Put files in place, in this order."""
    for source, final in moves:
        put_in_place(source, final)
