"""`iic-scenes search`: a list that `iic-segment-raster` takes."""

from pathlib import Path

import pytest
from support.catalogue import write_catalogue
from support.web import serve
from typer.testing import CliRunner

from iic_runtime.cli.scenes import app
from iic_runtime.cli.segment_raster import app as segment_raster


def test_scenes_are_found_and_mapped(model: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "web", tmp_path / "june.json"
    folder.mkdir()
    with serve(folder) as server:
        write_catalogue(folder, server.address)
        options = [
            "--api",
            server.url("stac"),
            "--collection",
            "sentinel-2-l2a",
            "--dates",
            "2024-06-01/2024-06-30",
        ]
        arguments = [
            "search",
            str(out),
            *options,
            "--bbox",
            "2.9,48.6,3.2,48.9",
            "--max-cloud",
            "25",
            "--limit",
            "1",
        ]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert "There are more than 1 scenes, and the first ones are listed; give --limit." in result.output
        assert result.output.splitlines()[-2:] == [
            "day 1 2024-06-01, 10 % clouds",
            f"{out}: scenes listed: 1",
        ]
        again = CliRunner().invoke(app, arguments)
        assert again.exit_code == 1
        assert "give another name, or --overwrite" in again.output
        mapping = [
            str(out),
            str(tmp_path / "maps"),
            "--asset",
            "red,green,blue,nir",
            "--mask",
            "scl:3,8,9,10",
        ]
        result = CliRunner().invoke(segment_raster, [*mapping, "--model", str(model), "--device", "cpu"])
        assert result.exit_code == 0, result.output
    assert (tmp_path / "maps" / "day 1.tif").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bbox", "5.9 43.1"), '--bbox takes "LEFT BOTTOM RIGHT TOP" in degrees'),
        (("--dates", "summer"), "--dates takes a day, month or year"),
        (("--max-cloud", "200"), "--max-cloud must be between 0 and 100"),
        (("--api", "catalogue"), "--api takes the address of a STAC API"),
    ],
)
def test_wrong_arguments_are_a_sentence(tmp_path: Path, arguments: tuple[str, str], message: str) -> None:
    options = {"--api": "http://127.0.0.1:9", "--collection": "c", "--bbox": "1 2 3 4", "--dates": "2024"}
    options |= {arguments[0]: arguments[1]}
    given = [text for pair in options.items() for text in pair]
    result = CliRunner().invoke(app, ["search", str(tmp_path / "list.json"), *given])
    assert result.exit_code == 2
    assert message in result.output
    assert list(tmp_path.iterdir()) == []
