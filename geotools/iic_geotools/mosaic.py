"""Many maps as one: a virtual mosaic that QGIS opens like a single file."""

import os
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from affine import Affine

from iic_geotools.colours import MapClass
from iic_geotools.errors import OutputError, UsageError
from iic_geotools.files import write_atomically
from iic_geotools.grid import Rect
from iic_geotools.levels import NODATA
from iic_geotools.scene import open_raster
from iic_geotools.vrt import MapGrid, colour_table, georeference

# Within this share of a pixel two pixel sizes are one.
_TOLERANCE = 1e-6
_MARK = "IIC_MOSAIC"
_BLOCK = 512


def check_mosaic(out: Path, overwrite: bool) -> None:
    """Refuse a name that cannot be that of a mosaic, before any work; an earlier mosaic may be replaced.

    Raises:
        UsageError: it is not a .vrt.
        OutputError: something else is there, or no folder to write to.
    """
    if out.suffix.lower() != ".vrt":
        raise UsageError(f"--mosaic must end in .vrt, not {out.name}.")
    if not out.parent.is_dir():
        raise OutputError(f"There is no folder {out.parent} for the mosaic; make it first.")
    if out.exists() and not overwrite and _MARK not in out.read_text(encoding="utf-8", errors="replace"):
        raise OutputError(f"{out} exists and is no mosaic of maps; give another name, or --overwrite.")


def write_mosaic(maps: Sequence[Path], out: Path, classes: Sequence[MapClass]) -> None:
    """Write a virtual raster over class maps of one CRS and pixel size; later maps lie over earlier ones.

    The maps are named relative to it, so that all may be moved together.

    Raises:
        OutputError: The maps do not lie on grids of one kind.
    """
    grids = []
    for each in maps:
        with open_raster(str(each)) as dataset:
            grids.append(MapGrid.of(dataset))
    whole, rects = lay_out(grids, [str(each) for each in maps])
    names = "".join(f"<Category>{escape(each.name)}</Category>" for each in classes)
    lines = [
        f'<VRTDataset rasterXSize="{whole.width}" rasterYSize="{whole.height}">',
        georeference(whole),
        f'<Metadata><MDI key="{_MARK}">{len(maps)} maps</MDI></Metadata>',
        f'<VRTRasterBand dataType="Byte" band="1" blockXSize="{_BLOCK}" blockYSize="{_BLOCK}">',
        f"<NoDataValue>{NODATA}</NoDataValue>",
        colour_table(classes, len(classes)),
        f"<CategoryNames>{names}</CategoryNames>",
        *(_source(each, rect, out) for each, rect in zip(maps, rects, strict=True)),
        "</VRTRasterBand>\n</VRTDataset>",
    ]
    write_atomically(out, "\n".join(lines).encode())


def lay_out(grids: Sequence[MapGrid], names: Sequence[str]) -> tuple[MapGrid, list[Rect]]:
    """The grid that holds all of `grids`, and where on it each of them lies, to the nearest pixel."""
    first = grids[0]
    for grid, name in zip(grids, names, strict=True):
        if grid.transform == Affine.identity() or grid.gcps:
            raise OutputError(
                f"--mosaic needs maps that are georeferenced by a transform, and {name} is not."
            )
        if grid.crs != first.crs or not _same_pixels(first.transform, grid.transform):
            raise OutputError(
                f"--mosaic needs maps of one CRS and pixel size, and {name} differs from {names[0]}; "
                "warp the scenes to one grid first."
            )
    to_pixels = ~first.transform
    corners = [to_pixels @ (grid.transform.c, grid.transform.f) for grid in grids]
    places = [Rect(round(x), round(y), g.width, g.height) for (x, y), g in zip(corners, grids, strict=True)]
    col, row = min(each.col for each in places), min(each.row for each in places)
    right, bottom = max(each.right for each in places), max(each.bottom for each in places)
    whole = Rect(col, row, right - col, bottom - row)
    transform = first.transform @ Affine.translation(col, row)
    return MapGrid(whole.width, whole.height, transform, first.crs), [p.relative_to(whole) for p in places]


def _same_pixels(one: Affine, other: Affine) -> bool:
    size = max(abs(one.a), abs(one.b), abs(one.d), abs(one.e))
    pairs = ((one.a, other.a), (one.b, other.b), (one.d, other.d), (one.e, other.e))
    return all(abs(x - y) <= _TOLERANCE * size for x, y in pairs)


def _source(path: Path, rect: Rect, out: Path) -> str:
    name = os.path.relpath(path.resolve(), out.resolve().parent)
    # A complex source lets what lies below show through where there is no data.
    return (
        f'<ComplexSource><SourceFilename relativeToVRT="1">{escape(name)}</SourceFilename>'
        f"<SourceBand>1</SourceBand>"
        f'<SourceProperties RasterXSize="{rect.width}" RasterYSize="{rect.height}" DataType="Byte"'
        f' BlockXSize="{_BLOCK}" BlockYSize="{_BLOCK}"/>'
        f'<SrcRect xOff="0" yOff="0" xSize="{rect.width}" ySize="{rect.height}"/>'
        f'<DstRect xOff="{rect.col}" yOff="{rect.row}" xSize="{rect.width}" ySize="{rect.height}"/>'
        f"<NODATA>{NODATA}</NODATA></ComplexSource>"
    )
