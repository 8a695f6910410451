"""What the documentation shows works: commands parse, options and files exist, links lead somewhere, Python runs."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import iic_export.cli
import iic_geotools
import iic_geotools.cli.map
import iic_runtime.cli.classify
import iic_runtime.cli.model
import iic_runtime.cli.rio
import iic_runtime.cli.scenes
import iic_runtime.cli.segment_raster
import iic_runtime.cli.studio
import iic_train.cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))]
RUNNABLE = "<!-- runnable -->"
"""Stands before a Python snippet that runs as it is, in a folder that holds scene.tif and examples/."""
COMMANDS: dict[str, Any] = {  # typer may bring a click of its own
    "iic-segment-raster": get_command(iic_runtime.cli.segment_raster.app),
    "iic-scenes": get_command(iic_runtime.cli.scenes.app),
    "iic-classify": get_command(iic_runtime.cli.classify.app),
    "iic-map": get_command(iic_geotools.cli.map.app),
    "iic-model": get_command(iic_runtime.cli.model.app),
    "iic-studio": get_command(iic_runtime.cli.studio.app),
    "iic-train": get_command(iic_train.cli.app),
    "iic-export": get_command(iic_export.cli.app),
    "rio iic-segment": iic_runtime.cli.rio.command,
}
FOREIGN_OPTIONS = {
    *("--aws-profile", "--aws-no-sign-requests", "--aws-requester-pays"),  # rio
    *("--nthreads", "--nproc-per-node", "--shm-size"),  # dask, torchrun, Docker
    *("--no-index", "--find-links", "--no-deps", "--resolution"),  # pip, uv
    *("--variant", "--include"),  # debootstrap
    *(
        "--memory",
        "--bundled",
        "--fold",
        "--free-engine",
        "--only",
        "--before",
        "--chips",
        "--draws",
        "--guide",
        "--side",
        "--run",
        "--seeds",
        "--sentinel2",
        "--simulated-gpu",
        "--sparse",
        "--start",
        "--train",
        "--twin",
    ),  # scripts under benchmarks/
}


@dataclass(frozen=True)
class Example:
    """A command line in a code block of a page."""

    page: str
    line: str


def code_blocks(text: str) -> Iterator[str]:
    """Indented blocks, and fenced ones that are not Python."""
    fenced = r"^```(?!python)\w*\n(.*?)^```"
    yield from re.findall(fenced, text, re.M | re.S)
    yield from re.findall(r"(?:^ {4}.*\n)+", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)


def examples() -> Iterator[Example]:
    """Every command of this project in a code block, continued lines joined."""
    for page in PAGES:
        for block in code_blocks(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.strip().removeprefix("$ ")
                if command.startswith(("iic-", "rio ")):
                    yield Example(page.name, command)


EXAMPLES = list(examples())


def option_names(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for subcommand in getattr(command, "commands", {}).values():
        yield from option_names(subcommand)


def test_the_pages_show_each_command() -> None:
    shown = {name for name in COMMANDS for example in EXAMPLES if name.split()[0] in example.line.split()}
    assert shown == set(COMMANDS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.page}: {example.line[:60]}")
def test_a_command_parses(example: Example) -> None:
    name, *arguments = shlex.split(example.line, comments=True)
    if name == "rio":  # rio's own options stand before the plugin's name
        name = "rio iic-segment"
        arguments = arguments[arguments.index("iic-segment") + 1 :]
    command = COMMANDS[name]
    while subcommands := getattr(command, "commands", None):
        assert arguments[0] in subcommands, f"{name} has no command {arguments[0]}"
        command, arguments = subcommands[arguments[0]], arguments[1:]
    command.make_context(name, list(arguments))
    files = [argument for argument in arguments if argument.startswith(("examples/", "benchmarks/"))]
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_and_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    known = {option for command in COMMANDS.values() for option in option_names(command)} | FOREIGN_OPTIONS
    code = " ".join(
        [
            *re.findall(r"`([^`\n]+)`", text),
            *(example.line for example in EXAMPLES if example.page == page.name),
        ]
    )
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) - known - {"--help", "--option"} == set()
    files = re.findall(r"\b(?:benchmarks|tests|examples|docs)/[\w./-]+\w\.(?:py|md|tif|jpg|ipynb)\b", text)
    assert [file for file in files if not (ROOT / file).exists()] == []
    modules = re.findall(r"`(iic_(?:geotools|runtime|train|export)(?:\.\w+)+)", text)
    assert [module for module in modules if not _exists(module)] == []


def _exists(path: str) -> bool:
    """Whether a dotted path is a module, or an attribute of one."""
    module, _, attribute = path.rpartition(".")
    try:
        return hasattr(import_module(module), attribute) or find_spec(path) is not None
    except ImportError:
        return False


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def snippets() -> Iterator[tuple[str, str, bool]]:
    """Page, code and whether it is marked as runnable, of each Python snippet."""
    for page in PAGES:
        pattern = rf"({re.escape(RUNNABLE)}\n)?^```python\n(.*?)^```"
        for number, (mark, code) in enumerate(re.findall(pattern, page.read_text(), re.M | re.S), 1):
            yield f"{page.name} {number}", code, bool(mark)


SNIPPETS = list(snippets())


@pytest.mark.parametrize(("name", "code"), [(name, code) for name, code, _ in SNIPPETS])
def test_a_python_snippet_compiles(name: str, code: str) -> None:
    compile(code, name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [(name, code) for name, code, runs in SNIPPETS if runs])
def test_a_runnable_snippet_runs(name: str, code: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for scene in ("scene.tif", "west.tif", "east.tif"):
        shutil.copy(ROOT / "examples" / "scene.tif", tmp_path / scene)
    (tmp_path / "snippet.py").write_text(code)
    process = subprocess.run(
        [sys.executable, "snippet.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


def test_changelog_and_citation_name_the_version() -> None:
    version = iic_geotools.__version__
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert version in headings[:2]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_page_of_options_is_made_from_the_settings() -> None:
    import runpy

    page = runpy.run_path(str(ROOT / "docs/write_options.py"))["options_page"]()
    assert (ROOT / "docs/options.md").read_text() == page, "run: python docs/write_options.py"
