import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iic_train.evaluation.plots import (
    Series,
    bar_chart,
    colours,
    line_chart,
    picture,
    share_chart,
    simplex_plot,
    ticks,
)

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart: str) -> ET.Element:
    return ET.fromstring(chart)


@given(st.floats(-1e6, 1e6, allow_nan=False), st.floats(1e-3, 1e6, allow_nan=False), st.integers(2, 9))
def test_ticks_are_round_few_and_inside(low: float, span: float, about: int) -> None:
    values = ticks(low, low + span, about)
    assert 1 <= len(values) <= about + 1
    slack = 1e-6 * max(1.0, abs(low), span)
    assert values[0] >= low - slack
    assert values[-1] <= low + span + slack
    assert np.allclose(np.diff(values), values[1] - values[0] if len(values) > 1 else 0)


def test_a_line_leaves_a_gap_where_it_is_not_finite() -> None:
    points = [(0, 1.0), (1, 2.0), (2, math.nan), (3, 4.0), (4, 3.0)]
    chart = drawn(line_chart("loss <a & b>", [Series("a", points, "red")]))
    lines = chart.findall(f".//{SVG}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]
    heights = [float(pair.split(",")[1]) for line in lines for pair in line.attrib["points"].split()]
    assert heights[2] < heights[3] < heights[1] < heights[0]  # the larger, the higher up
    assert line_chart("empty", [Series("a", [(0, math.nan)], "red")]) == ""


def test_a_flat_line_of_shares_is_not_blown_up() -> None:
    chart = drawn(line_chart("accuracy", [Series("a", [(0, 0.969), (1, 0.9692)], "red")], percent=True))
    shown = [float(text.text[:-2]) for text in chart.iter(f"{SVG}text") if text.text.endswith(" %")]
    assert 2 <= len(shown) <= 6
    assert 95.5 < min(shown) < max(shown) < 98.5


def test_shares_fill_the_frame() -> None:
    shares = np.array([[0.2, 0.8], [0.5, 0.5]])
    bands = drawn(share_chart("occupancy", [1, 2], shares, ["a", "b"])).findall(f".//{SVG}polygon")
    outlines = [np.array([p.split(",") for p in band.attrib["points"].split()], float) for band in bands]
    assert outlines[0][3, 1] == outlines[1][0, 1]  # the second band stands on the first
    assert outlines[0][:, 1].max() - outlines[1][:, 1].min() == pytest.approx(300 - 34 - 40)
    assert len(drawn(share_chart("one epoch", [1], shares[:1], ["a", "b"])).findall(f".//{SVG}polygon")) == 2


def test_sure_points_stand_on_their_corners() -> None:
    chart = drawn(simplex_plot("simplex", np.eye(4)[[0, 2]], np.array([0, 1]), ["zero", "one"]))
    dots = [path.attrib["d"] for path in chart.findall(f".//{SVG}path")]
    top, bottom = ([float(v) for v in d[1:].removesuffix("h0").split()] for d in dots)
    assert top[1] + 2 * 180 == pytest.approx(bottom[1], abs=30)
    assert top[0] == pytest.approx(bottom[0], abs=30)


def test_bars_and_pictures_are_well_formed() -> None:
    bars = drawn(bar_chart("classes", ["roads & cars", "x" * 60], [0.5, None]))
    assert [float(bar.attrib["width"]) for bar in bars.findall(f".//{SVG}rect")][1] == 0
    figure = drawn(picture(np.zeros((4, 5, 3), np.uint8), 'a "quoted" <caption>').replace('">', '"/>', 1))
    assert figure.find("figcaption") is not None


@pytest.mark.parametrize("count", [3, 10, 70])
def test_colours_are_all_different(count: int) -> None:
    assert len(set(colours(count))) == count
