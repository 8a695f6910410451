"""GDAL's virtual rasters, as XML."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import rasterio
from affine import Affine
from rasterio.crs import CRS
from rasterio.dtypes import dtype_rev, typename_fwd

from iic_geotools.classmap.classes import NODATA, MapClass, rgb
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect


def xml_text(text: str) -> str:
    """A text between tags of XML. The functions of `xml.sax.saxutils` would import all that talks to web servers."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def xml_attribute(text: str) -> str:
    """The value of an attribute in XML, with its quotation marks."""
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
        path: Path of the virtual raster.
        grid: Its grid and georeference.
        sources: The rasters that it consists of and the rectangle that each of them covers.
        block: Side of its blocks, and those of the sources, in pixels.
        overviews: The rasters that are its overviews, the largest first.
        classes: Names and colours of the values 0, 1, ...; None for a continuous band.
        tags: Metadata of the raster.
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
    """A virtual raster as text, which GDAL opens like a file.

    Args:
        grid: Its grid and georeference.
        content: Its bands and its mask, as XML.
    """
    size = f'rasterXSize="{grid.width}" rasterYSize="{grid.height}"'
    return f"<VRTDataset {size}>\n{georeference(grid)}{''.join(content)}</VRTDataset>"


def virtual_band(
    number: int | None, dtype: str, content: str, *, colour: str = "undefined", attributes: str = ""
) -> str:
    """A band of a virtual raster.

    Args:
        number: Its number, counted from 1; None for a mask.
        dtype: Its data type, by rasterio's name.
        content: Its sources and what else is in it, as XML.
        colour: Its colour interpretation, by rasterio's name.
        attributes: More attributes of the band.
    """
    kind = typename_fwd[dtype_rev[dtype]]
    place = "" if number is None else f' band="{number}"'
    return (
        f'<VRTRasterBand dataType="{kind}"{place}{attributes}><ColorInterp>{colour}</ColorInterp>'
        f"{content}</VRTRasterBand>\n"
    )


def whole_source(name: str, band: int | str, grid: GeoBox, *, lookup: str = "", properties: str = "") -> str:
    """All of a band of a raster of the same size, as a source of a virtual band.

    Args:
        name: GDAL's name of the raster.
        band: Number of its band, or "mask,N" for the mask of band N.
        grid: Its grid.
        lookup: A table that its values go through.
        properties: What GDAL would have to open it for.
    """
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
        classes: The classes of the values 0, 1, ...
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
