"""GDAL's virtual rasters, as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from xml.sax.saxutils import escape, quoteattr

import rasterio
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS

from iic_geotools.colours import MapClass, rgb
from iic_geotools.grid import Rect
from iic_geotools.levels import NODATA


@dataclass(frozen=True)
class MapGrid:
    """The pixels of a map and where they are on the ground.

    Attributes:
        width: Columns.
        height: Rows.
        transform: From pixel to ground coordinates; the identity if only ground control points are known.
        crs: Coordinate reference system of the transform, if known.
        gcps: Ground control points of a raster that was never rectified.
        gcps_crs: Their coordinate reference system.
    """

    width: int
    height: int
    transform: Affine
    crs: CRS | None = None
    gcps: tuple[GroundControlPoint, ...] = ()
    gcps_crs: CRS | None = None

    @classmethod
    def of(cls, dataset: Any) -> Self:
        """The grid of an open rasterio dataset."""
        gcps, gcps_crs = dataset.gcps
        return cls(
            dataset.width,
            dataset.height,
            dataset.transform,
            dataset.crs or None,
            tuple(gcps or ()),
            gcps_crs or None,
        )

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, bottom, right and top of the smallest upright rectangle around it, on the ground."""
        corners = [self.transform @ (x, y) for x in (0, self.width) for y in (0, self.height)]
        xs, ys = zip(*corners, strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    def crop(self, rect: Rect) -> "MapGrid":
        """The pixels of `rect`, at their place."""
        gcps = tuple(
            GroundControlPoint(gcp.row - rect.row, gcp.col - rect.col, gcp.x, gcp.y, gcp.z, gcp.id, gcp.info)
            for gcp in self.gcps
        )
        # Where there is no georeference, the identity is a sign of that and not a place.
        nowhere = self.transform == Affine.identity()
        transform = self.transform if nowhere else self.transform @ Affine.translation(rect.col, rect.row)
        return MapGrid(rect.width, rect.height, transform, self.crs, gcps, self.gcps_crs)

    def same_place(self, other: "MapGrid") -> bool:
        """Whether both grids are georeferenced alike, to the last digit."""

        def points(grid: MapGrid) -> list[tuple[float, ...]]:
            return [(gcp.row, gcp.col, gcp.x, gcp.y, gcp.z or 0.0) for gcp in grid.gcps]

        return (
            self.transform == other.transform
            and self.crs == other.crs
            and points(self) == points(other)
            and self.gcps_crs == other.gcps_crs
        )


def write_vrt(
    path: Path,
    grid: MapGrid,
    sources: Iterable[tuple[Path, Rect]],
    *,
    block: int,
    overviews: Sequence[Path] = (),
    classes: Sequence[MapClass] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write a one-band virtual raster of bytes that pieces `sources` together on `grid`."""
    with path.open("w", encoding="utf-8") as file:
        file.write(f'<VRTDataset rasterXSize="{grid.width}" rasterYSize="{grid.height}">\n')
        file.write(georeference(grid))
        if tags:
            items = "".join(f"<MDI key={quoteattr(k)}>{escape(v)}</MDI>" for k, v in tags.items())
            file.write(f"<Metadata>{items}</Metadata>\n")
        file.write(f'<VRTRasterBand dataType="Byte" band="1" blockXSize="{block}" blockYSize="{block}">\n')
        file.write(f"<NoDataValue>{NODATA}</NoDataValue>\n")
        file.write(colour_table(classes) if classes is not None else "<ColorInterp>Gray</ColorInterp>\n")
        file.writelines(_source(source, rect, block) for source, rect in sources)
        file.writelines(f"<Overview>{_filename(overview)}</Overview>\n" for overview in overviews)
        file.write("</VRTRasterBand>\n</VRTDataset>\n")


def georeference(grid: MapGrid) -> str:
    """Where the grid is on the ground, in the XML that virtual rasters and sidecars share."""
    lines = []
    if grid.crs is not None:
        lines.append(f"<SRS>{escape(_wkt(grid.crs))}</SRS>")
    if grid.transform != Affine.identity():
        lines.append(
            f"<GeoTransform>{', '.join(repr(float(x)) for x in grid.transform.to_gdal())}</GeoTransform>"
        )
    if grid.gcps:
        projection = f" Projection={quoteattr(_wkt(grid.gcps_crs))}" if grid.gcps_crs is not None else ""
        lines.append(f"<GCPList{projection}>")
        lines += [
            f'<GCP Id="{number}" Pixel="{gcp.col!r}" Line="{gcp.row!r}"'
            f' X="{gcp.x!r}" Y="{gcp.y!r}" Z="{gcp.z or 0.0!r}"/>'
            for number, gcp in enumerate(grid.gcps, 1)
        ]
        lines.append("</GCPList>")
    return "".join(f"{line}\n" for line in lines)


def _wkt(crs: CRS) -> str:
    """WKT2 where the system has one: WKT1 loses the datum ensembles and methods of newer definitions."""
    try:
        return str(crs.to_wkt(version="WKT2_2019"))
    except rasterio.errors.CRSError:
        return str(crs.to_wkt())


def colour_table(classes: Sequence[MapClass], length: int = NODATA + 1) -> str:
    """The colours of the values 0, 1, ... in the XML of a virtual raster's band, padded to `length` for GeoTIFF."""
    entries = [
        f'<Entry c1="{r}" c2="{g}" c3="{b}" c4="255"/>' for r, g, b in (rgb(c.colour) for c in classes)
    ]
    unused = ['<Entry c1="0" c2="0" c3="0" c4="0"/>'] * (length - len(entries))
    return f"<ColorInterp>Palette</ColorInterp>\n<ColorTable>{''.join(entries + unused)}</ColorTable>\n"


def _source(path: Path, rect: Rect, block: int) -> str:
    # The properties let GDAL open a source only when its pixels are asked for.
    return (
        f"<SimpleSource>{_filename(path)}"
        f'<SourceProperties RasterXSize="{rect.width}" RasterYSize="{rect.height}" DataType="Byte"'
        f' BlockXSize="{block}" BlockYSize="{block}"/>'
        f'<SrcRect xOff="0" yOff="0" xSize="{rect.width}" ySize="{rect.height}"/>'
        f'<DstRect xOff="{rect.col}" yOff="{rect.row}" xSize="{rect.width}" ySize="{rect.height}"/>'
        "</SimpleSource>\n"
    )


def _filename(path: Path) -> str:
    name = escape(str(path.resolve()))
    return f'<SourceFilename relativeToVRT="0">{name}</SourceFilename><SourceBand>1</SourceBand>'
