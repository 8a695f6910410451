"""What all commands share: errors as one sentence, exit codes, progress, closed streams."""

import io
import json
import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import typer
from click.testing import CliRunner as ClickRunner
from typer.testing import CliRunner

import iic_geotools
from iic_geotools import cli
from iic_geotools.cli import Shell, Version, display, shell, show_progress
from iic_geotools.errors import IICError, SceneError, UsageError
from iic_geotools.option_texts import NumberRange, parse_number_range
from iic_geotools.settings import Settings, setting
from iic_geotools.work import Progress

LOG = logging.getLogger("iic_geotools.test")


@dataclass(frozen=True, kw_only=True)
class Clipping(Settings):
    min_area: float = setting(0.0, "The smallest area.", flags=("--min-area", "-m"))
    gsd: NumberRange | None = setting(None, "A range.", metavar="MIN,MAX", parse=parse_number_range)


def run(*arguments: str, error: Exception | None = None, message: str = "") -> tuple[int, str]:
    """Exit code and standard error of a small command that logs a message or fails."""
    app = cli.App()

    @app.command()
    def command(
        scene: str,
        settings: Clipping,
        verbosity: Shell,
        resume: bool = True,
        version: Version = False,
    ) -> None:
        LOG.debug("a detail of %s", settings.gsd)
        LOG.info("a fact")
        LOG.warning(message or "a warning")
        if error is not None:
            raise error

    result = CliRunner().invoke(app, list(arguments), prog_name="iic-command")
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("wrong."), 2), (SceneError("broken."), 1), (IICError("failed."), 1)]
)
def test_errors_are_sentences_and_exit_codes(error: Exception, code: int) -> None:
    exit_code, output = run("scene.tif", "-q", error=error)
    assert exit_code == code
    assert output.endswith(f"Error: {error}\n")
    assert "Traceback" not in output


def test_an_interrupt_has_the_exit_code_of_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, shell():
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_traceback_raises_the_error() -> None:
    with pytest.raises(UsageError), shell(traceback=True):
        raise UsageError("wrong")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (KeyError("a\nb"), "KeyError"),
        (RecursionError(), "RecursionError"),
        (ModuleNotFoundError("No module named 'x'", name="x"), "ModuleNotFoundError"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_unexpected_errors_are_sentences_too(error: Exception, reason: str) -> None:
    code, output = run("scene.tif", "-q", error=error)
    assert code == 1
    assert output.splitlines()[-1].startswith("Error: ")
    assert reason in output.splitlines()[-1]
    assert "--traceback shows more" in output
    assert "Traceback (most" not in output


def test_traceback_shows_unexpected_errors() -> None:
    with pytest.raises(ZeroDivisionError), shell(traceback=True):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--gsd", "small", "scene.tif"), 'takes two numbers MIN,MAX, e.g. 0.2,1, not "small"'),
        (("--min-area", "much", "scene.tif"), "--min-area"),
        (("--nothing", "scene.tif"), "--nothing"),
        ((), "Missing argument"),
        ((), "of iic-command [OPTIONS] SCENE; --help"),
    ],
)
def test_wrong_usage_is_one_sentence_too(arguments: tuple[str, ...], reason: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    (line,) = output.splitlines()
    assert line.startswith("Error: ")
    assert reason in line


def test_names_cannot_command_the_terminal() -> None:
    _, output = run(
        "scene.tif", error=SceneError("\x1b[2J\r[red]x[/red]\udc80 is\nbroken."), message="\x07beep"
    )
    assert output.splitlines() == ["a fact", r"\x07beep", r"Error: \x1b[2J [red]x[/red]\udc80 is broken."]


def test_arguments_are_printed_as_options() -> None:
    error = UsageError("`min_area` needs `polygons` of the `scene`, see `iic-model list`; or `resume`.")
    _, output = run("scene.tif", error=error)
    expected = "Error: --min-area needs `polygons` of the SCENE, see `iic-model list`; or --resume.\n"
    assert output.endswith(expected)


def test_arguments_in_log_messages_are_printed_as_options() -> None:
    assert "give --min-area 0" in run("scene.tif", message="give `min_area` 0")[1]


def test_arguments_that_may_be_repeated_are_in_the_singular() -> None:
    app = cli.App()

    @app.command()
    def command(scenes: list[str], out: str, shell: Shell) -> None: ...

    assert "command [OPTIONS] SCENE... OUT" in CliRunner().invoke(app, ["--help"], terminal_width=200).output


def test_a_command_may_name_the_options_of_another() -> None:
    app = cli.App()

    @app.command(context_settings={"obj": ("match_gsd", "scene")})
    def command(scene: str, shell: Shell) -> None:
        raise SceneError("give `match_gsd` or a `scene`, `else`.")

    result = CliRunner().invoke(app, ["scene.tif"])
    assert result.output == "Error: give --match-gsd or a SCENE, `else`.\n"


def test_arguments_are_printed_as_options_of_rio() -> None:
    @click.command()
    @click.option("--min-area")
    def command(min_area: str | None) -> None:
        try:
            with shell():
                raise UsageError("`min_area` is wrong.")
        except typer.Exit as leaving:
            click.get_current_context().exit(leaving.exit_code)

    result = ClickRunner().invoke(command, [])
    assert result.exit_code == 2
    assert result.output == "Error: --min-area is wrong.\n"


def test_outside_a_command_arguments_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    run("scene.tif")  # a command that has ended must not be taken for the running one
    with pytest.raises(typer.Exit), shell():
        raise UsageError("`min_area` is wrong.")
    assert capsys.readouterr().err == "Error: `min_area` is wrong.\n"


@pytest.mark.parametrize(
    ("option", "messages"),
    [
        ((), ["a fact", "a warning"]),
        (("-q",), ["a warning"]),
        (("-v",), ["a detail of None", "a fact", "a warning"]),
    ],
)
def test_verbosity(option: tuple[str, ...], messages: list[str]) -> None:
    assert run("scene.tif", *option)[1].splitlines() == messages


def test_version_needs_no_other_argument() -> None:
    assert run("--version") == (0, f"iic-command {iic_geotools.__version__}\n")


def test_number_ranges() -> None:
    assert "NumberRange(low=0.2, high=1.0)" in run("scene.tif", "-v", "--gsd", "0.2,1")[1]


@pytest.mark.parametrize("text", ["abc", "1", "1,2,3", "2,1", "0,1", "nan,1", "1,inf", ""])
def test_wrong_number_ranges_are_wrong_usage(text: str) -> None:
    exit_code, output = run("scene.tif", "--gsd", text)
    assert exit_code == 2
    assert "--gsd" in output
    assert "MIN" in output


def test_a_missing_optional_package_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, shell():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    assert ended.value.exit_code == 1
    sentence = 'This needs the package torch: run `pip install ".[train]"` in your clone of iic-edge.'
    assert capsys.readouterr().err == f"Error: {sentence}\n"


def test_warnings_of_rasterio_about_missing_transforms_are_suppressed(tmp_path: Path) -> None:
    path = str(tmp_path / "plain.tif")
    script = (
        "import numpy, rasterio\nfrom iic_geotools.cli import shell\nwith shell():\n"
        f"    with rasterio.open({path!r}, 'w', driver='GTiff', width=2, height=2, count=1, dtype='uint8') as out:\n"
        "        out.write(numpy.ones((1, 2, 2), 'uint8'))\n"
        f"    rasterio.open({path!r}).close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "NotGeoreferencedWarning" not in done.stderr


class Clock:
    """A clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 100.0
        monkeypatch.setattr(display.time, "monotonic", lambda: self.seconds)


class Terminal(io.StringIO):
    """A stream that looks like a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(as_json=True) as show:
        show(Progress("segment", 5, 10, "px"))
        show(Progress("train", 1, 2, note="loss 3"))
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first) == {"stage": "segment", "done": 5, "total": 10}
    assert json.loads(second) == {"stage": "train", "done": 1, "total": 2, "note": "loss 3"}


def test_quiet_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(quiet=True) as show:
        show(Progress("segment", 5, 10))
    assert capsys.readouterr() == ("", "")


def test_lines_come_at_twentieths_and_at_most_once_per_second(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with show_progress() as show:
        for done in range(1001):
            clock.seconds += 0.1
            show(Progress("segment", done * 1_000_000, 1_000_000_000, "px"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[:2] == ["segment: 2 %, 10.00 Mpx/s", "segment: 5 %, 10.00 Mpx/s"]
    assert lines[-1] == "segment: 100 %, 10.00 Mpx/s"


def test_lines_come_at_least_once_per_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with show_progress() as show:
        for step in range(100):
            clock.seconds += 6
            show(Progress("train", step, 100_000, "images", f"step {step}"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[1] == "train: 0 %, step 10, 0.17 images/s"


def test_short_work_has_no_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with show_progress() as show:
        show(Progress("segment", 0, 10, "px"))
        clock.seconds += 1.9
        show(Progress("segment", 10, 10, "px"))
    assert capsys.readouterr().err == ""


def test_the_last_line_of_a_stage_is_never_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with show_progress() as show:
        clock.seconds += 2
        for scene in range(2):
            show(Progress("scenes", scene, 2))
            show(Progress("segment", 0, 10, "px"))
            show(Progress("segment", 10, 10, "px"))
        show(Progress("write", 0, 0))
    lines = capsys.readouterr().err.splitlines()
    segment = ["segment: 0 %", "segment: 100 %"]
    assert lines == ["scenes: 0 %", *segment, "scenes: 50 %", *segment, "write: 100 %"]


def test_speed_leaves_out_what_an_earlier_run_did(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with show_progress() as show:
        show(Progress("segment", 90_000_000, 100_000_000, "px"))
        clock.seconds += 10
        show(Progress("segment", 100_000_000, 100_000_000, "px"))
    assert capsys.readouterr().err.splitlines()[-1] == "segment: 100 %, 1.00 Mpx/s"


def test_a_bar_on_a_terminal_with_messages_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    standard_output = sys.stdout
    with shell(), show_progress() as show:
        show(Progress("train", 0, 4, "images", "epoch 1 [A]"))
        LOG.warning("a warning")
        assert sys.stdout is standard_output  # results on standard output must not end up in the bar
        show(Progress("train", 4, 4, "images", "epoch 2 [A]"))
    shown = terminal.getvalue()
    assert sys.stderr is terminal
    assert shown.index("a warning") < shown.rindex("train")
    assert "100 %" in shown
    assert "epoch 2 [A]" in shown


def test_a_bar_starts_again_for_the_next_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_progress() as show:
        for _ in range(2):
            for done in (0, 5, 10):
                show(Progress("segment", done, 10, "px"))
        show(Progress("segment", 3, 10, "px"))
    last = terminal.getvalue().rpartition("segment")[2]
    assert " 30 %" in last
    assert "\n segment" not in terminal.getvalue()  # one bar, drawn again and again


SCRIPT = """
import logging, sys
from iic_geotools.cli import shell, show_progress
from iic_geotools.errors import UsageError
from iic_geotools.option_texts import NumberRange, parse_number_range
from iic_geotools.work import Progress
from iic_geotools.settings import Settings, setting

if sys.stderr is not None and "terminal" in sys.argv:
    sys.stderr.isatty = lambda: True
with shell(), show_progress(as_json="json" in sys.argv) as show:
    logging.getLogger("iic_geotools").warning("a warning")
    show(Progress("segment", 0, 1, "px"))
    show(Progress("segment", 1, 1, "px"))
try:
    with shell():
        raise UsageError("wrong")
except BaseException as ended:
    assert ended.exit_code == 2
with open(sys.argv[1], "w") as file:
    file.write("done")
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("mode", ["lines", "terminal", "json"])
@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", "2>&- >&-", ">/dev/full 2>/dev/full"])
def test_a_closed_or_full_stream_never_ends_a_run(tmp_path: Path, mode: str, streams: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), mode]
    subprocess.run(["sh", "-c", f'"$@" {streams}', "sh", *command], check=False)
    assert (tmp_path / "out").read_text() == "done"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_that_cannot_be_written_is_a_sentence(option: str) -> None:
    program = "from iic_runtime.cli.segment_raster import main; main()"
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", program, option],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "Error: Unexpected error, OSError: [Errno 28] No space left on device (--traceback shows more)."
    ]
