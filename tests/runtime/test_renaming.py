import subprocess
import sys

import pytest

from iic_geotools.errors import UsageError
from iic_runtime.modelfile import ModelFile
from iic_runtime.renaming import rename
from iic_runtime.validate import validate_model


def names(path):
    return [each.name for each in ModelFile.read(path).card.classes]


def test_names_and_colours(model):
    before = ModelFile.read(model)
    rename(model, ["cluster 0=water:#0000ff", "2=bare soil", "cluster 3=:#112233", "cluster 1=a:b=c"])
    after = ModelFile.read(model)
    assert names(model) == ["water", "a:b=c", "bare soil", "cluster 3"]
    colours = [each.colour for each in after.card.classes]
    assert (colours[0], colours[3]) == ("#0000ff", "#112233")
    assert colours[1:3] == [each.colour for each in before.card.classes[1:3]]
    assert all(check.kept for check in validate_model(model))
    assert after.card.halo == before.card.halo


def test_names_can_be_exchanged(model):
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
def test_what_cannot_be(model, change, message):
    content = model.read_bytes()
    with pytest.raises(UsageError, match=message):
        rename(model, ["1=grass", change])
    assert model.read_bytes() == content


def test_twice_the_same_class(model):
    with pytest.raises(UsageError, match="twice"):
        rename(model, ["0=water", "cluster 0=lake"])


def test_one_name_for_two_classes_needs_numbers_from_then_on(model):
    rename(model, ["0=water", "1=water"])
    with pytest.raises(UsageError, match=r"by number: \[0, 1\]"):
        rename(model, ["water=lake"])


def test_the_command_needs_no_torch(model):
    script = (
        "import sys; sys.modules['torch'] = sys.modules['onnx'] = None;"
        f"from iic_runtime.cli.model import app; app(['rename', {str(model)!r}, 'cluster 0=water:#0000ff'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "0 water #0000ff"
    assert names(model)[0] == "water"
