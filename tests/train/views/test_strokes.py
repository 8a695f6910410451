"""Strokes across second views."""

from dataclasses import replace

import pytest
import torch

from iic_train.views.pairs import LENGTHS, SLOPE, StrokeNumbers, apply_strokes, draw_strokes, image_views
from iic_train.views.random_numbers import Draw
from iic_train.views.settings import ImagePairs, Photometry

SIDE = 24
STILL = ImagePairs(SIDE, SIDE, (SIDE,), flip=0.0, photometry=Photometry())


def one_stroke(length: float, angle: float, middle: tuple[float, float] = (0.5, 0.5)) -> torch.Tensor:
    numbers = StrokeNumbers(
        torch.tensor([True]), torch.tensor(middle)[:, None], torch.tensor([length]), torch.tensor([angle])
    )
    return apply_strokes(torch.zeros(1, 1, SIDE, SIDE), numbers)[0, 0]


def test_strokes_cross_some_second_views_and_no_first_one() -> None:
    images = torch.zeros(400, 1, SIDE, SIDE)
    first, second = image_views(replace(STILL, strokes=0.3), images, ("grey",), Draw(0))
    assert not first.any()
    crossed = second.flatten(1).amax(1)
    assert set(crossed.tolist()) == {0.0, 1.0}
    assert crossed.mean() == pytest.approx(0.3, abs=0.06)


def test_what_is_written_stays() -> None:
    images = torch.rand(50, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    _, second = image_views(replace(STILL, strokes=1.0), images, ("grey",), Draw(0))
    assert (second >= images - 1e-6).all()
    assert (second <= 1).all()
    changed = (second > images + 1e-6).float().mean((1, 2, 3))
    assert changed.min() > 0.01
    assert changed.max() < 0.15


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("angle", [-SLOPE, 0.0, SLOPE])
def test_a_stroke_has_its_length_and_angle(length: float, angle: float) -> None:
    stroke = one_stroke(length, angle).double()
    places = torch.arange(SIDE, dtype=torch.float64) + 0.5
    y, x = torch.meshgrid(places, places, indexing="ij")
    mass = stroke.sum()
    dy, dx = y - (stroke * y).sum() / mass, x - (stroke * x).sum() / mass
    xx, yy, xy = ((stroke * a * b).sum() / mass for a, b in ((dx, dx), (dy, dy), (dx, dy)))
    assert 0.5 * torch.atan2(2 * xy, xx - yy) == pytest.approx(angle, abs=0.02)
    # about a rectangle of this length and a thickness of 2.6 px, with round ends
    assert mass == pytest.approx(2.6 * SIDE * length + torch.pi * 1.3**2, rel=0.05)


def test_a_stroke_lies_where_it_is_drawn() -> None:
    stroke = one_stroke(0.25, 0.0, (0.25, 0.75))
    assert stroke[6, 18] == 1
    assert stroke[:, :12].sum() == 0
    assert stroke[12:].sum() == 0


def test_without_strokes_no_numbers_are_drawn() -> None:
    draw, other = Draw(3), Draw(3)
    assert draw_strokes(0.0, 8, draw) is None
    assert draw.seed() == other.seed()
