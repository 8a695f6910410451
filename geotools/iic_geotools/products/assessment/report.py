"""An assessment: as data, as JSON, as CSV, as lines for a terminal, and as one HTML file that loads nothing else."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.geobox import AreaMethod
from iic_geotools.html_page import html_facts, html_page, html_section
from iic_geotools.options import Design
from iic_geotools.products.areas import plain_cell
from iic_geotools.products.assessment.accuracy import Estimate

_CELL, _LABEL = 64, 170
# Sizes of the chart of areas.
_BAR, _CHART, _FIGURES = 46, 420, 210
_RIGHT, _WRONG = "#1b7837", "#b2182b"
_LONGEST_LABEL = 22


@dataclass(frozen=True)
class ClassFigures:
    """Figures of one class by the samples; None for what they do not show.

    Attributes:
        name: Name of the class.
        colour: Its colour, "#rrggbb".
        samples: Number of samples that the map calls by this class.
        mapped_ha: Its area on the map in hectares; None if areas cannot be measured.
        users: User's accuracy (precision): the share of the class on the map that is correct.
        producers: Producer's accuracy (recall): the share of the class on the ground that the map finds.
        f1: Harmonic mean of both.
        iou: Intersection over union.
        share: Share of the ground that is of this class.
        area_ha: The same in hectares; None if areas cannot be measured.
    """

    name: str
    colour: str
    samples: int
    mapped_ha: float | None
    users: Estimate | None
    producers: Estimate | None
    f1: float | None
    iou: float | None
    share: Estimate
    area_ha: Estimate | None


@dataclass(frozen=True, eq=False)
class Assessment:
    """How good a map is, by its samples.

    Attributes:
        map: The map.
        samples: The file of samples.
        design: How the samples were drawn.
        method: How areas were measured.
        total_ha: The area that the estimates are about, in hectares; None if areas cannot be measured.
        matrix: Number of samples `[class of the map, class of the sample]`.
        proportions: Estimated shares of the ground `[class of the map, class on the ground]`.
        classes: Figures of the classes that occur, in the order of the legend.
        overall: Overall accuracy.
        kappa: Cohen's kappa.
        mean_iou: Mean intersection over union.
        remarks: What a reader should know, in sentences.
    """

    map: Path
    samples: Path
    design: Design
    method: AreaMethod
    total_ha: float | None
    matrix: NDArray[np.int64]
    proportions: NDArray[np.float64]
    classes: tuple[ClassFigures, ...]
    overall: Estimate
    kappa: float | None
    mean_iou: float | None
    remarks: tuple[str, ...]

    def sentence(self) -> str:
        """Say the result in one line."""
        margin = "" if self.overall.margin is None else f" ± {100 * self.overall.margin:.1f}"
        return (
            f"{self.map}: {100 * self.overall.value:.1f}{margin} % of the area is classified correctly (95 % "
            f"confidence, {int(self.matrix.sum())} samples)"
        )

    def to_json(self) -> str:
        """Return an assessment as JSON."""
        return json.dumps(_content(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def matrix_rows(self) -> list[list[str]]:
        """The confusion matrix as a table of texts, with its header: rows are the map, columns the samples."""
        names = [figures.name for figures in self.classes]
        rows = [["map \\ samples", *names, "total"]]
        for name, counts in zip(names, self.matrix.tolist(), strict=True):
            rows.append([name, *(str(count) for count in counts), str(sum(counts))])
        totals = self.matrix.sum(0).tolist()
        rows.append(["total", *(str(count) for count in totals), str(sum(totals))])
        return rows

    def class_rows(self) -> list[list[str]]:
        """The figures of each class as a table of texts, with its header."""
        header = [
            "class",
            "samples",
            "user's, %",
            "producer's, %",
            "F1",
            "IoU",
            "map, ha",
            "estimated, ha",
            "share, %",
        ]
        rows = [header]
        for figures in self.classes:
            rows.append(
                [
                    figures.name,
                    str(figures.samples),
                    percent(figures.users),
                    percent(figures.producers),
                    "-" if figures.f1 is None else f"{figures.f1:.2f}",
                    "-" if figures.iou is None else f"{figures.iou:.2f}",
                    "-" if figures.mapped_ha is None else amount(figures.mapped_ha),
                    "-" if figures.area_ha is None else with_margin(figures.area_ha),
                    percent(figures.share),
                ]
            )
        return rows


def _content(assessment: Assessment) -> dict[str, Any]:
    return {
        "map": str(assessment.map),
        "samples": str(assessment.samples),
        "design": assessment.design,
        "method": assessment.method,
        "total_ha": _rounded(assessment.total_ha),
        "count": int(assessment.matrix.sum()),
        "overall_accuracy": _estimate(assessment.overall),
        "kappa": _rounded(assessment.kappa),
        "mean_iou": _rounded(assessment.mean_iou),
        "classes": [_class(figures) for figures in assessment.classes],
        "matrix": assessment.matrix.tolist(),
        "proportions": [[_rounded(value) for value in row] for row in assessment.proportions.tolist()],
        "remarks": list(assessment.remarks),
    }


def _class(figures: ClassFigures) -> dict[str, Any]:
    return {
        "name": figures.name,
        "samples": figures.samples,
        "mapped_ha": _rounded(figures.mapped_ha),
        "users_accuracy": _estimate(figures.users),
        "producers_accuracy": _estimate(figures.producers),
        "f1": _rounded(figures.f1),
        "iou": _rounded(figures.iou),
        "share": _estimate(figures.share),
        "area_ha": _estimate(figures.area_ha),
    }


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    return {
        "value": _rounded(estimate.value),
        "standard_error": _rounded(estimate.error),
        "margin": _rounded(estimate.margin),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.8g}")


def assessment_csv(assessment: Assessment) -> str:
    """Return an assessment as CSV: a row per class of the map, with its row of the matrix, and one of the whole."""
    names = [figures.name for figures in assessment.classes]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    estimates = ("users_accuracy", "producers_accuracy", "share", "area_ha")
    header = ["class", "samples", "mapped_ha"]
    header += [column for name in estimates for column in (name, f"{name}_margin")]
    writer.writerow(
        [*header, "f1", "iou", "kappa", *(plain_cell(f"samples that are {name}") for name in names)]
    )
    for figures, counts in zip(assessment.classes, assessment.matrix.tolist(), strict=True):
        cells = [figures.users, figures.producers, figures.share, figures.area_ha]
        row: list[Any] = [plain_cell(figures.name), figures.samples, _rounded(figures.mapped_ha)]
        row += [cell for estimate in cells for cell in _cells(estimate)]
        writer.writerow([*row, _rounded(figures.f1), _rounded(figures.iou), None, *counts])
    overall = [
        "all",
        int(assessment.matrix.sum()),
        _rounded(assessment.total_ha),
        *_cells(assessment.overall),
    ]
    blank = [None] * 7  # producer's accuracy, share and area with their margins, and F1
    totals = assessment.matrix.sum(0).tolist()
    writer.writerow([*overall, *blank, _rounded(assessment.mean_iou), _rounded(assessment.kappa), *totals])
    return buffer.getvalue()


def _cells(estimate: Estimate | None) -> tuple[float | None, float | None]:
    return (None, None) if estimate is None else (_rounded(estimate.value), _rounded(estimate.margin))


def percent(estimate: Estimate | None) -> str:
    """An estimate of a share, in per cent, with its margin."""
    if estimate is None:
        return "-"
    margin = "" if estimate.margin is None else f" ± {100 * estimate.margin:.1f}"
    return f"{100 * estimate.value:.1f}{margin}"


def with_margin(estimate: Estimate) -> str:
    """An estimate of an amount with its margin."""
    margin = "" if estimate.margin is None else f" ± {amount(estimate.margin)}"
    return f"{amount(estimate.value)}{margin}"


def amount(value: float) -> str:
    """A number of hectares, rounded to useful digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 1 else f"{value:.3g}"


def assessment_page(assessment: Assessment) -> str:
    """Return the whole page as HTML."""
    title = f"How good is {assessment.map.name}?"
    sections = [
        f"<header><h1>{escape(title)}</h1>{_result(assessment)}{_facts(assessment)}</header>",
        _remarks(assessment.remarks),
        html_section("Confusion matrix", _MATRIX_TEXT + _matrix(assessment)),
        html_section("Classes", _table(assessment.class_rows(), assessment.classes)),
        html_section("Areas", _areas(assessment)),
        html_section("How this was computed", _method(assessment)),
    ]
    return html_page(title, sections, _STYLE)


def _result(assessment: Assessment) -> str:
    overall = assessment.overall
    margin = "" if overall.margin is None else f" ± {100 * overall.margin:.1f}"
    return (
        f'<p class="figure"><b>{100 * overall.value:.1f}{margin} %</b> of the area is classified correctly '
        "(overall accuracy, 95 % confidence interval).</p>"
    )


def _facts(assessment: Assessment) -> str:
    facts = {
        "map": str(assessment.map),
        "samples": f"{assessment.samples} ({int(assessment.matrix.sum())} that count)",
        "design": "stratified by the map's classes" if assessment.design == "stratified" else "simple random",
        "kappa": _number(assessment.kappa),
        "mean IoU": _number(assessment.mean_iou),
        "area": "not known" if assessment.total_ha is None else f"{amount(assessment.total_ha)} ha",
    }
    return html_facts(facts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _remarks(remarks: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
    return f'<section class="remarks"><h2>Note</h2><ul>{items}</ul></section>' if remarks else ""


_MATRIX_TEXT = (
    "<p>Rows: class on the map. Columns: class of the samples. Each cell: number of samples, and below it the share of "
    "the area that they represent, in per cent. Green is correct, red is wrong; the stronger the colour, the larger "
    "the share of the row.</p>"
)


def _matrix(assessment: Assessment) -> str:
    """The confusion matrix as a picture."""
    names = [figures.name for figures in assessment.classes]
    top = 24 + 6 * max(len(_short(name)) for name in names)  # names above the columns are slanted
    width = _LABEL + _CELL * len(names) + 90
    height = top + _CELL * len(names) + 40
    parts = [
        f'<svg class="matrix" viewBox="0 0 {width} {height}" style="width:{width}px" role="img" '
        'aria-label="Confusion matrix">'
    ]
    for index, name in enumerate(names):
        middle = _CELL * index + _CELL / 2
        x, y = _LABEL + middle, top + middle
        parts.append(_text(_LABEL - 8, y + 4, _short(name), "end"))
        parts.append(
            f'<text transform="translate({x + 4:g} {top - 8}) rotate(-55)">{escape(_short(name))}</text>'
        )
        parts.extend(_matrix_row(assessment, index, top + _CELL * index))
    totals = assessment.matrix.sum(0).tolist()
    bottom = top + _CELL * len(names) + 18
    parts.append(_text(_LABEL - 8, bottom, "all", "end", "axis"))
    parts += [
        _text(_LABEL + _CELL * (index + 0.5), bottom, str(total), "middle", "axis")
        for index, total in enumerate(totals)
    ]
    parts.append(_text(_LABEL + _CELL * len(names) + 8, bottom, str(sum(totals)), "start", "axis"))
    return f'<div class="scroll">{"".join(parts)}</svg></div>'


def _matrix_row(assessment: Assessment, row: int, y: float) -> list[str]:
    counts = assessment.matrix[row].tolist()
    total = sum(counts)
    parts = []
    for column, count in enumerate(counts):
        x = _LABEL + _CELL * column
        strength = count / total if total else 0.0
        colour = _RIGHT if row == column else _WRONG
        parts.append(
            f'<rect class="cell" x="{x}" y="{y}" width="{_CELL}" height="{_CELL}"/>'
            f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" fill="{colour}" '
            f'fill-opacity="{0.85 * strength:.3f}"/>'
        )
        shade = "light" if strength > 0.7 else "faint" if not count else "dark"
        parts.append(_text(x + _CELL / 2, y + _CELL / 2, str(count), "middle", shade))
        if count:
            share = 100 * float(assessment.proportions[row, column])
            parts.append(
                _text(x + _CELL / 2, y + _CELL / 2 + 16, f"{share:.2g} %", "middle", f"{shade} small")
            )
    parts.append(_text(_LABEL + _CELL * len(counts) + 8, y + _CELL / 2 + 4, str(total), "start", "axis"))
    return parts


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{marked}>{escape(text)}</text>'


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"


def _table(rows: Sequence[Sequence[str]], classes: Sequence[ClassFigures]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = []
    for row, figures in zip(rows[1:], classes, strict=True):
        name, *cells = row
        patch = f'<i class="patch" style="background:{figures.colour}"></i>'
        body.append(
            f"<tr><td>{patch}{escape(name)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        "<p>User's accuracy: the share of a class on the map that is correct (precision). Producer's accuracy: the "
        "share of a class on the ground that the map finds (recall). ± is half of the 95 % confidence interval.</p>"
    )


def _areas(assessment: Assessment) -> str:
    """Areas on the map next to those estimated, with confidence intervals."""
    rows = [figures for figures in assessment.classes if figures.area_ha is not None]
    if not rows:
        return ""
    ends = [_upper(figures.area_ha) for figures in rows]
    longest = max(*ends, *(figures.mapped_ha or 0.0 for figures in rows), 1e-12)
    width = _LABEL + _CHART + _FIGURES
    parts = [
        f'<svg viewBox="0 0 {width} {_BAR * len(rows) + 8}" style="width:{width}px" role="img" '
        'aria-label="Areas on the map and estimated">'
    ]
    for index, figures in enumerate(rows):
        parts.extend(_area_bars(figures, _BAR * index + 4, _CHART / longest))
    return (
        "<p>Pale: area on the map. Strong: area on the ground, estimated from the samples, with its 95 % confidence "
        f'interval. The estimate is the one to report.</p><div class="scroll">{"".join(parts)}</svg></div>'
    )


def _area_bars(figures: ClassFigures, y: float, scale: float) -> list[str]:
    estimate = figures.area_ha or Estimate(0.0, None)
    mapped = figures.mapped_ha or 0.0
    bars = [
        _text(_LABEL - 8, y + 21, _short(figures.name), "end"),
        f'<rect x="{_LABEL}" y="{y}" width="{mapped * scale:.1f}" height="13" fill="{figures.colour}" '
        'fill-opacity=".4"/>',
        f'<rect x="{_LABEL}" y="{y + 15}" width="{estimate.value * scale:.1f}" height="17" '
        f'fill="{figures.colour}"/>',
    ]
    if estimate.margin is not None:
        low = _LABEL + max(0.0, estimate.value - estimate.margin) * scale
        high = _LABEL + _upper(estimate) * scale
        ends = f"M{low:.1f} {y + 18.5}v10M{high:.1f} {y + 18.5}v10"
        bars.append(f'<path class="whisker" d="M{low:.1f} {y + 23.5}H{high:.1f}{ends}"/>')
    text = f"{amount(mapped)} → {with_margin(estimate)} ha"
    end = max(mapped, _upper(estimate)) * scale
    bars.append(_text(_LABEL + end + 10, y + 26, text, "start", "axis"))
    return bars


def _upper(estimate: Estimate | None) -> float:
    return 0.0 if estimate is None else estimate.value + (estimate.margin or 0.0)


def _method(assessment: Assessment) -> str:
    if assessment.design == "stratified":
        text = (
            "The classes of the map are the strata, weighted by their area on the map: Olofsson et al. (2014), Good "
            "practices for estimating area and assessing accuracy of land change, Remote Sensing of Environment 148. "
            "The figures hold if the samples are a random sample of each class, or of the whole map."
        )
    else:
        text = "A simple random sample: every place of the map had the same chance, and the map's areas are not used."
    ground = {
        "planar": "Areas are those of the map's projection.",
        "ellipsoidal": "Areas are true areas on the ellipsoid.",
        "none": "Areas cannot be measured in the map's reference system, so that pixels are counted.",
    }[assessment.method]
    return (
        f"<p>{text}</p><p>{ground} F1, IoU and kappa are computed from the estimated shares of the ground. Intervals "
        "are those of the normal distribution: with few samples, or accuracies near 0 or 100 %, they are too "
        "narrow.</p>"
    )


_STYLE = """
section.remarks{background:var(--note)}ul{margin:0;padding-left:20px}
dl{margin:12px 0 0}.scroll{overflow-x:auto}
svg{display:block;max-width:none;height:auto}
text{fill:var(--ink);font:13px system-ui,sans-serif}text.axis{fill:var(--soft);font-size:12px}
text.small{font-size:11px}text.light{fill:#fff}text.faint{fill:var(--soft);opacity:.6}
.cell{fill:var(--card);stroke:var(--line)}.whisker{fill:none;stroke:var(--ink);stroke-width:1.5}
p{max-width:80ch}.figure{max-width:none}.patch{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:8px}
table{margin:0 0 8px}th,td{padding:4px 18px 4px 0;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
"""
