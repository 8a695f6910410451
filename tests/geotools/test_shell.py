import pytest
import typer

from iic_geotools.shell import shell


def test_a_missing_optional_package_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, shell():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    assert ended.value.exit_code == 1
    assert "pip install 'iic-edge[train]'" in capsys.readouterr().err


def test_other_missing_modules_are_bugs() -> None:
    with pytest.raises(ModuleNotFoundError), shell():
        raise ModuleNotFoundError("No module named 'nonsense'", name="nonsense")
