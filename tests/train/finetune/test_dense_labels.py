import gzip
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from iic_geotools.errors import DataError
from iic_geotools.tiling import Rect
from iic_train.finetune.chips import DenseChip, read_dense_labels, write_dense_labels
from iic_train.recipes import aerial, satellite

LABELS = np.kron(np.array([[0, 1, 2], [2, 2, 1]]), np.ones((3, 4))).astype(np.uint8)
CHIP = DenseChip(
    "meadow", "pool/a.tif", Rect(5, 7, 12, 6), "two", ("low", "high"), LABELS, "true colour", note="a meadow"
)


def altered(path: Path, **changes: object) -> Path:
    """Change the first chip of a file."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["chips"][0].update(changes)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_chips_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "chips.json.gz"
    locked = replace(
        CHIP, name="wood", locked=True, labels=np.random.default_rng(0).integers(0, 3, (6, 12), np.uint8)
    )
    write_dense_labels(path, [CHIP, locked])
    first, second = read_dense_labels(path)
    np.testing.assert_array_equal(first.labels, LABELS)
    np.testing.assert_array_equal(second.labels, locked.labels)
    assert replace(first, labels=LABELS).__dict__ == CHIP.__dict__
    assert (first.locked, second.locked) == (False, True)
    assert first.share == pytest.approx(5 / 6)


def test_same_chips_give_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_dense_labels(tmp_path / name, [CHIP])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("chips", "message"),
    [
        ([CHIP, CHIP], "Two chips are called meadow"),
        ([CHIP, replace(CHIP, name="b", classes=("high", "low"))], "b has other classes than the legend two"),
        ([replace(CHIP, labels=LABELS[:, 1:])], "do not fill its window of 12 x 6"),
        ([replace(CHIP, classes=("low",))], "has the label 2, and its legend only 1"),
    ],
)
def test_chips_that_contradict_are_refused(tmp_path: Path, chips: list[DenseChip], message: str) -> None:
    with pytest.raises(DataError, match=message):
        write_dense_labels(tmp_path / "chips.json.gz", chips)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ["1x11"] * 6}, "Row 0 of meadow has 11 pixels, not 12"),
        ({"rows": ["1x12"] * 5}, "do not fill its window"),
        ({"rows": ["3x12"] * 6}, "label 3"),
        ({"rows": ["one"] * 6}, "not a file of dense labels"),
        ({"legend": "three"}, "not a file of dense labels"),
    ],
)
def test_damaged_records_are_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "chips.json.gz"
    write_dense_labels(path, [CHIP])
    with pytest.raises(DataError, match=message):
        read_dense_labels(altered(path, **changes))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chips.json.gz"
    path.write_text("no gzip")
    with pytest.raises(DataError, match="not a file of dense labels"):
        read_dense_labels(path)
    path.write_bytes(gzip.compress(b'{"format": 2}'))
    with pytest.raises(DataError, match="format 2"):
        read_dense_labels(path)


def test_chips_of_the_package_are_dense_and_have_the_legends_of_the_models() -> None:
    with resources.as_file(resources.files("iic_train.recipes") / "dense_chips.json.gz") as path:
        chips = read_dense_labels(path)
    classes = {"aerial": aerial.CLASSES, "satellite": satellite.CLASSES}
    assert {chip.legend for chip in chips} == set(classes)
    for chip in chips:
        assert chip.classes == classes[chip.legend]
        assert chip.share >= 0.8, chip.name
    for legend in classes:
        assert sum(chip.legend == legend for chip in chips) >= 15
    # a source is learnt from or kept for judging, never both
    judging = {Path(chip.source).parent for chip in chips if chip.locked}
    assert not any(Path(chip.source).parent in judging for chip in chips if not chip.locked)
