"""How much a maintainer must hold in her head: a trace of one run and a walk over the syntax trees.

    python benchmarks/house.py [CHECKOUT]

Prints one row per figure, for this checkout or another one.
"""

import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = ("geotools/iic_geotools", "runtime/iic_runtime", "train/iic_train", "export/iic_export")
TRAINING = {"epochs", "batch", "steps", "lr", "size"}
OPTION = "min_area"
MANY = 8
TRACE = """
import json, sys, threading
seen = set()
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and "<" not in code.co_qualname.rpartition(".")[2]:
        seen.add((code.co_filename, code.co_qualname, code.co_firstlineno))
threading.setprofile(note)
sys.setprofile(note)
from iic_runtime.cli.segment_raster import main
try:
    main([*sys.argv[1:-1]])
except SystemExit:
    pass
sys.setprofile(None)
json.dump(sorted(seen), open(sys.argv[-1], "w"))
"""


@dataclass(frozen=True)
class Module:
    """A module of the packages: its name, source and syntax tree."""

    name: str
    text: str
    tree: ast.Module


def modules(top: Path) -> list[Module]:
    """Return every module of the four packages."""
    found = []
    for room in ROOMS:
        folder = top / room
        for file in sorted(folder.rglob("*.py")):
            name = ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
            text = file.read_text()
            found.append(Module(name, text, ast.parse(text)))
    return found


def trace(top: Path) -> tuple[int, int]:
    """Return how many files and functions of the packages a map of the example scene passes through."""
    paths = ":".join(str((top / room).parent) for room in ROOMS)
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "seen.json")
        arguments = [str(top / "examples/scene.tif"), str(Path(folder, "map.tif")), "-q", str(names)]
        subprocess.run(
            [sys.executable, "-c", TRACE, *arguments],
            env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
            check=True,
        )
        seen = json.loads(names.read_text())
    roots = tuple(str(top / room) + "/" for room in ROOMS)
    called = [entry for entry in seen if entry[0].startswith(roots)]
    return len({file for file, _, _ in called}), len(called)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of a function's parameters, without self and cls."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [argument.arg for argument in [*named, *starred] if argument.arg not in ("self", "cls")]


def fields(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Yield the classes that declare annotated fields, with the fields' names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = {
                entry.target.id
                for entry in node.body
                if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
            }
            yield node.name, names


def pours(tree: ast.Module, option: str) -> Iterator[str]:
    """Yield where an option is declared or handed on: a parameter, a field, or a keyword of a call."""
    for function in functions(tree):
        if option in parameters(function):
            yield "parameter"
    for _, names in fields(tree):
        if option in names:
            yield "field"
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == option:
            yield "keyword"


def inner_imports(tree: ast.Module) -> int:
    """Count the imports inside functions."""
    inside = {
        id(node)
        for function in functions(tree)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return len(inside)


def importers(found: list[Module]) -> dict[str, set[str]]:
    """Return for each module the other modules that import from it."""
    known = {module.name for module in found}
    users: dict[str, set[str]] = defaultdict(set)
    for module in found:
        for node in ast.walk(module.tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                if name in known and name != module.name:
                    users[name].add(module.name)
    return users


def main() -> None:
    """Print the rows."""
    top = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    found = modules(top)
    files, called = trace(top)
    spots = Counter(spot for module in found for spot in pours(module.tree, OPTION))
    poured = [module.name for module in found if any(True for _ in pours(module.tree, OPTION))]
    wide = [
        f"{module.name}.{function.name}"
        for module in found
        for function in functions(module.tree)
        if len(parameters(function)) >= MANY
    ]
    training = [
        f"{module.name}.{name}"
        for module in found
        for name, names in fields(module.tree)
        if len(names & TRAINING) > 1
    ]
    users = importers(found)
    single = [module.name for module in found if len(users[module.name]) == 1]
    research = sum(file.read_text().count("\n") for file in top.glob("train/iic_research/*.py"))
    rows = (
        ("iic-segment-raster SCENE OUT, files / functions passed through", f"{files} / {called}"),
        (f"{OPTION}: parameters, fields, keywords (modules)", f"{dict(spots)} ({len(poured)})"),
        (f"functions with {MANY} parameters or more", str(len(wide))),
        (f"classes that hold two or more of {', '.join(sorted(TRAINING))}", str(len(training))),
        ("modules that exactly one other module imports from", f"{len(single)} of {len(found)}"),
        ("package lines", str(sum(module.text.count("\n") for module in found))),
        ("research lines next to the packages", str(research)),
        ("imports inside functions", str(sum(inner_imports(module.tree) for module in found))),
    )
    for name, figure in rows:
        print(f"{name:66} {figure}")
    if "-v" in sys.argv:
        for title, names in (("wide", wide), ("training", training), ("single", single)):
            print(f"\n{title}:", *names, sep="\n  ")


if __name__ == "__main__":
    main()
