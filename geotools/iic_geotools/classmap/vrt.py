"""GDAL's virtual rasters, as XML, and the mosaic of many maps as one of them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import rasterio
from affine import Affine
from rasterio.crs import CRS
from rasterio.dtypes import dtype_rev, typename_fwd

from iic_geotools.classmap.classes import NODATA, MapClass, rgb
from iic_geotools.errors import OutputError
from iic_geotools.files import check_folder, check_name, check_suffix, write_atomically
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import open_foreign
from iic_geotools.tiling import Rect

# Pixel sizes that differ by less than this share of a pixel are the same.
_TOLERANCE = 1e-6
_MARK = "IIC_MOSAIC"
_BLOCK = 512


def xml_text(text: str) -> str:
    """Escape a text for XML; the functions of `xml.sax.saxutils` would import Python's web clients."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def xml_attribute(text: str) -> str:
    """Quote and escape the value of an XML attribute."""
    escaped = xml_text(text).replace('"', "&quot;")
    for letter in "\n\r\t":
        escaped = escaped.replace(letter, f"&#{ord(letter)};")
    return f'"{escaped}"'


def write_vrt(
    path: Path,
    grid: GeoBox,
    sources: Iterable[tuple[Path, Rect]],
    *,
    block: int,
    overviews: Sequence[Path] = (),
    classes: Sequence[MapClass] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write a one-band virtual raster of bytes.

    Args:
        sources: The rasters that it consists of and the rectangle that each of them covers.
        block: Side of its blocks, and those of the sources, in pixels.
        overviews: The rasters that are its overviews, the largest first.
        classes: Names and colours of the values 0, 1, ...; None for a continuous band.
    """
    with path.open("w", encoding="utf-8") as file:
        file.write(f'<VRTDataset rasterXSize="{grid.width}" rasterYSize="{grid.height}">\n')
        file.write(georeference(grid))
        if tags:
            file.write(metadata(tags))
        file.write(band_header(block))
        file.write(colour_table(classes) if classes is not None else "<ColorInterp>Gray</ColorInterp>\n")
        for source, rect in sources:
            file.write(f"<SimpleSource>{_filename(source)}{source_rects(rect, block)}</SimpleSource>\n")
        file.writelines(f"<Overview>{_filename(overview)}</Overview>\n" for overview in overviews)
        file.write("</VRTRasterBand>\n</VRTDataset>\n")


def virtual_raster(grid: GeoBox, *content: str) -> str:
    """A virtual raster as text, which GDAL opens like a file."""
    size = f'rasterXSize="{grid.width}" rasterYSize="{grid.height}"'
    return f"<VRTDataset {size}>\n{georeference(grid)}{''.join(content)}</VRTDataset>"


def virtual_band(
    number: int | None, dtype: str, content: str, *, colour: str = "undefined", attributes: str = ""
) -> str:
    """A band of a virtual raster.

    Args:
        number: Its number, counted from 1; None for a mask.
        attributes: More attributes of the band.
    """
    kind = typename_fwd[dtype_rev[dtype]]
    place = "" if number is None else f' band="{number}"'
    return (
        f'<VRTRasterBand dataType="{kind}"{place}{attributes}><ColorInterp>{colour}</ColorInterp>'
        f"{content}</VRTRasterBand>\n"
    )


def whole_source(name: str, band: int | str, grid: GeoBox, *, lookup: str = "", properties: str = "") -> str:
    """All of a band of a raster of the same size, as a source of a virtual band."""
    whole = f'xOff="0" yOff="0" xSize="{grid.width}" ySize="{grid.height}"'
    kind = "ComplexSource" if lookup else "SimpleSource"
    return (
        f'<{kind}><SourceFilename relativeToVRT="0">{xml_text(name)}</SourceFilename><SourceBand>{band}</SourceBand>'
        f"{properties}<SrcRect {whole}/><DstRect {whole}/>{lookup}</{kind}>"
    )


def combination(
    function: Literal["min", "max"], number: int | None, sources: Sequence[str], colour: str = "alpha"
) -> str:
    """A band of bytes with the least or the largest value of its sources."""
    both = sources if len(sources) > 1 else [*sources, *sources]  # GDAL's functions want at least two
    content = f"<PixelFunctionType>{function}</PixelFunctionType>{''.join(both)}"
    return virtual_band(
        number, "uint8", content, colour=colour, attributes=' subClass="VRTDerivedRasterBand"'
    )


def georeference(grid: GeoBox) -> str:
    """The place of a grid on the ground, in the XML that virtual rasters and sidecars share."""
    lines = []
    if grid.crs is not None:
        lines.append(f"<SRS>{xml_text(_wkt(grid.crs))}</SRS>")
    if grid.transform != Affine.identity():
        lines.append(
            f"<GeoTransform>{', '.join(repr(float(x)) for x in grid.transform.to_gdal())}</GeoTransform>"
        )
    if grid.gcps:
        projection = f" Projection={xml_attribute(_wkt(grid.gcps_crs))}" if grid.gcps_crs is not None else ""
        lines.append(f"<GCPList{projection}>")
        lines += [
            f'<GCP Id="{number}" Pixel="{gcp.col!r}" Line="{gcp.row!r}"'
            f' X="{gcp.x!r}" Y="{gcp.y!r}" Z="{gcp.z or 0.0!r}"/>'
            for number, gcp in enumerate(grid.gcps, 1)
        ]
        lines.append("</GCPList>")
    if grid.rpcs is not None:
        lines.append(metadata(grid.rpcs.to_gdal(), domain="RPC").rstrip())
    return "".join(f"{line}\n" for line in lines)


def _wkt(crs: CRS) -> str:
    """WKT2 if possible: WKT1 loses the datum ensembles and methods of newer definitions."""
    try:
        return str(crs.to_wkt(version="WKT2_2019"))
    except rasterio.errors.CRSError:
        return str(crs.to_wkt())


def colour_table(classes: Sequence[MapClass], length: int = NODATA + 1) -> str:
    """The colours of the values 0, 1, ... as XML of a virtual raster's band.

    Args:
        length: Number of entries; a GeoTIFF needs all 256.
    """
    colours = [rgb(map_class.colour) for map_class in classes]
    entries = [f'<Entry c1="{red}" c2="{green}" c3="{blue}" c4="255"/>' for red, green, blue in colours]
    unused = ['<Entry c1="0" c2="0" c3="0" c4="0"/>'] * (length - len(entries))
    return f"<ColorInterp>Palette</ColorInterp>\n<ColorTable>{''.join(entries + unused)}</ColorTable>\n"


def metadata(tags: Mapping[str, str], domain: str = "") -> str:
    """Metadata of a virtual raster as XML, of a domain if one is named."""
    items = "".join(f"<MDI key={xml_attribute(key)}>{xml_text(value)}</MDI>" for key, value in tags.items())
    attribute = f" domain={xml_attribute(domain)}" if domain else ""
    return f"<Metadata{attribute}>{items}</Metadata>\n"


def band_header(block: int) -> str:
    """The beginning of a band of bytes: its blocks of `block` x `block` pixels and its nodata value."""
    return (
        f'<VRTRasterBand dataType="Byte" band="1" blockXSize="{block}" blockYSize="{block}">\n'
        f"<NoDataValue>{NODATA}</NoDataValue>\n"
    )


def source_rects(rect: Rect, block: int) -> str:
    """The size and place of a source that covers `rect`; they let GDAL open it only when its pixels are needed."""
    return (
        f'<SourceProperties RasterXSize="{rect.width}" RasterYSize="{rect.height}" DataType="Byte"'
        f' BlockXSize="{block}" BlockYSize="{block}"/>'
        f'<SrcRect xOff="0" yOff="0" xSize="{rect.width}" ySize="{rect.height}"/>'
        f'<DstRect xOff="{rect.col}" yOff="{rect.row}" xSize="{rect.width}" ySize="{rect.height}"/>'
    )


def _filename(path: Path) -> str:
    name = xml_text(str(path.resolve()))
    return f'<SourceFilename relativeToVRT="0">{name}</SourceFilename><SourceBand>1</SourceBand>'


def check_mosaic(mosaic: Path, overwrite: bool) -> None:
    """Refuse a path that a mosaic cannot be written to, before any work; an earlier mosaic may be replaced.

    Args:
        overwrite: Whether any other file may be replaced too.

    Raises:
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
    """The grid that holds all of `grids`, and the rectangle of each of them on it, to the nearest pixel."""
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
