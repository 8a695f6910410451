"""An assessment as JSON, as CSV, and as lines for a terminal."""

import csv
import io
import json
from typing import Any

from iic_geotools.products.areas import plain_cell
from iic_geotools.products.assessment.accuracy import Estimate
from iic_geotools.products.assessment.figures import Assessment, ClassFigures


def assessment_json(assessment: Assessment) -> str:
    """Return an assessment as JSON."""
    return json.dumps(_content(assessment), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


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


def matrix_rows(assessment: Assessment) -> list[list[str]]:
    """The confusion matrix as a table of texts, with its header: rows are the map, columns the samples."""
    names = [figures.name for figures in assessment.classes]
    rows = [["map \\ samples", *names, "total"]]
    for name, counts in zip(names, assessment.matrix.tolist(), strict=True):
        rows.append([name, *(str(count) for count in counts), str(sum(counts))])
    totals = assessment.matrix.sum(0).tolist()
    rows.append(["total", *(str(count) for count in totals), str(sum(totals))])
    return rows


def class_rows(assessment: Assessment) -> list[list[str]]:
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
    for figures in assessment.classes:
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
    """A number of hectares, with as many digits as are of use."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 1 else f"{value:.3g}"
