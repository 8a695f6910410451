"""GDAL's sidecar (`map.tif.aux.xml`): what a GeoTIFF cannot hold, class names and the attribute table."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from iic_geotools.colours import MapClass, rgb

# GDAL's GDALRATFieldType and GDALRATFieldUsage
_INTEGER, _STRING = 0, 2
_NAME, _MINMAX, _RED, _GREEN, _BLUE, _ALPHA = 2, 5, 6, 7, 8, 9

_COLUMNS = (
    ("Value", _INTEGER, _MINMAX),
    ("Class", _STRING, _NAME),
    ("Red", _INTEGER, _RED),
    ("Green", _INTEGER, _GREEN),
    ("Blue", _INTEGER, _BLUE),
    ("Alpha", _INTEGER, _ALPHA),
)


def sidecar_path(raster: Path) -> Path:
    """Where GDAL looks for the sidecar of `raster`."""
    return raster.with_name(f"{raster.name}.aux.xml")


def sidecar(classes: Sequence[MapClass] | None, georeference: str = "") -> bytes:
    """The sidecar's text.

    Args:
        classes: Names and colours of the values 0, 1, ..., if it has classes.
        georeference: GDAL's XML of it (`vrt.georeference`), if the GeoTIFF could not hold all of it: GDAL
            believes the sidecar first.
    """
    root = ET.fromstring(f"<PAMDataset>{georeference}</PAMDataset>")
    if classes is not None:
        band = ET.SubElement(root, "PAMRasterBand", band="1")
        names = ET.SubElement(band, "CategoryNames")
        for map_class in classes:
            ET.SubElement(names, "Category").text = map_class.name
        band.append(_attribute_table(classes))
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8"))


def _attribute_table(classes: Sequence[MapClass]) -> ET.Element:
    table = ET.Element("GDALRasterAttributeTable", tableType="thematic")
    for index, (name, kind, usage) in enumerate(_COLUMNS):
        column = ET.SubElement(table, "FieldDefn", index=str(index))
        ET.SubElement(column, "Name").text = name
        ET.SubElement(column, "Type").text = str(kind)
        ET.SubElement(column, "Usage").text = str(usage)
    for value, map_class in enumerate(classes):
        row = ET.SubElement(table, "Row", index=str(value))
        for cell in (value, map_class.name, *rgb(map_class.colour), 255):
            ET.SubElement(row, "F").text = str(cell)
    return table
