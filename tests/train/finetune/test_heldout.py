import numpy as np
import pytest

from iic_train.finetune.heldout import HeldOut


def draw(temperature: float, count: int = 20_000) -> HeldOut:
    """Pixels whose labels follow the probabilities of logits that were then multiplied by a temperature."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.5, (count, 3))
    odds = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (rng.random((count, 1)) > odds.cumsum(1)).sum(1).clip(0, 2)
    held_out = HeldOut(("a", "b", "c"))
    for start in range(0, count, 2000):
        part = slice(start, start + 2000)
        held_out.add((temperature * logits[part]).astype(np.float32), labels[part], rng)
    return held_out


def test_the_temperature_makes_confidence_mean_what_it_says() -> None:
    held_out = draw(2.0)
    assert held_out.temperature() == pytest.approx(2.0, abs=0.15)
    assert held_out.calibration_error() > 0.05
    assert held_out.calibration_error(held_out.temperature()) < 0.015


def test_figures_of_a_known_confusion() -> None:
    held_out = HeldOut(("a", "b", "c"))
    logs = np.log(np.array([[0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.8, 0.1, 0.1]], np.float32))
    held_out.add(logs, np.array([0, 0, 1, 1]), np.random.default_rng(0))
    assert held_out.counts.tolist() == [[2, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert held_out.accuracy() == 0.75
    assert held_out.recall() == [1.0, 0.5, None]
    assert held_out.precision() == [pytest.approx(2 / 3), 1.0, None]
    assert held_out.mean_iou() == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_nothing_left_out_is_no_error() -> None:
    empty = HeldOut(("a", "b"))
    assert (empty.accuracy(), empty.mean_iou(), empty.temperature()) == (0.0, 0.0, 1.0)
