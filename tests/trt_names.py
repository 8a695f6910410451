"""Which names of TensorRT a module uses, read from its source, and whether the real bindings have them.

As a script (`python trt_names.py BINDINGS SOURCE...`) it checks sources against an importable `tensorrt_bindings`
and prints what is wrong; it needs nothing but Python.
"""

import ast
import importlib
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Use:
    """`owner` is a class of TensorRT, or "" for the module; `arguments` is None where it is not called."""

    owner: str
    name: str
    arguments: int | None
    line: int


def uses(source: str) -> list[Use]:
    """Every attribute of `tensorrt` and of names annotated `trt.CLASS`, with how it is called."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            found += _uses_in(function)
    return sorted(set(found), key=lambda use: (use.line, use.owner, use.name))


def _uses_in(function):
    kinds = {}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kinds[node.target.id] = ast.unparse(node.annotation).strip("'\"")
        elif isinstance(node, ast.arg) and node.annotation is not None:
            kinds[node.arg] = ast.unparse(node.annotation).strip("'\"")
    owners = {name: kind.removeprefix("trt.") for name, kind in kinds.items() if kind.startswith("trt.")}
    calls = {
        id(node.func): len(node.args) + len(node.keywords)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
    }
    for node in ast.walk(function):
        if not isinstance(node, ast.Attribute):
            continue
        path = ast.unparse(node)
        root, *names = path.split(".")
        if not all(name.isidentifier() for name in (root, *names)):
            continue
        if root == "tensorrt":
            yield Use("", ".".join(names), calls.get(id(node)), node.lineno)
        elif root in owners and len(names) == 1:
            yield Use(owners[root], names[0], calls.get(id(node)), node.lineno)


def wrong(use: Use, bindings) -> str | None:
    """What is wrong about a use, or None."""
    there = getattr(bindings, use.owner, None) if use.owner else bindings
    if there is None:
        return f"there is no class {use.owner}"
    for name in use.name.split("."):
        if not hasattr(there, name):
            return f"{use.owner or 'tensorrt'} has no {use.name}"
        there = getattr(there, name)
    if use.arguments is None:
        return None
    called = there.__init__ if inspect.isclass(there) else there
    takes = _arguments(called)
    if takes and not any(least <= use.arguments <= most for least, most in takes):
        return f"{use.owner}.{use.name} takes {takes} arguments, not {use.arguments}"
    return None


def _arguments(function) -> list[tuple[int, int]]:
    """Least and most arguments, self aside, of each overload of a function that pybind11 documented."""
    if inspect.isfunction(function):
        parameters = inspect.signature(function).parameters.values()
        return [(sum(p.default is p.empty for p in parameters), len(parameters))]
    found = []
    for signature in re.findall(r"^(?:\d+\. )?\w+\((self: .*|)\) ->", function.__doc__ or "", re.M):
        parts = re.findall(r"(\w+): [^=]*?(= .*?)?(?:, (?=\w+: )|$)", signature)[1:]
        found.append((sum(not default for _, default in parts), len(parts)))
    return found


if __name__ == "__main__":
    real = importlib.import_module("tensorrt_bindings")
    sys.stdout.write(f"{real.__version__}\n")
    for file in sys.argv[1:]:
        for each in uses(Path(file).read_text()):
            if problem := wrong(each, real):
                sys.stdout.write(f"{Path(file).name}:{each.line}: {problem}\n")
