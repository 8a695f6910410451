"""Odd scenes, options, models and labels: one sentence or a right result, and nothing in between."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from support.hostile import MODEL, Case, cases, check_case
from support.hostile_labels import OddLabels, check_labels, odd_labels
from support.hostile_models import check_model, damaged_models, wrong_cards

LENIENT = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=25, suppress_health_check=LENIENT)
@given(case=cases())
def test_odd_scenes_and_options(case: Case, tmp_path: Path) -> None:
    check_case(case, tmp_path / "case")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=500, suppress_health_check=LENIENT)
@given(case=cases())
def test_many_odd_scenes_and_options(case: Case, tmp_path: Path) -> None:
    check_case(case, tmp_path / "case")


@settings(max_examples=150, suppress_health_check=LENIENT)
@given(content=wrong_cards())
def test_odd_cards(content: bytes, tmp_path: Path) -> None:
    check_model(content, tmp_path / "model.onnx")


@settings(max_examples=60, suppress_health_check=LENIENT)
@given(content=damaged_models())
def test_models_that_were_cut_or_changed(content: bytes, tmp_path: Path) -> None:
    check_model(content, tmp_path / "model.onnx")


@settings(max_examples=20, suppress_health_check=LENIENT)
@given(labels=odd_labels())
def test_odd_labels(labels: OddLabels, tmp_path: Path) -> None:
    check_labels(labels, tmp_path / "case")


def test_a_damaged_name_in_a_model_is_not_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = MODEL.replace(b"Relu", b"Re\xc8u")
    assert not check_model(content, tmp_path / "model.onnx")
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
