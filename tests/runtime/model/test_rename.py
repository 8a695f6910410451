"""Names and colours of classes, changed in the card of a model."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.scenes import landscape
from support.tiny_onnx import make_model
from typer.testing import CliRunner

from iic_geotools.errors import UsageError
from iic_runtime.cli.model import app
from iic_runtime.model.card import Origin
from iic_runtime.model.file import ModelFile
from iic_runtime.model.rename import rename_model as rename
from iic_runtime.model.validate import validate_model
from iic_runtime.segmenter import Segmenter


def names(path: Path) -> list[str]:
    return [map_class.name for map_class in ModelFile.read(path).card.classes]


def test_names_and_colours(model: Path) -> None:
    before = ModelFile.read(model)
    rename(model, ["cluster 0=water:#0000ff", "2=bare soil", "cluster 3=:#112233", "cluster 1=a:b=c"])
    after = ModelFile.read(model)
    assert names(model) == ["water", "a:b=c", "bare soil", "cluster 3"]
    colours = [map_class.colour for map_class in after.card.classes]
    assert (colours[0], colours[3]) == ("#0000ff", "#112233")
    assert colours[1:3] == [map_class.colour for map_class in before.card.classes[1:3]]
    assert all(check.kept for check in validate_model(model))
    assert after.card.halo == before.card.halo


def test_names_can_be_exchanged(model: Path) -> None:
    rename(model, ["cluster 0=cluster 1", "cluster 1=cluster 0"])
    assert names(model)[:2] == ["cluster 1", "cluster 0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("water", "OLD=NEW"),
        ("cluster 0=", "OLD=NEW"),
        ("cluster 9=water", "no class cluster 9"),
        ("4=water", "no class 4"),
        ("-1=water", "no class -1"),
        ("0=water:#00f", "colour"),
        ("0=a\tb", "name"),
    ],
)
def test_changes_that_make_no_sense(model: Path, change: str, message: str) -> None:
    content = model.read_bytes()
    with pytest.raises(UsageError, match=message):
        rename(model, ["1=grass", change])
    assert model.read_bytes() == content


def test_twice_the_same_class(model: Path) -> None:
    with pytest.raises(UsageError, match="twice"):
        rename(model, ["0=water", "cluster 0=lake"])


def test_one_name_for_two_classes_merges_them(model: Path) -> None:
    def labels_and_confidence() -> tuple[np.ndarray, np.ndarray]:
        result = Segmenter(model, device="cpu", threads=1)(landscape(40, 50))
        return result.labels, result.confidence

    labels, confidence = labels_and_confidence()
    card = rename(model, ["0=water", "2=water:#123456"])
    assert [(entry.name, entry.colour) for entry in card.classes[:1]] == [("water", "#123456")]
    assert names(model) == ["water", "cluster 1", "cluster 3"]
    merged, surer = labels_and_confidence()
    # What was water of either kind still is, and more so; some that was not may be now.
    assert (merged[np.isin(labels, [0, 2])] == 0).all()
    assert (surer.astype(int) >= confidence - 1).all()
    assert surer.mean() > confidence.mean()
    assert (merged[merged > 0] == np.array([0, 1, 0, 2])[labels][merged > 0]).all()
    assert all(check.kept for check in validate_model(model))
    rename(model, ["water=cluster 1"])
    assert names(model) == ["cluster 1", "cluster 3"]
    assert labels_and_confidence()[0].max() == 1


def test_all_classes_in_one(model: Path) -> None:
    rename(model, [f"{label}=land" for label in range(4)])
    assert names(model) == ["land"]
    assert all(check.kept for check in validate_model(model))


def test_the_command_needs_no_torch(model: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['onnx'] = None;"
        f"from iic_runtime.cli.model import app; app(['rename', {str(model)!r}, 'cluster 0=water:#0000ff'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "0 water #0000ff"
    assert names(model)[0] == "water"


@pytest.mark.parametrize("name", ["[old] farm", "[/x]", "[red]wood[/red]", "\\[x]"])
def test_brackets_in_names_are_printed_as_they_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(make_model(name=name, origin=Origin(data=name)))
    shown = CliRunner().invoke(app, ["show", str(path)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count(name) == 2
    renamed = CliRunner().invoke(app, ["rename", str(path), f"0={name}"])
    assert f"0 {name} " in renamed.stdout
    assert name in CliRunner().invoke(app, ["show", str(path)]).stdout.splitlines()[-4]
