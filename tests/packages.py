"""Build the wheel and the source archive, check them, install them from a local index, and map the example with each.

    python tests/packages.py          # the newest versions, with this Python
    python tests/packages.py --all    # Python 3.11 to 3.13, each with the newest and the oldest admitted versions
    python tests/packages.py --check  # build and check only

The index is served on 127.0.0.1 and holds iic-edge; all other packages come from the index of this machine. Newest
versions are installed by pip, as users do it; oldest ones by uv, which can look for them.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.parser import Parser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import rasterio
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "deploy" / "conda" / "recipe.yaml"
PYTHONS = ("3.11", "3.12", "3.13")
LARGEST = {".whl": 6e6, ".gz": 10e6}
"""Bytes: what a small machine downloads, and the limit that reviewers of conda-forge ask about."""
CODE = {".py", ".pyi", ".typed", ".js", ".css", ".html"}
DATA = {
    "iic_geotools/classmap/colours.json",
    "iic_geotools/scene/sensors.json",
    "iic_geotools/scene/spectra.json",
    "iic_runtime/model/data/aerial.onnx",
    "iic_runtime/model/data/satellite.onnx",
    "iic_train/recipes/dense_chips.json.gz",
    "iic_train/recipes/naip_towns.geojson",
    "iic_train/recipes/satellite_scenes.geojson",
}
"""What is neither code nor page; models, labels and statistics of imagery have a paragraph in NOTICE."""
WITHOUT_NOTICE = {"iic_geotools/classmap/colours.json", "iic_geotools/scene/sensors.json"}
CONDA_NAMES: dict[str, str] = {}
"""Packages that conda-forge calls otherwise."""
MOST_OTHER_PIXELS = 0.001
"""Share of labels that another version of an engine may round to another class."""


def build(out: Path) -> tuple[Path, Path]:
    """Build both archives and return the wheel and the source archive."""
    for old in out.glob("iic_edge-*"):
        old.unlink()
    call(sys.executable, "-m", "build", "--outdir", out, ROOT)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def check(wheel: Path, source: Path) -> Message:
    """Check what is in both archives, and return the wheel's metadata."""
    call(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    for file in (wheel, source):
        assert file.stat().st_size < LARGEST[file.suffix], f"{file.name}: {file.stat().st_size} bytes"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (folder,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        notice = archive.read(f"{folder}/licenses/NOTICE").decode()
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
    files = {name for name in names if not name.startswith(folder) and Path(name).suffix not in CODE}
    assert files == DATA, f"the wheel has other files than it should: {files ^ DATA}"
    unsaid = {name for name in DATA - WITHOUT_NOTICE if Path(name).name not in notice}
    assert not unsaid, f"NOTICE does not say where these are from: {unsaid}"
    assert f"{folder}/licenses/LICENSE" in names
    with tarfile.open(source) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "NOTICE", "examples/scene.tif", "examples/README.md", "pyproject.toml"} <= members
    for example in (name for name in members if name.startswith("examples/") and name.endswith(".tif")):
        assert Path(example).name in notice, f"NOTICE does not say where {example} is from"
    differences = recipe_differences(metadata.get_all("Requires-Dist", []), str(metadata["Version"]))
    assert not differences, differences
    return metadata


def recipe_differences(requirements: list[str], version: str) -> list[str]:
    """What the recipe for conda-forge says otherwise than a wheel of this version with the extra cpu."""
    recipe = yaml.safe_load(RECIPE.read_text())
    found = dict(_split(line) for line in recipe["requirements"]["run"])
    expected = {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": "cpu"}):
            name = CONDA_NAMES.get(requirement.name, requirement.name)
            expected[name] = ",".join(sorted(map(str, requirement.specifier)))
    found.pop("python")
    differences = [
        f"{name}: {found.get(name)} in the recipe, {expected.get(name)} in the wheel"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    if str(recipe["context"]["version"]) != version:
        differences.append(f"version: {recipe['context']['version']} in the recipe, {version} in the wheel")
    return differences


def _split(line: str) -> tuple[str, str]:
    name, _, versions = line.partition(" ")
    return name, ",".join(sorted(versions.split(",")))


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def index(wheel: Path, source: Path) -> Iterator[str]:
    """Serve both archives as a package index and yield its address."""
    with TemporaryDirectory() as folder:
        project = Path(folder, "simple", "iic-edge")
        project.mkdir(parents=True)
        for file in (wheel, source):
            shutil.copy(file, project)
        handler = partial(_Quiet, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/simple/"
            server.shutdown()


def install(python: str, oldest: bool, requirement: str, address: str, folder: Path) -> None:
    """Make a new environment in `folder` and install a requirement into it, with an index next to the usual one."""
    if not oldest:
        call(interpreter(python), "-m", "venv", folder)
        pip = [scripts(folder) / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        call(*pip, "--extra-index-url", address, requirement)
        return
    call(uv(), "venv", "--quiet", "--python", interpreter(python), folder)
    pip = [uv(), "pip", "install", "--quiet", "--python", folder, "--only-binary", ":all:"]
    # Of iic-edge itself, named with its version, there is only one; the others are as old as it admits.
    call(*pip, "--resolution", "lowest-direct", "--index", address, *direct(requirement))


def interpreter(python: str) -> str:
    """The path of a Python of this version: on the PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [sys.executable, shutil.which(f"python{python}"), *pyenv.glob(f"{python}.*/bin/python")]
    for candidate in filter(None, candidates):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        answer = subprocess.run([str(candidate), "-c", code], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == python:
            return str(candidate)
    sys.exit(f"There is no Python {python} on the PATH or in {pyenv}; install it.")


def direct(requirement: str) -> list[str]:
    """A requirement, and what it requires itself: uv takes the lowest versions only of what is named."""
    metadata = next((ROOT / "dist").glob("*.whl"))
    with zipfile.ZipFile(metadata) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        entries = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    parsed = [Requirement(entry) for entry in entries]
    admitted = [entry for entry in parsed if not entry.marker or entry.marker.evaluate({"extra": "cpu"})]
    return [requirement, *(f"{entry.name}{entry.specifier}" for entry in admitted)]


def scripts(environment: Path) -> Path:
    """The folder of an environment's commands."""
    return environment / ("Scripts" if sys.platform == "win32" else "bin")


def uv() -> str:
    """The path of uv, which is installed next to this Python."""
    return shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or "uv"


def map_example(environment: Path, scene: Path, out: Path) -> np.ndarray:
    """Map the example with the command of an environment, and return the labels."""
    command = scripts(environment) / "iic-segment-raster"
    call(
        command,
        scene,
        out,
        "--stats",
        out.with_suffix(".csv"),
        "--preview",
        out.with_suffix(".png"),
        "--quiet",
    )
    with rasterio.open(out) as dataset:
        assert dataset.colormap(1)
        return dataset.read(1)


def versions(environment: Path) -> str:
    """What is installed in an environment, on one line."""
    lines = subprocess.check_output(
        [uv(), "pip", "list", "--python", environment, "-q"], text=True
    ).splitlines()
    packages = dict(line.split()[:2] for line in lines[2:])
    return ", ".join(f"{name} {packages[name]}" for name in ("numpy", "rasterio", "onnxruntime", "typer"))


def call(*command: object) -> None:
    """Run a command, which must succeed, without the paths of this Python and without a proxy to this machine."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    subprocess.run([str(part) for part in command], check=True, env=environment)


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    wheel, source = build(ROOT / "dist")
    metadata = check(wheel, source)
    say(
        f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; {source.name}: {source.stat().st_size / 1e6:.1f} MB"
    )
    if options.check:
        return
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    cases = (
        [(python, oldest) for python in PYTHONS for oldest in (False, True)]
        if options.all
        else [(this, False)]
    )
    requirement = f"iic-edge[cpu]=={metadata['Version']}"
    first = None
    with index(wheel, source) as address, TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        scene = next(folder.glob("iic_edge-*/examples/scene.tif"))
        for python, oldest in cases:
            begin = time.monotonic()
            environment = folder / f"{python}-{'oldest' if oldest else 'newest'}"
            install(python, oldest, requirement, address, environment)
            labels = map_example(environment, scene, folder / f"{environment.name}.tif")
            first = labels if first is None else first
            other = np.count_nonzero(labels != first)
            assert other <= MOST_OTHER_PIXELS * labels.size, f"{environment.name}: {other} labels differ"
            seconds = time.monotonic() - begin
            say(
                f"{environment.name}: {versions(environment)}: {other} of {labels.size} labels differ, {seconds:.0f} s"
            )
            shutil.rmtree(environment)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
