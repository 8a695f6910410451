"""Settings: one declaration gives arguments, options, documentation and JSON."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from iic_geotools.cli import App, Display, Given
from iic_geotools.errors import UsageError
from iic_geotools.option_texts import Bounds, parse_bounds, parse_creation_options, parse_size
from iic_geotools.settings import PathLike, Settings, checked, describe, markdown_table, setting, takes


@dataclass(frozen=True, kw_only=True)
class Region(Settings, group="Region"):
    """Which pixels."""

    bounds: Bounds | None = setting(None, "Only this region.", metavar="LIST", parse=parse_bounds)
    aoi: PathLike | None = setting(None, "Only the inside of these polygons.")


@dataclass(frozen=True, kw_only=True)
class Running(Settings, group="Running"):
    """How it runs."""

    device: Literal["auto", "cpu"] = setting("auto", "The device.", first=True)
    tile: int | None = setting(None, "Side of a tile; see `max_memory`.", details="In pixels.")
    max_memory: int | None = setting(None, "Bytes.", metavar="SIZE", parse=parse_size)
    co: dict[str, str] = setting(
        {}, "Creation option.", metavar="KEY=VALUE", repeat=True, parse=parse_creation_options
    )
    resume: bool = setting(True, "Resume.")
    overwrite: bool = setting(False, "Replace outputs.")
    match: bool | None = setting(None, "Match.")
    progress: Any = setting(print, "Called with progress.", option=False)


@dataclass(frozen=True, kw_only=True)
class ClipSettings(Region, Running):
    """All of them."""

    min_area: float = setting(0.0, "The smallest area.", metavar="M2")


@dataclass(frozen=True)
class ClipArguments(ClipSettings):
    """Arguments of `clip`."""

    scene: PathLike
    out: PathLike = "out.tif"


@takes(ClipArguments)
def clip(arguments: ClipArguments) -> ClipArguments:
    """Clip a scene.

    Args:
        scene: The scene.
        out: The output.

    Raises:
        IICError: Something is wrong.
    """
    return arguments


def test_a_function_takes_the_fields_as_arguments() -> None:
    arguments = clip("scene.tif", min_area=5, tile=256)
    assert (arguments.scene, arguments.out, arguments.min_area, arguments.tile) == (
        "scene.tif",
        "out.tif",
        5,
        256,
    )
    assert list(inspect.signature(clip).parameters)[:2] == ["scene", "out"]
    assert inspect.signature(clip).parameters["min_area"].kind is inspect.Parameter.KEYWORD_ONLY
    with pytest.raises(TypeError, match=r"clip\(\) got an unexpected keyword argument 'tiles'"):
        clip("scene.tif", tiles=3)  # type: ignore[call-arg]


def test_the_docstring_lists_every_argument_once() -> None:
    assert clip.__doc__ is not None
    assert clip.__doc__.count("Args:") == 1
    assert "    out: The output.\n    bounds: Only this region.\n" in clip.__doc__
    assert "    tile: Side of a tile; see `max_memory`. In pixels.\n" in clip.__doc__
    assert clip.__doc__.endswith("Raises:\n    IICError: Something is wrong.")


def test_a_part_of_the_settings_and_what_differs_from_the_defaults() -> None:
    settings = ClipSettings(aoi=Path("a.gpkg"), min_area=2.0)
    assert settings.part(Region) == Region(aoi=Path("a.gpkg"))
    assert settings.changed() == {"aoi": Path("a.gpkg"), "min_area": 2.0}
    assert ClipSettings.of({**settings.values(), "other": 1}) == settings
    assert settings.as_json()["aoi"] == "a.gpkg"
    assert settings.as_json()["co"] == {}


def test_settings_are_described_in_the_order_of_their_groups() -> None:
    entries = {entry.name: entry for entry in describe(ClipSettings)}
    assert list(entries)[:3] == ["bounds", "aoi", "device"]
    assert list(entries)[-1] == "min_area"
    assert (entries["aoi"].group, entries["tile"].group) == ("Region", "Running")
    assert (entries["aoi"].kind, entries["aoi"].optional) == (Path, True)
    assert entries["device"].choices == ("auto", "cpu")


def test_documentation_is_a_table_per_group() -> None:
    table = markdown_table(ClipSettings)
    assert table.startswith(
        "**Options**\n\n| | | |\n|---|---|---|\n| `device` | `auto\\|cpu` | The device. |\n"
    )
    assert "**Region**" in table
    assert "| `tile` |  | Side of a tile; see `max_memory`. In pixels. |" in table


def run(*arguments: str) -> tuple[list[Any], str, int]:
    app = App()
    seen: list[Any] = []

    @app.command()
    def command(
        scene: str,
        settings: ClipSettings,
        display: Display,
        changes: Annotated[dict[str, Any], Given(Changeable)],
        plain: Annotated[int, typer.Option(help="An option of its own.")] = 3,
    ) -> None:
        """Clip."""
        seen.extend((scene, settings, display, changes, plain))

    result = CliRunner().invoke(app, [*arguments])
    return seen, result.output, result.exit_code


@dataclass(frozen=True, kw_only=True)
class Changeable(Settings, group="Training"):
    """A preset that options change."""

    epochs: int = setting(5, "Epochs.")


def test_a_command_has_an_option_per_setting() -> None:
    seen, _, _ = run(
        "a.tif", "--min-area", "2", "--bounds", "0,1,2,3", "--max-memory", "1k", "--co", "a=b", "-q"
    )
    scene, settings, display, changes, plain = seen
    assert (scene, plain, changes) == ("a.tif", 3, {})
    assert settings == ClipSettings(min_area=2, bounds=(0, 1, 2, 3), max_memory=1024, co={"A": "b"})
    assert (display.quiet, display.verbose) == (True, False)
    seen, _, _ = run("a.tif", "--no-resume", "--overwrite", "--no-match", "--aoi", "a.gpkg", "--epochs", "7")
    assert seen[1] == ClipSettings(resume=False, overwrite=True, match=False, aoi=Path("a.gpkg"))
    assert seen[3] == {"epochs": 7}


@pytest.mark.parametrize("group", ["Region", "Running", "Training"])
def test_help_has_a_panel_per_group(group: str) -> None:
    _, output, code = run("--help")
    assert code == 0
    assert f"─ {group} ─" in output
    assert "--max-memory" in output
    assert "`" not in output
    assert "--progress " not in output


def test_an_error_in_the_text_of_an_option_is_a_sentence() -> None:
    _, output, code = run("a.tif", "--max-memory", "much")
    assert code == 2
    assert output == 'Error: --max-memory takes a size such as 800M or 2G, not "much".\n'
    with pytest.raises(UsageError, match="`max_memory` takes a size"):
        parse_size("much", "max_memory")


@dataclass(frozen=True, kw_only=True)
class Numbers(Settings):
    """Numbers."""

    tile: int | None = setting(None, "Side of a tile.")
    sieve: float = setting(0.0, "Area.")
    seed: int = setting(0, "Seed.", least=0)
    nodata: float | None = setting(None, "Nodata value.")
    max_memory: int | None = setting(None, "Bytes.", parse=parse_size)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"tile": value} for value in ("a", 1.5, True, 10**30, [1])),
        *({"sieve": value} for value in ("a", float("nan"), float("inf"))),
        *({"seed": -1}, {"seed": 10**20}, {"max_memory": "x"}),
    ],
)
def test_numbers_are_checked_where_functions_are_called(wrong: dict[str, Any]) -> None:
    @takes(Numbers)
    def function(arguments: Numbers) -> Numbers:
        return arguments

    assert function(tile=np.int64(3), sieve=2, nodata=float("nan")).tile == 3
    with pytest.raises(UsageError, match=f"`{next(iter(wrong))}` must be "):
        function(**wrong)


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        ({"bounds": 5}, "tuple[float, float, float, float] | None, not '5'."),
        ({"bounds": (1, 2, 3)}, "tuple["),
        ({"bounds": "1,2,3,4"}, "tuple["),
        ({"bounds": (1, 2, 3, "x")}, "tuple["),
        ({"aoi": b"x"}, "str | PathLike[str] | None, not "),
        ({"aoi": 5}, "str | PathLike"),
        ({"device": "gpu"}, "auto or cpu, not gpu."),
        ({"device": ["cpu"]}, "auto or cpu, not ['cpu']."),
        ({"tile": "a"}, "a whole number, not 'a'."),
        ({"co": "x"}, "dict[str, str], not 'x'."),
        ({"co": {1: 2}}, "dict[str, str]"),
        ({"resume": "no"}, "bool, not 'no'."),
        ({"match": 1}, "bool | None, not '1'."),
        ({"min_area": [1]}, "a number, not '[1]'."),
        ({"scene": 5}, "str | PathLike[str], not '5'."),
    ],
)
def test_types_are_checked_where_functions_are_called(wrong: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        clip(**{"scene": "scene.tif", **wrong})
    assert str(caught.value).startswith(f"`{next(iter(wrong))}` must be {wanted}")


def test_lists_arrays_and_numpys_numbers_are_taken() -> None:
    taken: Any = {"bounds": [1, 2.5, 3, 4], "tile": np.int16(8), "resume": np.False_, "co": {"A": "b"}}
    assert clip(Path("scene.tif"), **taken).bounds == [1, 2.5, 3, 4]
    clip("scene.tif", bounds=np.arange(4.0))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be a whole number"):
        clip("scene.tif", tile=np.float32(8))  # type: ignore[arg-type]


def test_a_function_without_settings_checks_its_annotations_too() -> None:
    @checked
    def function(path: PathLike, names: list[str], *, done: Any = None, **others: Any) -> PathLike:
        return path

    assert function("a", ["b"], done=3, more=4) == "a"
    with pytest.raises(UsageError, match=r"`names` must be list\[str\], not 'b'"):
        function("a", "b")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing a required argument: 'names'"):
        function("a")  # type: ignore[call-arg]
