"""The notebooks under examples/: saved with their outputs, small, and they run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))
LARGEST = 1_000_000
# Runs the cells of a notebook as Jupyter does: what the last line of a cell gives is shown.
RUNNER = """
import ast, json, sys
scope = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin)):
    *body, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        body, last = [*body, last], None
    exec(compile(ast.Module(body, []), f"cell {number}", "exec"), scope)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), scope)
        shown = value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
        assert not shown.startswith("<p>"), shown
"""


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert [notebook.name for notebook in NOTEBOOKS] == ["map-a-scene.ipynb", "own-classes.ipynb"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_is_saved_with_its_outputs(notebook: Path) -> None:
    cells = code_cells(notebook)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert {output["output_type"] for output in outputs} <= {"execute_result", "stream"}
    pages = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(pages) == 2
    assert all("".join(page).startswith("<iframe srcdoc=") for page in pages)
    assert notebook.stat().st_size < LARGEST
    texts = [json.dumps(output) for output in outputs]
    assert not any(name in text for text in texts for name in ("/tmp/", "/home/", "/work/", "stderr"))


@pytest.mark.slow
@pytest.mark.timeout(1500)  # one of them trains a model: a minute of a quiet machine, many of a busy one
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    for example in [*ROOT.glob("examples/*.tif"), *ROOT.glob("examples/*.geojson")]:
        shutil.copy(example, tmp_path)
    sources = ["".join(cell["source"]) for cell in code_cells(notebook)]
    process = subprocess.run(
        [sys.executable, "-c", RUNNER],
        cwd=tmp_path,
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
