"""Many maps as one: a virtual mosaic that QGIS opens like a single file."""

import os
from collections.abc import Sequence
from pathlib import Path

from affine import Affine

from iic_geotools.classmap.classes import NODATA, MapClass
from iic_geotools.classmap.vrt import (
    band_header,
    colour_table,
    georeference,
    metadata,
    source_rects,
    xml_text,
)
from iic_geotools.errors import OutputError
from iic_geotools.files import check_folder, check_name, check_suffix, write_atomically
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import open_foreign
from iic_geotools.tiling import Rect

# Pixel sizes that differ by less than this share of a pixel are the same.
_TOLERANCE = 1e-6
_MARK = "IIC_MOSAIC"
_BLOCK = 512


def check_mosaic(mosaic: Path, overwrite: bool) -> None:
    """Refuse a path that a mosaic cannot be written to, before any work; an earlier mosaic may be replaced.

    Args:
        mosaic: Path of the mosaic.
        overwrite: Whether any other file may be replaced too.

    Raises:
        UsageError: The suffix is not .vrt.
        OutputError: Another file is there, or there is no such folder.
    """
    check_name(mosaic)
    check_suffix(mosaic, (".vrt",), "mosaic")
    check_folder(mosaic)
    if (
        mosaic.exists()
        and not overwrite
        and _MARK not in mosaic.read_text(encoding="utf-8", errors="replace")
    ):
        raise OutputError(f"{mosaic} exists and is not a mosaic of maps: give another name, or `overwrite`.")


def write_mosaic(maps: Sequence[Path], mosaic: Path, classes: Sequence[MapClass]) -> None:
    """Write a virtual raster over class maps of one CRS and pixel size; later maps lie over earlier ones.

    The virtual raster refers to the maps by relative paths, so that all of them can be moved together.

    Args:
        maps: Paths of the maps.
        mosaic: Path of the virtual raster.
        classes: Names and colours of the values 0, 1, ...

    Raises:
        OutputError: The maps differ in CRS or pixel size, or are not georeferenced.
    """
    grids = []
    for path in maps:
        with open_foreign(str(path)) as dataset:
            grids.append(GeoBox.of(dataset))
    whole, rects = lay_out(grids, [str(path) for path in maps])
    names = "".join(f"<Category>{xml_text(map_class.name)}</Category>" for map_class in classes)
    content = [
        f'<VRTDataset rasterXSize="{whole.width}" rasterYSize="{whole.height}">\n',
        georeference(whole),
        metadata({_MARK: f"{len(maps)} maps"}),
        band_header(_BLOCK),
        colour_table(classes, len(classes)),
        f"<CategoryNames>{names}</CategoryNames>\n",
        *(_source(path, rect, mosaic) for path, rect in zip(maps, rects, strict=True)),
        "</VRTRasterBand>\n</VRTDataset>\n",
    ]
    write_atomically(mosaic, "".join(content).encode())


def lay_out(grids: Sequence[GeoBox], names: Sequence[str]) -> tuple[GeoBox, list[Rect]]:
    """The grid that holds all of `grids`, and the rectangle of each of them on it, to the nearest pixel.

    Args:
        grids: Grids of one CRS and pixel size.
        names: Names of the grids, for error messages.

    Raises:
        OutputError: The grids differ in CRS or pixel size, or are not georeferenced.
    """
    first = grids[0]
    for grid, name in zip(grids, names, strict=True):
        if grid.transform == Affine.identity() or grid.gcps:
            raise OutputError(
                f"`mosaic` needs maps that are georeferenced by a transform, and {name} is not."
            )
        if grid.crs != first.crs or not _same_pixels(first.transform, grid.transform):
            raise OutputError(
                f"`mosaic` needs maps of one CRS and pixel size, and {name} differs from {names[0]}: "
                "warp the scenes to one grid first."
            )
    to_pixels = ~first.transform
    corners = [to_pixels @ (grid.transform.c, grid.transform.f) for grid in grids]
    rects = [
        Rect(round(x), round(y), grid.width, grid.height) for (x, y), grid in zip(corners, grids, strict=True)
    ]
    col, row = min(rect.col for rect in rects), min(rect.row for rect in rects)
    right, bottom = max(rect.right for rect in rects), max(rect.bottom for rect in rects)
    whole = Rect(col, row, right - col, bottom - row)
    transform = first.transform @ Affine.translation(col, row)
    return GeoBox(whole.width, whole.height, transform, first.crs), [
        rect.relative_to(whole) for rect in rects
    ]


def _same_pixels(one: Affine, other: Affine) -> bool:
    size = max(abs(one.a), abs(one.b), abs(one.d), abs(one.e))
    pairs = ((one.a, other.a), (one.b, other.b), (one.d, other.d), (one.e, other.e))
    return all(abs(x - y) <= _TOLERANCE * size for x, y in pairs)


def _source(path: Path, rect: Rect, mosaic: Path) -> str:
    name = os.path.relpath(path.resolve(), mosaic.resolve().parent)
    # A complex source lets the maps below show through where there is no data.
    return (
        f'<ComplexSource><SourceFilename relativeToVRT="1">{xml_text(name)}</SourceFilename>'
        f"<SourceBand>1</SourceBand>{source_rects(rect, _BLOCK)}<NODATA>{NODATA}</NODATA></ComplexSource>\n"
    )
