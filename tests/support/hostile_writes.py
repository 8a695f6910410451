"""Every command that writes, on inputs of seconds: for disks that fill up, kills, and writers at the same time."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import shapely
from pyogrio import read_info
from typer.testing import CliRunner

import iic_geotools
import iic_runtime
from iic_geotools.errors import IICError
from support.maps import make_classes, random_labels, write_map, write_shapes
from support.runs import bright_and_dark_fields, train_on
from support.scenes import landscape, write_points, write_raster
from support.tiny_onnx import make_classifier, make_model

MAP, MODEL = "iic_geotools.cli.map", "iic_runtime.cli.model"
SEGMENT, LOOK = "iic_runtime.cli.segment_raster", "iic_runtime.cli.scenes"
CLASSIFY = "iic_runtime.cli.classify"
TRAIN, EXPORT = "iic_train.cli", "iic_export.cli"


@dataclass(frozen=True)
class Writer:
    """A command that writes.

    Attributes:
        module: The module of the command.
        arguments: Its arguments; `@name` is an input and `=name` an output.
        copies: Inputs that it changes in place, which lie in the folder of outputs.
    """

    module: str
    arguments: str
    copies: tuple[str, ...] = ()

    def command(self, inputs: Path, out: Path) -> list[str]:
        """Return the arguments with the paths of files; copy what is changed in place."""
        for name in self.copies:
            copy = shutil.copytree if (inputs / name).is_dir() else shutil.copy
            copy(inputs / name, out / name)  # type: ignore[operator]
        folders = {"@": inputs, "=": out}
        return [
            str(folders[word[0]] / word[1:]) if word[0] in folders else word
            for word in self.arguments.split()
        ]

    def start(self, inputs: Path, out: Path, *prefix: str, **options: Any) -> "subprocess.Popen[str]":
        """Start the command in a process of its own."""
        code = f"from {self.module} import main; main()"
        command = [*prefix, sys.executable, "-c", code, *self.command(inputs, out)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, **{**streams, **options})


WRITERS = {
    "stats.gpkg": Writer(MAP, "stats @map.tif @zones.gpkg =zones.gpkg"),
    "stats.csv": Writer(MAP, "stats @map.tif @zones.gpkg =zones.csv"),
    "change": Writer(MAP, "change @map.tif @later.tif =change.tif --table =change.csv"),
    "change with all": Writer(
        MAP,
        "change @map.tif @later.tif =change.tif --table =c.csv --table =c.json --preview =p.png --web =p.html",
    ),
    "clean": Writer(MAP, "clean @map.tif =clean.tif --majority 1 --sieve 20"),
    "polygons": Writer(MAP, "polygons @map.tif =polygons.gpkg --min-area 20"),
    "draw": Writer(MAP, "assess @map.tif =samples.gpkg --draw 200"),
    "assess": Writer(MAP, "assess @map.tif @samples.gpkg --design simple --report =report.html"),
    "rename": Writer(MODEL, "rename @m.onnx 0=water -o =renamed.onnx"),
    "rename in place": Writer(MODEL, "rename =m.onnx 0=water", ("m.onnx",)),
    "name": Writer(
        MODEL,
        "name @m.onnx --labels @clicks.gpkg --scene @scene.tif -o =n.onnx --suggest =p.gpkg --threads 1",
    ),
    "name without a model": Writer(
        MODEL, "name --labels @clicks.gpkg --scene @scene.tif -o =n.onnx --threads 1"
    ),
    "cluster": Writer(MODEL, "cluster @scene.tif --classes 3 -o =clusters.onnx --threads 1"),
    "cluster two dates": Writer(
        MODEL, "cluster @scene.tif --pair @later_scene.tif --classes 3 -o =pair.onnx --threads 1"
    ),
    "probability of change": Writer(LOOK, "change @scene.tif @later_scene.tif =probability.tif --threads 1"),
    "convert": Writer(MODEL, "convert @m.onnx -o =half.onnx"),
    "convert to Triton": Writer(MODEL, "convert @m.onnx --format triton -o =models"),
    "classify": Writer(CLASSIFY, "@images.npy -o =labels.csv --model @classifier.onnx --device cpu -q"),
    "suggest": Writer(MODEL, "suggest @m.onnx --scene @scene.tif -o =places.gpkg --threads 1"),
    "index": Writer(MODEL, "index =m.onnx -o =index.json", ("m.onnx",)),
    "look": Writer(LOOK, "look @scene.tif --sheet =sheet.png"),
    "segment": Writer(
        SEGMENT,
        "@scene.tif =map.tif --model @m.onnx --device cpu --threads 1 --confidence =sure.tif --preview =p.png"
        " --web =p.html --stats =s.csv --polygons =p.gpkg --stats-by @over.gpkg",
    ),
    "segment to GeoJSON": Writer(
        SEGMENT, "@scene.tif =map.tif --model @m.onnx --device cpu --threads 1 --polygons =p.geojson"
    ),
    "segment to vector tiles": Writer(
        SEGMENT,
        "@scene.tif =map.tif --model @m.onnx --device cpu --threads 1 --polygons =p.pmtiles --stac =map.json"
        " --majority 1",
    ),
    "train": Writer(
        TRAIN,
        "rasters @scene.tif --classes 3 --network edge-8 --epochs 1 --steps 2 --batch 4 --size 32 --radius 1"
        " --runs =runs --name r --device cpu",
    ),
    "finetune": Writer(
        TRAIN,
        "finetune @runs/fields --labels @fields.gpkg --mode head --folds 0 --epochs 1 --steps 2 --runs =runs --name f"
        " --device cpu",
    ),
    "report": Writer(TRAIN, "report =runs/fields", ("runs",)),
    "export": Writer(EXPORT, "@runs/fields -o =exported.onnx"),
}
"""The commands, by name."""
QUICK = (
    "stats.gpkg",
    "stats.csv",
    "change",
    "clean",
    "polygons",
    "draw",
    "assess",
    "rename",
    "suggest",
    "look",
)
"""Those that take about a second."""


def make_inputs(folder: Path) -> Path:
    """Make what the commands read, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "m.onnx").write_bytes(make_model(features=True, gsd=0.5))
    scene = write_raster(folder / "scene.tif", landscape(200, 220))
    write_raster(folder / "later_scene.tif", landscape(200, 220, seed=1))
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 255, (20, 1, 8, 8), dtype=np.uint8))
    (folder / "classifier.onnx").write_bytes(make_classifier())
    numbers = np.arange(12)
    write_points(folder / "clicks.gpkg", numbers * 10 + 3, numbers * 9 + 4, ["a", "b", "c"] * 4)
    for seed, name in enumerate(("map.tif", "later.tif")):
        write_map(folder / name, random_labels(300, 320, 4, seed=seed, patch=7), classes=make_classes(4))
    rng = np.random.default_rng(0)
    for name, x, y, crs in (("zones", 770000, 6279000, "EPSG:2154"), ("over", 500000, 5400000, "EPSG:32631")):
        xs, ys = x + 90 * rng.random(300), y - 10 - 80 * rng.random(300)
        write_shapes(
            folder / f"{name}.gpkg", list(shapely.box(xs, ys, xs + 9, ys + 9)), crs, name=["z"] * 300
        )
    xs, ys = 770000 + 150 * rng.random(60), 6279000 - 140 * rng.random(60)
    names = [f"class {number % 4} é" for number in range(60)]
    write_shapes(folder / "samples.gpkg", list(shapely.points(xs, ys)), "EPSG:2154", **{"class": names})
    values, bright = bright_and_dark_fields(120, 144)
    fields = write_raster(folder / "fields.tif", values)
    train_on(fields, folder / "runs")
    rows, columns = rng.integers(0, 120, 20), rng.integers(0, 144, 20)
    kinds = ["bright" if bright[place] else "dark" for place in zip(rows, columns, strict=True)]
    write_points(folder / "fields.gpkg", rows, columns, kinds)
    return scene.parent


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a disk of this size, which only root can, and yield it.

    Raises:
        PermissionError: It cannot be mounted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if subprocess.run(["mount", "-t", "tmpfs", *options], check=False, capture_output=True).returncode:
        raise PermissionError("A disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def check_outputs(folder: Path) -> None:
    """Check that every file under a final name is whole.

    Raises:
        AssertionError: A file is not.
    """
    for parent, folders, names in os.walk(folder):  # which passes over folders that vanish meanwhile
        folders[:] = [name for name in folders if not name.startswith(".") and not name.endswith(".parts")]
        for name in names:
            check = CHECKS.get(Path(name).suffix)
            if check is not None and not name.startswith("."):
                check(Path(parent, name))


def _check_package(path: Path) -> None:
    info = read_info(path)
    assert info["capabilities"]["fast_spatial_filter"], f"{path} has no spatial index"


def _check_tif(path: Path) -> None:
    with rasterio.open(path) as dataset:
        dataset.read()


def _check_model(path: Path) -> None:
    from iic_runtime.model.file import ModelFile

    ModelFile.read(path)


def _check_end(end: bytes) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        assert path.read_bytes().rstrip().endswith(end), f"{path} is cut"

    return check


CHECKS: dict[str, Callable[[Path], None]] = {
    ".gpkg": _check_package,
    ".tif": _check_tif,
    ".onnx": _check_model,
    ".html": _check_end(b"</html>"),
    ".json": _check_end(b"}"),
    ".png": _check_end(b"IEND\xaeB`\x82"),
    ".geojson": _check_end(b"}"),
}


def check_kill(writer: Writer, inputs: Path, out: Path, seconds: float) -> bool:
    """Kill a command so many seconds after it has begun to write, and run it again; return whether it had ended before.

    Raises:
        AssertionError: A file under a final name is not whole, or the command cannot be run again.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    process = writer.start(inputs, out)
    _wait_for_writing(process, out)
    try:
        output, _ = process.communicate(timeout=seconds)
        assert process.returncode == 0, f"{writer.arguments}\n{output}"
        check_outputs(out)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    check_outputs(out)
    for name in ("r", "f"):  # another run of this name would be refused
        shutil.rmtree(out / "runs" / name, ignore_errors=True)
    if not any(out.iterdir()) or not writer.copies:
        again = CliRunner().invoke(import_module(writer.module).app, writer.command(inputs, out))
        assert again.exit_code == 0 or "exists" in again.output, f"{writer.arguments}\n{again.output}"
        check_outputs(out)
        assert list(out.glob(".*")) == []
    return False


def _wait_for_writing(process: "subprocess.Popen[str]", out: Path) -> None:
    """Wait until a process adds something to a folder, or ends."""

    def entries() -> int:
        return sum(len(folders) + len(names) for _, folders, names in os.walk(out))

    before = entries()
    while process.poll() is None and entries() == before:
        time.sleep(0.0005)


def check_together(writer: Writer, inputs: Path, out: Path) -> bool:
    """Run a command three times at once on the same outputs, one of them as the first process of its namespace.

    Raises:
        AssertionError: An output is torn, or a command reports an unexpected error.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    alone = ["unshare", "--pid", "--fork"] if os.name == "posix" and os.geteuid() == 0 else []
    processes = [writer.start(inputs, out), writer.start(inputs, out), writer.start(inputs, out, *alone)]
    outputs = [process.communicate()[0] for process in processes]
    assert not any("Unexpected error" in output for output in outputs), outputs
    assert any(process.returncode == 0 for process in processes), outputs
    check_outputs(out)
    assert list(out.glob(".*")) == []
    return True


def check_threads(name: str, inputs: Path, out: Path) -> bool:
    """Write one file from four threads while a fifth reads it.

    Raises:
        AssertionError: What was read is torn, or a thread fails with anything but a sentence.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    write, done = FUNCTIONS[name], threading.Event()
    with ThreadPoolExecutor(5) as pool:
        reads = pool.submit(_read_until, done, out)
        writes = [pool.submit(write, inputs, out) for _ in range(8)]
        errors = [future.exception() for future in writes]
        done.set()
        reads.result()
    assert all(error is None or isinstance(error, IICError) for error in errors), errors
    assert None in errors, errors
    check_outputs(out)
    assert list(out.glob(".*")) == []
    return True


def _read_until(done: threading.Event, out: Path) -> None:
    while not done.is_set():
        check_outputs(out)


FUNCTIONS: dict[str, Callable[[Path, Path], Any]] = {
    "stats": lambda inputs, out: iic_geotools.zone_statistics(
        inputs / "map.tif", inputs / "zones.gpkg", out / "zones.gpkg", overwrite=True
    ),
    "change": lambda inputs, out: iic_geotools.change_map(
        inputs / "map.tif", inputs / "later.tif", out / "change.tif", tables=[out / "c.json"], overwrite=True
    ),
    "clean": lambda inputs, out: iic_geotools.clean_map(
        inputs / "map.tif", out / "clean.tif", majority=1, overwrite=True
    ),
    "draw": lambda inputs, out: iic_geotools.draw_samples(
        inputs / "map.tif", out / "samples.gpkg", 200, overwrite=True
    ),
    "rename": lambda inputs, out: iic_runtime.rename_model(
        inputs / "m.onnx", ["0=water"], out / "renamed.onnx"
    ),
    "look": lambda inputs, out: iic_runtime.look(str(inputs / "scene.tif"), None, out / "sheet.png"),
}
"""Functions that threads may call at once, by name."""


def check_full_disk(writer: Writer, inputs: Path, disk: Path, free: int) -> bool:
    """Run a command on a disk with so many free bytes; return whether they were enough.

    Raises:
        AssertionError: It is not one sentence, or something is left that is not whole.
    """
    for entry in disk.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    arguments = writer.command(inputs, disk)
    before = {entry.name for entry in disk.iterdir()}
    status = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - free)))
    result = CliRunner().invoke(import_module(writer.module).app, arguments)
    context = f"{writer.arguments}, {free} bytes\n{result.output}"
    left = {entry.name for entry in disk.iterdir()} - before - {"filler"}
    check_outputs(disk)
    assert isinstance(result.exception, SystemExit | None), context
    assert "Unexpected error" not in result.output, context
    assert not any(name.startswith(".") for name in left), f"{left} is left\n{context}"
    if result.exit_code:
        assert result.exit_code == 1, context
        assert [line.startswith("Error: ") for line in result.output.splitlines()].count(True) == 1, context
        # What a later run of the same command goes on from.
        assert left <= {"map.tif.parts", "runs"}, f"{left} is left\n{context}"
    return result.exit_code == 0
