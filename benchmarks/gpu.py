"""What docs/gpu.md asks for, measured on this machine, as one JSON document to be sent in.

    python benchmarks/gpu.py [--seconds 5] [--train mnist] > gpu.json

Nothing is downloaded. What cannot be measured is there with the reason: without a GPU the same commands run on the CPU,
and `--train`, a preset whose data is in `data/` or `--data`, adds the images per second of one epoch of two steps.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGES = (
    *(
        "iic-edge",
        "numpy",
        "onnxruntime",
        "onnxruntime-gpu",
        "openvino",
        "tensorrt",
        "tensorrt-cu13",
        "torch",
    ),
    *("rasterio", "cuda-python"),
)
QUERY = "name,memory.total,driver_version,compute_cap,power.limit"
EXAMPLES = {"aerial": "scene.tif", "satellite": "sentinel2.tif"}


def run(*command: str, folder: Path | None = None) -> tuple[int, str]:
    """Run a command; return its exit code and what it wrote."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    except FileNotFoundError:
        return 127, f"{command[0]} is not there"
    return done.returncode, (done.stdout or done.stderr).strip()


def machine() -> dict[str, Any]:
    """Processor, GPU, driver and the versions of what computes."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    code, gpus = run("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader")
    found = [dict(zip(QUERY.split(","), line.split(", "), strict=False)) for line in gpus.splitlines()]
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "gpus": gpus if code else found,
        "packages": versions,
    }


def tests() -> dict[str, str]:
    """The last line of the tests that a GPU decides."""
    results = {}
    for mark in ("gpu_smoke", "gpu"):
        _, output = run(sys.executable, "-m", "pytest", "-q", "-m", mark, str(ROOT / "tests"))
        results[mark] = output.splitlines()[-1]
    return results


def speed(seconds: float) -> dict[str, Any]:
    """Both bundled models on every engine, with tiles of their example, and the example from file to file."""
    results: dict[str, Any] = {}
    for model, scene in EXAMPLES.items():
        code = "from iic_runtime.cli.model import main; main()"
        arguments = ["benchmark", model, "--scene", str(ROOT / "examples" / scene), "--seconds", str(seconds)]
        _, output = run(sys.executable, "-c", code, *arguments, "--json")
        try:
            results[model] = json.loads(output)
        except ValueError:
            results[model] = output
    return results


def work() -> dict[str, dict[str, float]]:
    """What a pixel costs on paper: operations of the convolutions, and bytes of their outputs in float32."""
    import numpy as np

    from iic_runtime.engine.open_engine import open_engine
    from iic_runtime.model.onnx_graph import OnnxGraph
    from iic_runtime.model.select import bundled_models
    from iic_runtime.options import EngineSettings

    results = {}
    for model in bundled_models():
        graph = shown = OnnxGraph.parse(model.content)
        convolutions = [node for node in graph.nodes if node.operator == "Conv"]
        names = [node.outputs[0] for node in convolutions]
        for name in names:
            shown = shown.declare_output(name, *(f"{name}/{axis}" for axis in range(4)))
        settings, outputs = EngineSettings(device="cpu"), ("labels", "confidence", *names)
        engine = open_engine(replace(model, content=shown.serialise()), settings, outputs)
        image = np.zeros((1, len(model.card.bands), 512, 512), model.card.dtype)
        made = [values.size / 512**2 for values in engine.fetch(image, names)]  # type: ignore[attr-defined]
        weights = [graph.weight(node.inputs[1])[0].size for node in convolutions]
        operations = sum(2 * size * count for size, count in zip(made, weights, strict=True))
        results[model.card.name] = {
            "kflop_per_pixel": round(operations / 1e3, 2),
            "bytes_per_pixel": 4 * sum(made),
        }
    return results


def training(preset: str, data: str) -> dict[str, Any] | str:
    """Images per second of two steps of a preset."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--epochs", "1", "--steps", "2", "--data", str(Path(data).absolute()), "--name", "gpu"]
        code, output = run(sys.executable, "-m", "iic_train", preset, *options, folder=Path(folder))
        if code:
            return output.splitlines()[-1]
        epoch = json.loads((Path(folder) / "runs/gpu/metrics.jsonl").read_text().splitlines()[-1])
    return {key: value for key, value in epoch.items() if re.search("second|images|memory", key)}


def main() -> None:
    """Print the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each setting is run, at least")
    parser.add_argument("--train", metavar="PRESET", help="also train two steps")
    parser.add_argument("--data", default="data", help="the folder of its data")
    parser.add_argument("--no-tests", action="store_true")
    options = parser.parse_args()
    document: dict[str, Any] = {"machine": machine(), "work": work(), "speed": speed(options.seconds)}
    if not options.no_tests:
        document["tests"] = tests()
    if options.train:
        document["training"] = training(options.train, options.data)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
