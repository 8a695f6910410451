"""Scenes and maps as pictures of a given size, and the preview: both next to each other, with a legend."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
from PIL import Image, ImageDraw, ImageFont
from rasterio.enums import ColorInterp, Resampling
from rasterio.errors import NodataShadowWarning, NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from iic_geotools.classmap.classes import MapClass, rgb
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.files import replacement
from iic_geotools.geobox import GeoBox
from iic_geotools.products.areas import ClassAreas, class_areas
from iic_geotools.tiling import Rect

EMPTY = "#ececec"
"""The colour of pixels without data."""
_PERCENTILES = (2.0, 98.0)
# At a stronger reduction, averaging would read every pixel of a scene without overviews: a sample is enough.
_MOST_AVERAGED = 16
# Rows that are stretched at once, in double precision.
_ROWS = 256

Bytes = npt.NDArray[np.uint8]

PANEL = 1000
_SMALLEST_PANEL = 320
_ENTRIES = 24

_WHITE, _LINE, _INK, _FAINT = "#ffffff", "#b8b8b8", "#222222", "#666666"


@dataclass(frozen=True)
class Pictures:
    """A scene and its map at one size.

    Attributes:
        scene: The scene [H, W, 3].
        values: The values of the map [H, W].
        metres: Metres on the ground per pixel; None if they are unknown.
        reduced: Whether their size is not that of the map.
    """

    scene: Bytes
    values: Bytes
    metres: float | None
    reduced: bool


def read_pictures(
    scene_path: str | Path,
    map_path: Path,
    choose_size: Callable[[int, int], tuple[int, int]],
    bidx: Sequence[int],
    region: Rect | None = None,
) -> Pictures:
    """Read a scene and its map at the same size.

    Args:
        map_path: Path of the map, which may cover only a part of the scene.
        choose_size: Function from width and height of the map to those of the pictures.
        region: The pixels of the scene that the map covers; by default all of them.

    Raises:
        RasterioError: Scene or map cannot be read.
    """
    with warnings.catch_warnings():
        # Neither warning matters for a picture.
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        warnings.simplefilter("ignore", NodataShadowWarning)
        with rasterio.open(scene_path) as scene, rasterio.open(map_path) as labels:
            size = choose_size(labels.width, labels.height)
            covered = region or Rect(0, 0, scene.width, scene.height)
            window = Window(covered.col, covered.row, covered.width, covered.height)
            return Pictures(
                scene_picture(scene, window, size, bidx),
                map_values(labels, size),
                metres_per_pixel(labels, size[0]),
                size != (labels.width, labels.height),
            )


def scene_picture(scene: Any, window: Window, size: tuple[int, int], bidx: Sequence[int]) -> Bytes:
    """Draw a part of a scene, each band stretched from its 2nd to its 98th percentile: [H, W, 3].

    Args:
        window: The part of it that is drawn.
        bidx: Bands to show as red, green and blue, counted from 1; with fewer than three, the first one in grey.
    """
    if scene.count == 1 and scene.colorinterp[0] == ColorInterp.palette:
        return _coloured(scene, window, size)
    bands = list(bidx[:3]) if len(bidx) >= 3 else [bidx[0]]
    shape = (size[1], size[0])
    shrink = max(window.width / size[0], window.height / size[1])
    averaged = 1 < shrink <= _MOST_AVERAGED or (shrink > 1 and scene.overviews(bands[0]))
    resampling = Resampling.average if averaged else Resampling.nearest
    kwargs = {"window": window, "out_shape": (len(bands), *shape), "resampling": resampling}
    values = scene.read(bands, **kwargs)
    valid = (scene.read_masks(bands, **{**kwargs, "resampling": Resampling.nearest}) > 0).all(0)
    valid &= np.isfinite(values).all(0)
    image = np.empty((3, *shape), np.uint8)
    for target, band in zip(image, values if len(bands) == 3 else [values[0]] * 3, strict=True):
        _stretch(band.astype(np.float32), valid, target)
    image[:, ~valid] = np.array(rgb(EMPTY), np.uint8)[:, None]
    return np.ascontiguousarray(image.transpose(1, 2, 0))


def _coloured(scene: Any, window: Window, size: tuple[int, int]) -> Bytes:
    """Draw a part of a paletted image or map in its own colours: [H, W, 3]."""
    colours = np.full((256, 3), rgb(EMPTY), np.uint8)
    for value, entry in scene.colormap(1).items():
        if entry[3]:
            colours[value] = entry[:3]
    values = scene.read(1, window=window, out_shape=(size[1], size[0]), resampling=Resampling.nearest)
    return np.asarray(colours[values])


def map_values(labels: Any, size: tuple[int, int]) -> Bytes:
    """Read the values of a map, an open rasterio dataset, at another size: [H, W]."""
    return np.asarray(labels.read(1, out_shape=(size[1], size[0]), resampling=Resampling.nearest))


def palette(classes: Sequence[MapClass]) -> Bytes:
    """The colours of the 256 values of a map, [256, 3]; values without a class have the colour of no data."""
    colours = np.full((256, 3), rgb(EMPTY), np.uint8)
    colours[: len(classes)] = [rgb(map_class.colour) for map_class in classes]
    return colours


def metres_per_pixel(labels: Any, width: int) -> float | None:
    """Metres on the ground per pixel of a picture of a map that is `width` pixels wide; None if they are unknown."""
    pixel_size = GeoBox.of(labels).pixel_size
    return None if pixel_size is None else pixel_size[0] * labels.width / width


def percent(share: float) -> str:
    """Format a share: "12.3 %"."""
    return f"{share:.1%}".replace("%", " %") if share == 0 or share >= 0.0005 else "< 0.1 %"


def _stretch(band: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], target: Bytes) -> None:
    if not valid.any():
        target[:] = 0
        return
    low, high = np.percentile(band[valid], _PERCENTILES)
    for top in range(0, len(band), _ROWS):
        rows = slice(top, top + _ROWS)
        scaled = (np.where(valid[rows], band[rows], low) - low) / max(high - low, 1e-9)
        target[rows] = np.clip(scaled * 255, 0, 255)


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
    titles: tuple[str, str] = ("Scene", "Map"),
) -> None:
    """Draw the scene and its map at the same scale, with class names, colours, shares and a scale bar.

    Wide scenes are drawn above their map, others next to it. Memory is that of the picture.

    Args:
        map_path: Path of the map, which may cover only a part of the scene.
        bidx: Bands to show as red, green and blue, counted from 1; with fewer than three, the first one in grey.
        region: The pixels of the scene that the map covers; by default all of them.
        areas: Areas of the map's classes, if they have been measured already.

    Raises:
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
    picture = _compose(left, right, entries, pictures.metres, titles)
    with replacement(out) as temporary:
        picture.save(temporary, format="PNG")


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
    left: Image.Image,
    right: Image.Image,
    entries: list[tuple[str, str, str]],
    metres: float | None,
    titles: tuple[str, str],
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
    _paste(picture, left, (gap, gap), titles[0], style)
    _paste(picture, right, second, titles[1], style)
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
