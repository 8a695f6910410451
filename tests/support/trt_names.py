"""Which names of TensorRT a module uses, read from its source, and whether the real bindings have them.

    python trt_names.py SOURCE...

checks sources against an importable `tensorrt_bindings` and prints what is wrong. It needs nothing but Python.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Use:
    """One use of a name of TensorRT.

    Attributes:
        owner: A class of TensorRT, or "" for the module.
        name: The attribute of the owner.
        arguments: Number of arguments of the call; None where it is not called.
        line: Line of the source.
    """

    owner: str
    name: str
    arguments: int | None
    line: int


def uses(source: str) -> list[Use]:
    """Every attribute of `tensorrt` and of names annotated `trt.CLASS`, and how it is called."""
    names: set[Use] = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            names |= set(_uses_in(function))
    return sorted(names, key=lambda use: (use.line, use.owner, use.name))


def _uses_in(function: ast.FunctionDef) -> Iterator[Use]:
    annotations: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotations[node.target.id] = ast.unparse(node.annotation).strip("'\"")
        elif isinstance(node, ast.arg) and node.annotation is not None:
            annotations[node.arg] = ast.unparse(node.annotation).strip("'\"")
    owners = {
        name: text.removeprefix("trt.") for name, text in annotations.items() if text.startswith("trt.")
    }
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


def problem_with(use: Use, bindings: ModuleType) -> str | None:
    """What is wrong about a use, if anything."""
    attribute: Any = getattr(bindings, use.owner, None) if use.owner else bindings
    if attribute is None:
        return f"there is no class {use.owner}"
    for name in use.name.split("."):
        if not hasattr(attribute, name):
            return f"{use.owner or 'tensorrt'} has no {use.name}"
        attribute = getattr(attribute, name)
    if use.arguments is None:
        return None
    function = attribute.__init__ if inspect.isclass(attribute) else attribute
    counts = _argument_counts(function)
    if counts and not any(least <= use.arguments <= most for least, most in counts):
        return f"{use.owner}.{use.name} takes {counts} arguments, not {use.arguments}"
    return None


def _argument_counts(function: Any) -> list[tuple[int, int]]:
    """Least and most arguments, self aside, of each overload of a function that pybind11 documented."""
    if inspect.isfunction(function):
        parameters = inspect.signature(function).parameters.values()
        return [(sum(p.default is p.empty for p in parameters), len(parameters))]
    counts = []
    for signature in re.findall(r"^(?:\d+\. )?\w+\((self: .*|)\) ->", function.__doc__ or "", re.M):
        parts = re.findall(r"(\w+): [^=]*?(= .*?)?(?:, (?=\w+: )|$)", signature)[1:]
        counts.append((sum(not default for _, default in parts), len(parts)))
    return counts


if __name__ == "__main__":
    real = importlib.import_module("tensorrt_bindings")
    sys.stdout.write(f"{real.__version__}\n")
    for file in sys.argv[1:]:
        for use in uses(Path(file).read_text()):
            if problem := problem_with(use, real):
                sys.stdout.write(f"{Path(file).name}:{use.line}: {problem}\n")
