"""A picture of a scene and its map, with a legend."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
from PIL import Image, ImageDraw, ImageFont
from rasterio.enums import Resampling
from rasterio.errors import NodataShadowWarning, NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from iic_geotools.areas import ClassAreas, class_areas, ground_sample_distance
from iic_geotools.colours import MapClass, rgb
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.files import replacing

PANEL = 1000
_SMALLEST_PANEL = 320
_ENTRIES = 24
_PERCENTILES = (2.0, 98.0)
# Beyond this, averaging would read every pixel of a scene without overviews: a sample of them is enough.
_AVERAGED = 16

_WHITE, _EMPTY, _LINE, _INK, _FAINT = "#ffffff", "#ececec", "#b8b8b8", "#222222", "#666666"

RGB = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Style:
    """Sizes that go with the picture's."""

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
    areas: ClassAreas | None = None,
) -> None:
    """Draw the scene and its map at the same scale, with class names, colours, shares and a scale bar.

    Wide scenes are drawn above their map, others beside it. Memory is that of the picture.

    Args:
        scene_path: Anything GDAL opens.
        map_path: The map; it may cover a part of the scene only.
        out: A .png file.
        classes: Names and colours of the values 0, 1, ...
        bidx: Bands to show as red, green and blue, counted from 1; with fewer than three, the first in grey.
        areas: Of the map's classes, if already measured.

    Raises:
        UsageError: Another suffix than .png.
        SceneError: Scene or map cannot be read.
        OutputError: The picture cannot be written.
    """
    if out.suffix.lower() != ".png":
        raise UsageError(f"A preview is written as .png, not as {out.suffix or out.name!r}.")
    try:
        with warnings.catch_warnings():
            # Neither matters for a picture.
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            warnings.simplefilter("ignore", NodataShadowWarning)
            with rasterio.open(scene_path) as scene, rasterio.open(map_path) as labels:
                size = _panel_size(labels.width, labels.height)
                left = Image.fromarray(_scene_panel(scene, _window_of(labels, scene), size, bidx))
                right = Image.fromarray(_map_panel(labels, size, classes))
                metres = _metres_per_pixel(labels, size)
            entries = _entries(areas or class_areas(map_path, classes), classes)
    except RasterioError as error:
        raise SceneError(f"No preview can be made: {error}") from error
    picture = _compose(left, right, entries, metres)
    try:
        with replacing(out) as temporary:
            picture.save(temporary, format="PNG")
    except OSError as error:
        raise OutputError(f"The preview {out} cannot be written: {error}") from error


def _panel_size(width: int, height: int) -> tuple[int, int]:
    """Width and height to draw a raster at: large ones shrink, tiny ones are drawn in large pixels."""
    longest = max(width, height)
    scale = min(1.0, PANEL / longest) if longest > _SMALLEST_PANEL else _SMALLEST_PANEL // longest
    return max(1, round(width * scale)), max(1, round(height * scale))


def _window_of(labels: Any, scene: Any) -> Window:
    """The pixels of the scene that the map covers."""
    a, b = scene.transform, labels.transform
    x, y = np.linalg.solve([[a.a, a.b], [a.d, a.e]], [b.c - a.c, b.f - a.f]).tolist()
    return Window(round(x), round(y), labels.width, labels.height)


def _scene_panel(scene: Any, window: Window, size: tuple[int, int], bidx: Sequence[int]) -> RGB:
    bands = list(bidx[:3]) if len(bidx) >= 3 else [bidx[0]]
    shape = (size[1], size[0])
    shrink = max(window.width / size[0], window.height / size[1])
    averaged = 1 < shrink <= _AVERAGED or (shrink > 1 and scene.overviews(bands[0]))
    resampling = Resampling.average if averaged else Resampling.nearest
    kwargs = {"window": window, "out_shape": (len(bands), *shape), "resampling": resampling}
    values = scene.read(bands, **kwargs).astype(np.float32)
    valid = (scene.read_masks(bands, **{**kwargs, "resampling": Resampling.nearest}) > 0).all(0)
    valid &= np.isfinite(values).all(0)
    image = np.empty((3, *shape), np.uint8)
    for target, band in zip(image, values if len(bands) == 3 else [values[0]] * 3, strict=True):
        target[:] = _stretched(band, valid)
    image[:, ~valid] = np.array(rgb(_EMPTY), np.uint8)[:, None]
    return np.ascontiguousarray(image.transpose(1, 2, 0))


def _stretched(band: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    if not valid.any():
        return np.zeros(band.shape, np.uint8)
    low, high = np.percentile(band[valid], _PERCENTILES)
    scaled = (np.where(valid, band, low) - low) / max(high - low, 1e-9)
    return np.asarray(np.clip(scaled * 255, 0, 255), np.uint8)


def _map_panel(labels: Any, size: tuple[int, int], classes: Sequence[MapClass]) -> RGB:
    values = labels.read(1, out_shape=(size[1], size[0]), resampling=Resampling.nearest)
    colours = np.full((256, 3), rgb(_EMPTY), np.uint8)
    colours[: len(classes)] = [rgb(map_class.colour) for map_class in classes]
    return np.asarray(colours[values])


def _metres_per_pixel(labels: Any, size: tuple[int, int]) -> float | None:
    known = ground_sample_distance(labels.crs or None, labels.transform, labels.width, labels.height)
    return None if known is None else known[0] * labels.width / size[0]


def _entries(areas: ClassAreas, classes: Sequence[MapClass]) -> list[tuple[str, str, str]]:
    """Colour, name and share of what the legend lists: every class, or the largest if they are many."""
    rows = list(areas.classes)
    if len(rows) > _ENTRIES:
        largest = sorted(rows, key=lambda row: -row.pixels)[:_ENTRIES]
        rows = [row for row in rows if row in largest and row.pixels]
    entries = [(classes[row.value].colour, row.name, _percent(row.share)) for row in rows]
    if left_out := sum(1 for row in areas.classes if row.pixels and row not in rows):
        entries.append((_WHITE, f"and {left_out} more", ""))
    if areas.nodata.pixels:
        entries.append((_EMPTY, "no data", f"{_percent(areas.nodata.share)} of the map"))
    return entries


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %") if share == 0 or share >= 0.0005 else "< 0.1 %"


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
