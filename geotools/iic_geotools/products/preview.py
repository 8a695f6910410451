"""A picture of a scene and its map, with a legend."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from rasterio.errors import RasterioError

from iic_geotools.classmap.classes import MapClass
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.files import replacement
from iic_geotools.products.areas import ClassAreas, class_areas
from iic_geotools.products.pictures import (
    EMPTY,
    palette,
    percent,
    read_pictures,
)
from iic_geotools.tiling import Rect

PANEL = 1000
_SMALLEST_PANEL = 320
_ENTRIES = 24

_WHITE, _LINE, _INK, _FAINT = "#ffffff", "#b8b8b8", "#222222", "#666666"


@dataclass(frozen=True)
class _Style:
    """Sizes of text and gaps in pixels, which depend on the size of the picture."""

    text: int
    gap: int

    @property
    def font(self) -> Any:
        return ImageFont.load_default(self.text)

    @property
    def line(self) -> int:
        return round(self.text * 1.6)


def preview(
    scene_path: str | Path,
    map_path: Path,
    out: Path,
    classes: Sequence[MapClass],
    *,
    bidx: Sequence[int],
    region: Rect | None = None,
    areas: ClassAreas | None = None,
) -> None:
    """Draw the scene and its map at the same scale, with class names, colours, shares and a scale bar.

    Wide scenes are drawn above their map, others beside it. Memory is that of the picture.

    Args:
        scene_path: Path or address of the scene; anything GDAL opens.
        map_path: Path of the map, which may cover only a part of the scene.
        out: Path of the picture, a .png file.
        classes: Names and colours of the values 0, 1, ...
        bidx: Bands to show as red, green and blue, counted from 1; with fewer than three, the first one in grey.
        region: The pixels of the scene that the map covers; by default all of them.
        areas: Areas of the map's classes, if they have been measured already.

    Raises:
        UsageError: The suffix is not .png.
        SceneError: Scene or map cannot be read.
        OutputError: The picture cannot be written.
    """
    if out.suffix.lower() != ".png":
        raise UsageError(f"A preview is written as .png, not as {out.suffix or out.name!r}.")
    try:
        pictures = read_pictures(scene_path, map_path, _panel_size, bidx, region)
        entries = _entries(areas or class_areas(map_path, classes), classes)
    except RasterioError as error:
        raise SceneError(f"No preview can be made: {error}") from error
    left, right = Image.fromarray(pictures.scene), Image.fromarray(palette(classes)[pictures.values])
    picture = _compose(left, right, entries, pictures.metres)
    try:
        with replacement(out) as temporary:
            picture.save(temporary, format="PNG")
    except OSError as error:
        raise OutputError(f"The preview {out} cannot be written: {error}") from error


def _panel_size(width: int, height: int) -> tuple[int, int]:
    """Width and height of a panel: large rasters are reduced, tiny ones are drawn with large pixels."""
    longest = max(width, height)
    scale = min(1.0, PANEL / longest) if longest > _SMALLEST_PANEL else _SMALLEST_PANEL // longest
    return max(1, round(width * scale)), max(1, round(height * scale))


def _entries(areas: ClassAreas, classes: Sequence[MapClass]) -> list[tuple[str, str, str]]:
    """Colour, name and share of each entry of the legend: every class, or the largest if there are many."""
    rows = list(areas.classes)
    if len(rows) > _ENTRIES:
        largest = sorted(rows, key=lambda row: -row.pixels)[:_ENTRIES]
        rows = [row for row in rows if row in largest and row.pixels]
    entries = [(classes[row.value].colour, row.name, percent(row.share)) for row in rows]
    if left_out := sum(1 for row in areas.classes if row.pixels and row not in rows):
        entries.append((_WHITE, f"and {left_out} more", ""))
    if areas.nodata.pixels:
        entries.append((EMPTY, "no data", f"{percent(areas.nodata.share)} of the map"))
    return entries


def _compose(
    left: Image.Image, right: Image.Image, entries: list[tuple[str, str, str]], metres: float | None
) -> Image.Image:
    wide, high = left.size
    stacked = wide > 1.5 * high
    text = round(min(24, max(13, max(wide, high) / 55)))
    style = _Style(text, gap=text)
    panels = (
        (wide, 2 * (high + style.line) + style.gap) if stacked else (2 * wide + style.gap, high + style.line)
    )
    legend_beside = panels[1] > panels[0]
    columns = 1 if legend_beside else max(1, panels[0] // _column_width(entries, style))
    legend = _legend(entries, style, columns, metres)
    gap = style.gap
    if legend_beside:
        size = panels[0] + legend.width + 3 * gap, max(panels[1], legend.height + style.line) + 2 * gap
        corner = (panels[0] + 2 * gap, gap + style.line)
    else:
        size = max(panels[0], legend.width) + 2 * gap, panels[1] + legend.height + 3 * gap
        corner = (gap, panels[1] + 2 * gap)
    picture = Image.new("RGB", size, _WHITE)
    second = (gap, 2 * gap + high + style.line) if stacked else (2 * gap + wide, gap)
    _paste(picture, left, (gap, gap), "Scene", style)
    _paste(picture, right, second, "Map", style)
    picture.paste(legend, corner)
    return picture


def _paste(
    picture: Image.Image, panel: Image.Image, corner: tuple[int, int], title: str, style: _Style
) -> None:
    x, y = corner
    draw = ImageDraw.Draw(picture)
    draw.text((x, y), title, font=style.font, fill=_FAINT)
    picture.paste(panel, (x, y + style.line))
    draw.rectangle((x - 1, y + style.line - 1, x + panel.width, y + style.line + panel.height), outline=_LINE)


def _column_width(entries: list[tuple[str, str, str]], style: _Style) -> int:
    longest: float = max(style.font.getlength(f"{name}  {share}") for _, name, share in entries)
    return math.ceil(longest) + 4 * style.text


def _legend(
    entries: list[tuple[str, str, str]], style: _Style, columns: int, metres: float | None
) -> Image.Image:
    columns = min(columns, len(entries))
    rows = -(-len(entries) // columns)
    column = _column_width(entries, style)
    bar = _scale_bar(metres, column - 2 * style.text) if metres else None
    height = rows * style.line + (2 * style.line if bar else 0)
    image = Image.new("RGB", (columns * column, height), _WHITE)
    draw = ImageDraw.Draw(image)
    for number, (colour, name, share) in enumerate(entries):
        x, y = number // rows * column, number % rows * style.line
        side = round(style.text * 1.1)
        outline = _LINE if colour != _WHITE else None
        draw.rectangle((x, y, x + round(side * 1.4), y + side), fill=colour, outline=outline)
        text_x = x + 2 * style.text
        draw.text((text_x, y), name, font=style.font, fill=_INK)
        after = text_x + style.font.getlength(f"{name}  ")
        draw.text((after, y), share, font=style.font, fill=_FAINT)
    if bar:
        _draw_scale_bar(draw, (0, height - round(style.line * 0.9)), bar, style)
    return image


def _scale_bar(metres: float, longest: int) -> tuple[int, str]:
    """Length in pixels and label of a bar of a round number of metres, at most `longest` pixels."""
    reach = metres * longest
    power = 10.0 ** math.floor(math.log10(reach))
    length = next(step * power for step in (5, 2, 1) if step * power <= reach)
    label = (
        f"{length / 1000:g} km"
        if length >= 1000
        else f"{length:g} m"
        if length >= 1
        else f"{length * 100:g} cm"
    )
    return max(1, round(length / metres)), label


def _draw_scale_bar(
    draw: ImageDraw.ImageDraw, corner: tuple[int, int], bar: tuple[int, str], style: _Style
) -> None:
    x, y = corner
    length, label = bar
    middle = y + style.text // 2
    tick = style.text // 3
    draw.line((x, middle, x + length, middle), fill=_INK, width=2)
    for end in (x, x + length):
        draw.line((end, middle - tick, end, middle + tick), fill=_INK, width=2)
    draw.text((x + length + style.text // 2, y - style.text // 8), label, font=style.font, fill=_INK)
