"""Charts as SVG text that needs no scripts, fonts or files."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import MAX_CLASSES, distinct_colours

WIDTH, HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 24, 34, 40
Point = tuple[float, float]


def colours(count: int) -> list[str]:
    """Return the colours of the classes of a map, so that a cluster looks the same in a report as on its map."""
    palette = distinct_colours(min(count, MAX_CLASSES))
    return [palette[index % MAX_CLASSES] for index in range(count)]


@dataclass(frozen=True)
class Series:
    """One line of a chart; points that are not finite leave a gap."""

    name: str
    points: Sequence[Point]
    colour: str
    dashed: bool = False


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "epoch",
    x_ticks: Sequence[tuple[float, str]] = (),
    percent: bool = False,
) -> str:
    """Draw lines over a common axis.

    Args:
        x_ticks: Positions and texts of the ticks of the horizontal axis; by default round numbers.
        percent: Whether values are shares, shown in per cent.
    """
    finite = [point for line in series for point in line.points if math.isfinite(point[1])]
    if not finite:
        return ""
    x_low, x_high = _span([x for x, _ in finite])
    y_low, y_high = _span([y for _, y in finite], least=0.02 if percent else None)
    frame = _Frame(x_low, x_high, y_low, y_high)
    parts = [frame.axes(x_label, x_ticks, percent=percent)]
    for line in series:
        for run in _finite_runs(line.points):
            parts.append(frame.line(run, line))
    return _svg(title, parts, legend=[(line.name, line.colour, line.dashed) for line in series])


def share_chart(title: str, x: Sequence[float], shares: NDArray[Any], names: Sequence[str]) -> str:
    """Draw shares [steps, parts] that add up to one as bands on top of each other."""
    if len(x) == 0:
        return ""
    low, high = _span(list(x))
    if len(x) == 1:
        x, shares = [low, high], np.repeat(shares, 2, axis=0)
    frame = _Frame(low, high, 0.0, 1.0)
    edges = np.concatenate([np.zeros((len(shares), 1)), np.cumsum(shares, axis=1)], axis=1)
    parts = []
    for part, colour in enumerate(colours(len(names))):
        outline = [
            *zip(x, edges[:, part], strict=True),
            *reversed(list(zip(x, edges[:, part + 1], strict=True))),
        ]
        path = " ".join(f"{frame.x(a):.1f},{frame.y(b):.1f}" for a, b in outline)
        tip = escape(f"{names[part]}: {100 * shares[-1, part]:.1f} % at the end")
        parts.append(f'<polygon points="{path}" fill="{colour}"><title>{tip}</title></polygon>')
    parts.append(frame.axes("epoch", percent=True))
    legend = [(name, colour, False) for name, colour in zip(names, colours(len(names)), strict=True)]
    return _svg(title, parts, legend=legend if len(names) <= 10 else [])


def bar_chart(title: str, names: Sequence[str], values: Sequence[float | None]) -> str:
    """Draw a horizontal bar for each share; None is written as a dash."""
    row, left = 24, 12 + 7 * min(26, max(map(len, names)))
    parts = []
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        top = _TOP + index * row
        middle = top + row / 2 + 4
        text = "-" if value is None else f"{100 * value:.1f}"
        length = 0.0 if value is None else value * (WIDTH - left - 60)
        label = escape(name if len(name) <= 26 else f"{name[:25]}…")
        parts.append(
            f'<text class="axis" x="{left - 8}" y="{middle}" text-anchor="end">{label}</text>'
            f'<rect x="{left}" y="{top + 3}" width="{length:.1f}" height="{row - 6}" rx="2" fill="{colours(1)[0]}"/>'
            f'<text class="axis" x="{left + length + 6:.1f}" y="{middle}">{text}</text>'
        )
    return _svg(title, parts, height=_TOP + len(names) * row + 8)


def simplex_plot(
    title: str, probabilities: NDArray[Any], groups: NDArray[np.integer[Any]], names: Sequence[str]
) -> str:
    """Draw each row of cluster probabilities between the corners of a polygon, one corner per cluster.

    A certain assignment is drawn on its corner and an uncertain one between several, as in figure 3 of the paper.

    Args:
        probabilities: Cluster probabilities [N, clusters].
        groups: Index into `names` of each row, which decides its colour.
    """
    side, radius = 440, 180
    corners = simplex_corners(probabilities.shape[1])
    centre = np.array([WIDTH / 2, _TOP + side / 2 - 12])
    jitter = np.random.default_rng(0).normal(0, 3.2, (len(probabilities), 2))
    places = centre + radius * (probabilities @ corners) + jitter
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in centre + radius * corners)
    parts = [f'<polygon points="{outline}" class="grid" fill="none"/>']
    for index, (x, y) in enumerate(centre + (radius + 20) * corners):
        parts.append(f'<text class="axis" x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{index}</text>')
    parts += _dots(places, groups, len(names))
    return _svg(title, parts, height=_TOP + side, legend=_group_legend(names))


def simplex_series(
    title: str,
    panels: Sequence[tuple[str, NDArray[Any]]],
    clusters: int,
    groups: NDArray[np.integer[Any]],
    names: Sequence[str],
) -> str:
    """Draw the same rows between the corners of a polygon at several times, side by side.

    Args:
        panels: For each time its name, and points `[N, 2]` as means of `simplex_corners`.
        groups: Index into `names` of each row, which decides its colour.
    """
    columns, side, label = 4, WIDTH / 4, 18
    corners = simplex_corners(clusters)
    radius = side / 2 - 12
    jitter = np.random.default_rng(0).normal(0, 1.2, (len(groups), 2))
    parts = []
    for index, (name, points) in enumerate(panels):
        row, column = divmod(index, columns)
        top = _TOP + row * (side + label)
        centre = np.array([(column + 0.5) * side, top + label + side / 2])
        outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in centre + radius * corners)
        parts.append(
            f'<text class="axis" x="{centre[0]:.1f}" y="{top + 12:.1f}" text-anchor="middle">{escape(name)}</text>'
            f'<polygon points="{outline}" class="grid" fill="none"/>'
        )
        places = centre + radius * points + jitter
        parts.append(f'<g class="small">{"".join(_dots(places, groups, len(names)))}</g>')
    rows = -(-len(panels) // columns)
    return _svg(title, parts, height=round(_TOP + rows * (side + label)), legend=_group_legend(names))


def simplex_corners(clusters: int) -> NDArray[np.float64]:
    """Return the corners [clusters, 2] of a regular polygon of radius 1, the first on top."""
    angles = 2 * np.pi * np.arange(clusters) / clusters - np.pi / 2
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _dots(places: NDArray[Any], groups: NDArray[np.integer[Any]], count: int) -> list[str]:
    parts = []
    for group, colour in enumerate(colours(count)):
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places[groups == group])
        parts.append(f'<path d="{dots}" class="dots" stroke="{colour}"/>')
    return parts


def _group_legend(names: Sequence[str]) -> list[tuple[str, str, bool]]:
    return [(name, colour, False) for name, colour in zip(names, colours(len(names)), strict=True)]


def picture(pixels: NDArray[np.uint8], caption: str, *, photograph: bool = True) -> str:
    """Return an image [H, W, 3] as an inline figure: JPEG for photographs, PNG for maps."""
    from PIL import Image

    buffer = io.BytesIO()
    kind = "jpeg" if photograph else "png"
    Image.fromarray(pixels).save(buffer, kind, optimize=True, quality=88)
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = escape(caption, quote=True)
    return (
        f'<figure><img src="data:image/{kind};base64,{data}" alt="{alt}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


class _Frame:
    """Maps values to the plotting area of a chart and draws its axes."""

    def __init__(self, x_low: float, x_high: float, y_low: float, y_high: float) -> None:
        self.limits = x_low, x_high, y_low, y_high

    def x(self, value: float) -> float:
        low, high = self.limits[:2]
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.limits[2:]
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def axes(self, x_label: str, x_ticks: Sequence[tuple[float, str]] = (), *, percent: bool) -> str:
        x_low, x_high, y_low, y_high = self.limits
        parts = []
        for tick in ticks(y_low, y_high):
            text = f"{100 * tick:.4g} %" if percent else f"{tick:g}"
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{self.y(tick):.1f}" '
                f'y2="{self.y(tick):.1f}"/><text class="axis" x="{_LEFT - 7}" y="{self.y(tick) + 4:.1f}" '
                f'text-anchor="end">{text}</text>'
            )
        for tick, text in x_ticks or [(tick, f"{tick:g}") for tick in ticks(x_low, x_high)]:
            parts.append(
                f'<text class="axis" x="{self.x(tick):.1f}" y="{HEIGHT - _BOTTOM + 17}" '
                f'text-anchor="middle">{text}</text>'
            )
        parts.append(
            f'<text class="axis" x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>'
        )
        return "".join(parts)

    def line(self, points: Sequence[Point], line: Series) -> str:
        tip = escape(f"{line.name}: {points[-1][1]:.4g} at {points[-1][0]:g}")
        if len(points) == 1:
            (x, y) = points[0]
            return f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3" fill="{line.colour}"/>'
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        return f'<polyline points="{path}" class="line" stroke="{line.colour}"{dash}><title>{tip}</title></polyline>'


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round values between `low` and `high`, about as many as asked."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _span(values: Sequence[float], least: float | None = None) -> tuple[float, float]:
    """Return the lowest and the highest value, widened to `least` if they are closer, to 1 if they are equal."""
    low, high = min(values), max(values)
    if least is None:
        least = 1.0 if high - low < 1e-9 * max(1.0, abs(high)) else 0.0
    missing = max(0.0, least - (high - low))
    return low - missing / 2, high + missing / 2


def _finite_runs(points: Sequence[Point]) -> list[list[Point]]:
    runs: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _svg(
    title: str,
    parts: Sequence[str],
    *,
    height: int = HEIGHT,
    legend: Sequence[tuple[str, str, bool]] = (),
) -> str:
    keys = "".join(
        f'<span class="key"><i style="border-color:{colour};border-style:{"dashed" if dashed else "solid"}"></i>'
        f"{escape(name)}</span>"
        for name, colour, dashed in legend
    )
    return (
        f'<figure class="chart"><svg viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f'<text class="title" x="8" y="18">{escape(title)}</text>{"".join(parts)}</svg>'
        f'<figcaption class="legend">{keys}</figcaption></figure>'
    )
