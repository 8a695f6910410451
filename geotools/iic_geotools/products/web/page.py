"""One HTML file with a scene, its map and a legend, that loads nothing from elsewhere."""

import io
import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image
from rasterio.errors import RasterioError

from iic_geotools.classmap.classes import NODATA, MapClass
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.files import write_atomically
from iic_geotools.products.areas import ClassArea, ClassAreas, class_areas
from iic_geotools.products.preview import (
    EMPTY,
    Bytes,
    palette,
    percent,
    read_pictures,
)
from iic_geotools.tiling import Rect

SUFFIXES = (".html", ".htm")
SIDE = 2048
"""The longest side in pixels of the pictures in a page: larger scenes are reduced."""
_QUALITY = 85
_OPACITY = 0.6
# Square metres from which areas are given in this unit.
_UNITS = ((1e9, 1e6, "km²"), (1e4, 1e4, "ha"), (0.0, 1.0, "m²"))


@dataclass(frozen=True)
class WebPage:
    """A page that shows a scene and its map in a browser, with or without a network.

    Attributes:
        scene: Path or address of the scene; anything GDAL opens.
        map: Path of the map, which may cover only a part of the scene.
        classes: Names and colours of the values 0, 1, ...
        bidx: Bands to show as red, green and blue, counted from 1; with fewer than three, the first one in grey.
        region: The pixels of the scene that the map covers; by default all of them.
        areas: Areas of the map's classes, if they have been measured already.
        title: Heading of the page; by default the name of the map.
        note: A sentence below the legend.
        side: The longest side in pixels of the pictures in the page.
    """

    scene: str | Path
    map: Path
    classes: Sequence[MapClass]
    bidx: Sequence[int]
    region: Rect | None = None
    areas: ClassAreas | None = None
    title: str = ""
    note: str = ""
    side: int = SIDE

    def html(self) -> str:
        """Return the page."""
        try:
            reduce = partial(_reduced_size, side=self.side)
            pictures = read_pictures(self.scene, self.map, reduce, self.bidx, self.region)
            areas = self.areas or class_areas(self.map, self.classes)
        except RasterioError as error:
            raise SceneError(f"No page can be made: {error}") from error
        notes = [self.note] if self.note else []
        if pictures.reduced:
            height, width = pictures.values.shape
            notes.append(
                f"The pictures are reduced to {width} x {height} pixels; areas are those of the whole map."
            )
        elements = _picture("scene", "image/jpeg", _jpeg(pictures.scene))
        elements += _picture("map", "image/png", _indexed_png(pictures.values, self.classes))
        legend = _legend(areas, self.classes)
        return _document(self.title or self.map.name, elements, pictures.metres, legend, notes)

    def write(self, out: Path) -> None:
        """Write the page as a .html file.

        Raises:
            SceneError: Scene or map cannot be read.
        """
        if out.suffix.lower() not in SUFFIXES:
            raise UsageError(f"A page is written as .html, not as {out.suffix or out.name!r}.")
        write_atomically(out, self.html().encode())


def embed(page: str, height: int = 480) -> str:
    """Return a page as an element of another page, which it can neither read nor change.

    Args:
        page: What `WebPage.html` returned.
        height: Height of the element in pixels.
    """
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts" title="map" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def _reduced_size(width: int, height: int, side: int) -> tuple[int, int]:
    scale = min(1.0, side / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _jpeg(image: Bytes) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="JPEG", quality=_QUALITY, optimize=True)
    return buffer.getvalue()


def _indexed_png(values: Bytes, classes: Sequence[MapClass]) -> bytes:
    """Return the values of a map as a paletted picture in which no data is transparent.

    The viewer relies on the layout, which no imaging library promises: it hides classes by their entries in the chunk
    tRNS, and reads values from the rows, which are not filtered.
    """
    height, width = values.shape
    rows = np.zeros((height, 1 + width), np.uint8)
    rows[:, 1:] = values
    opaque = np.zeros(256, np.uint8)
    opaque[: len(classes)] = 255
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette(classes).tobytes()),
        (b"tRNS", opaque.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    content = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + content


def _picture(name: str, kind: str, content: bytes) -> str:
    return f'<img id="{name}" alt="The {name}" src="data:{kind};base64,{b64encode(content).decode()}">'


def _legend(areas: ClassAreas, classes: Sequence[MapClass]) -> str:
    known = [row.m2 for row in areas.classes if row.m2 is not None]
    whole = sum(known)
    least, divisor, unit = next(entry for entry in _UNITS if whole >= entry[0]) if known else (0.0, 1.0, "px")

    def amount(row: ClassArea) -> str:
        return f"{row.pixels:,}" if row.m2 is None else f"{row.m2 / divisor:,.{2 if least else 0}f}"

    rows = "".join(
        f"<tr{'' if row.pixels else ' class=absent'}><td><label>"
        f'<input type="checkbox" checked autocomplete="off" data-value="{row.value}">'
        f'<i style="background:{classes[row.value].colour}"></i><span>{escape(row.name)}</span></label>'
        f"<td>{amount(row)}<td>{escape(percent(row.share))}</tr>"
        for row in areas.classes
    )
    empty = areas.nodata
    if empty.pixels:
        share = escape(percent(empty.share))
        rows += (
            f'<tr><td><label><i style="background:{EMPTY}"></i><span>no data</span></label>'
            f'<td>{amount(empty)}<td title="of the whole map">{share}</tr>'
        )
    return f"<table><tr><th>class<th>{unit}<th>share</tr>{rows}</table>"


def _document(title: str, pictures: str, metres: float | None, legend: str, notes: Sequence[str]) -> str:
    script, style = (_resource(f"viewer.{suffix}") for suffix in ("js", "css"))
    # Nothing but the viewer runs, and nothing is fetched, whatever the names of classes hold.
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f'<main id="view" data-nodata="{NODATA}" data-metres="{metres or 0:.9g}">'
        f'<div id="pictures">{pictures}</div>'
        '<canvas id="canvas" tabindex="0" role="img" '
        'aria-label="Scene and map; arrow keys move, + and - zoom"></canvas>'
        '<p id="bar"></p><output id="here"></output>'
        '<div id="buttons"><button data-zoom="2" aria-label="Zoom in">+</button>'
        '<button data-zoom="0.5" aria-label="Zoom out">&minus;</button>'
        '<button data-zoom="" aria-label="Show all">⤢</button></div></main>'
        f"<aside><h1>{escape(title)}</h1>"
        f'<label id="slider"><span>scene</span><input id="opacity" type="range" min="0" max="1" step="0.01" '
        f'value="{_OPACITY}" aria-label="Opacity of the map"><span>map</span></label>'
        f"{legend}{''.join(f'<p>{escape(text)}</p>' for text in notes)}</aside>"
        f"<script>{script}</script></body></html>\n"
    )


def _resource(name: str) -> str:
    return (files("iic_geotools.products.web") / name).read_text(encoding="utf-8").strip()
