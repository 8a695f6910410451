"""Do two versions of this repository write the same bytes?

    python tests/same_bytes.py BEFORE_TREE AFTER_TREE [--only WORD] [--work FOLDER]

runs every command of `COMMANDS` with the code of each tree, in the same folder one after the other so that paths are
the same, and compares all files they wrote, byte by byte. Commands are written with the option names of today;
`RENAMED_OPTIONS` translates them for a tree that does not know them yet. Only what must differ is left out of the
comparison, all of it listed in `IGNORED_FILES`, `IGNORED_TAGS`, `IGNORED_CARD_FIELDS` and `IGNORED_METRICS`. Prints
a table, and exits with 1 if anything differs or a command fails.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import rasterio
from rasterio.transform import Affine
from support.datasets import make_potsdam

IGNORED_FILES = {
    "config.json": "the run's id, time and versions; settings are spelt with the names of their time",
    "state.pt": "counters are spelt with the names of their time; the resumed run shows that it works",
    "report.html": "wording, time and speed",
    "chips.json": "when the tiles of Potsdam were written",
}
IGNORED_TAGS = {
    "IIC_WORK": "fingerprint of what a run is, computed from the names of its parts",
    "IIC_RUN": "the run's id, which is random",
    "IIC_MODEL_SHA256": "of an exported model, whose card holds the fields ignored below",
    "IIC_VERSION": "the version of the package",
    "TIFFTAG_SOFTWARE": "the version of the package",
}
IGNORED_CARD_FIELDS = {
    "packages": "versions",
    "memory_per_pixel": "measured",
    "cpu_speed_against_fp32": "measured",
    "run": "the run's id, which is random",
}
IGNORED_METRICS = {"seconds": "measured", "images_per_second": "measured"}
IGNORED_RUN_METADATA = {
    "run": "the run's id, which is random",
    "network": "settings, spelt as in config.json",
}

TRAIN = (
    "iic-train rasters scene.tif --classes 3 --network local --clusters-a 0 --sub-heads 2 --size 32 --radius 1 \
--batch 8 --lr 4e-3 --epochs 2 --steps 6 --device cpu --seed 3"
)


@dataclass(frozen=True)
class Command:
    """One command, run in the folder that holds the inputs.

    Attributes:
        name: Name of the folder that it writes to, `{out}` in its line.
        line: The command with the option names of today.
        kill: Kill the process once it has written some parts, then run it again.
    """

    name: str
    line: str
    kill: bool = False


SEGMENT = "iic-segment-raster scene.tif {out}/map.tif --model satellite.onnx"
COMMANDS = [
    Command("map", SEGMENT),
    Command("map-bundled", "iic-segment-raster scene.tif {out}/map.tif"),
    Command("map-small-tiles", f"{SEGMENT} --tile 96 --batch 3 --threads 1"),
    Command("map-max-memory", f"{SEGMENT} --max-memory 700M"),
    Command("confidence", f"{SEGMENT} --confidence {{out}}/confidence.tif"),
    Command("polygons-gpkg", f"{SEGMENT} --polygons {{out}}/polygons.gpkg"),
    Command("polygons-fgb", f"{SEGMENT} --polygons {{out}}/polygons.fgb --min-area 500"),
    Command("polygons-geojson", f"{SEGMENT} --polygons {{out}}/polygons.geojson --min-area 2000"),
    Command("statistics-json", f"{SEGMENT} --stats {{out}}/areas.json"),
    Command("statistics-csv", f"{SEGMENT} --stats {{out}}/areas.csv"),
    Command("pictures", f"{SEGMENT} --preview {{out}}/preview.png --web {{out}}/map.html"),
    Command("resumed", "iic-segment-raster large.tif {out}/map.tif --model satellite.onnx --tile 64 --threads 1", True),
    Command("workers", f"{SEGMENT} --workers 2 --tile 128"),
    Command("bounds", f'{SEGMENT} --bounds "{{bounds}}"'),
    Command("aoi", f"{SEGMENT} --aoi aoi.geojson"),
    Command("nodata-and-rescale", f"{SEGMENT} --nodata 0 --rescale 20,220"),
    Command("uint16-by-number", "iic-segment-raster uint16.tif {out}/map.tif --model satellite.onnx --bands 3,2,1,4"),
    Command("match-gsd", f"{SEGMENT} --match-gsd --confidence {{out}}/confidence.tif"),
    Command("creation-options", f"{SEGMENT} --co COMPRESS=LZW --co BLOCKSIZE=256"),
    Command("no-rescale", "iic-segment-raster scene.tif {out}/map.tif --model aerial.onnx --rescale off"),
    Command("rio", "rio iic-segment scene.tif {out}/map.tif --model satellite.onnx --confidence {out}/confidence.tif"),
    Command(
        "scenes-and-mosaic",
        "iic-segment-raster west.tif east.tif {out} --model satellite.onnx --stats {out}/{{name}}.csv "
        "--mosaic {out}/all.vrt",
    ),
    Command("scene-list", "iic-segment-raster scenes.txt {out} --model satellite.onnx"),
    Command("name", "iic-model name satellite.onnx --scene scene.tif --labels clicks.geojson -o {out}/named.onnx"),
    Command("name-scene", "iic-model name --scene scene.tif --labels clicks.geojson -o {out}/named.onnx"),
    Command("map-named", "iic-segment-raster scene.tif {out}/map.tif --model name/named.onnx"),
    Command("change", "iic-map change map/map.tif map-bundled/map.tif {out}/change.tif --table {out}/change.csv"),
    Command("clean", "iic-map clean map/map.tif {out}/clean.tif --majority 1 --sieve 2000"),
    Command("polygons", "iic-map polygons map/map.tif {out}/polygons.gpkg --min-area 2000 --simplify 10"),
    Command("zones", "iic-map stats map/map.tif aoi.geojson {out}/areas.csv"),
    Command("draw", "iic-map assess map/map.tif {out}/places.gpkg --draw 60 --seed 4"),
    Command("rename", 'iic-model rename satellite.onnx "water=Wasser:#0000ff" -o {out}/renamed.onnx'),
    Command("train", f"{TRAIN} --runs {{out}} --name run"),
    Command(
        "train-options",
        f"{TRAIN} --runs {{out}} --name run --labels labels.tif --entropy-weight 0.8 --entropy-warmup 0.5 "
        "--vegetation-jitter 0.5 --colour-jitter 0.7 --rescale auto",
    ),
    Command("train-resumed", f"{TRAIN} --epochs 1 --runs {{out}} --name run"),
    Command("train-resumed", "iic-train resume {out}/run --epochs 3 --device cpu"),
    Command("export", "iic-export train/run -o {out}/model.onnx --best-subhead --name fields --probabilities"),
    Command("export-last", "iic-export train/run -o {out}/model.onnx --sub-head 1 --checkpoint last --name fields"),
    Command("export-fp16", "iic-export train/run -o {out}/model.onnx --precision fp16 --name fields"),
    Command("export-int8", "iic-export train/run -o {out}/model.onnx --precision int8 --min-agreement 0.5 --name f"),
    Command("export-named", "iic-export train/run -o {out}/model.onnx --labels clicks.geojson --balance 0.5 --name f"),
    Command("export-own-labels", "iic-export train-options/run -o {out}/model.onnx --own-labels --name fields"),
    Command(
        "potsdam",
        "iic-train potsdam --data . --clusters-a 0 --size 48 --batch 4 --epochs 1 --steps 2 --workers 0 --device cpu "
        "--runs {out} --name run",
    ),
    Command("map-exported", "iic-segment-raster scene.tif {out}/map.tif --model export-named/model.onnx"),
]  # fmt: skip


def main() -> None:
    """Run all commands in both trees and print the table."""
    arguments = _parse_arguments()
    commands = choose_commands(arguments.only)
    work = Path(arguments.work or tempfile.mkdtemp(prefix="same-bytes-")).absolute()
    results = {}
    for side, tree in (("before", Path(arguments.before)), ("after", Path(arguments.after))):
        folder = work / "run"  # the same path for both: some files record it
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_inputs(folder, before=Path(arguments.before).absolute())
        results[side] = [run_command(command, tree.absolute(), folder) for command in commands]
        shutil.rmtree(work / side, ignore_errors=True)
        folder.rename(work / side)
    failed = print_table(commands, results["before"], results["after"], work)
    if not arguments.work and not failed:
        shutil.rmtree(work)
    sys.exit(failed)


def choose_commands(word: str) -> list[Command]:
    """Commands whose name holds a word, and those whose outputs they read."""
    chosen = [command for command in COMMANDS if word in command.name]
    inputs = {folder for command in chosen for folder in re.findall(r" ([\w-]+)/\w", command.line)}
    return [command for command in COMMANDS if command in chosen or command.name in inputs]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="Tree whose outputs are the reference.")
    parser.add_argument("after", help="Tree to compare with it.")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="Run commands whose name holds this, and what they need."
    )
    parser.add_argument("--work", help="Folder to keep the outputs in; a temporary one by default.")
    return parser.parse_args()


def start(line: str, tree: Path, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a command with the code of a tree, a checkout of the repository."""
    name, *arguments = shlex.split(line)
    if name == "rio":
        script = (
            "from rasterio.rio.main import main_group; from iic_runtime.cli.rio import command; "
            "main_group.add_command(command, 'iic-segment'); main_group()"
        )
    else:
        scripts = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["scripts"]
        module, function = scripts[name].split(":")
        script = f"from {module} import {function}; {function}()"
    rooms = [str(tree / room) for room in ("geotools", "runtime", "train", "export")]
    # A cache of its own: one in which OpenVINO was compared with ONNX Runtime in between would change the engine.
    own = {"PYTHONPATH": os.pathsep.join(rooms), "OMP_NUM_THREADS": "1", "IIC_CACHE": str(folder / "cache")}
    environment = {**os.environ, **own}
    environment.pop("IIC_MODEL", None)
    log = (folder / "commands.log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], cwd=folder, env=environment, stdout=log, stderr=log
    )


def run_command(command: Command, tree: Path, folder: Path) -> str:
    """Run a command and return what went wrong, if anything."""
    (folder / command.name).mkdir(exist_ok=True)
    line = command.line.format(out=command.name, bounds=_bounds(folder / "scene.tif"))
    if command.kill:
        process = start(line, tree, folder)
        if not _kill_after_parts(process, folder / command.name):
            return "ended before it could be killed"
    code = start(line, tree, folder).wait()
    return f"exit code {code}" if code else ""


def _kill_after_parts(process: "subprocess.Popen[bytes]", folder: Path, parts: int = 3) -> bool:
    """Kill a process once some parts exist; False if it ended before."""
    while process.poll() is None:
        if sum(1 for path in folder.rglob("*") if path.parent.name.endswith(".parts")) > parts:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.001)
    return process.returncode == -signal.SIGKILL


def write_inputs(folder: Path, before: Path) -> None:
    """Make the inputs of all commands from the example scene and the models of the first tree."""
    shutil.copy(before / "examples" / "scene.tif", folder / "scene.tif")
    for name in ("aerial", "satellite"):
        shutil.copy(next(before.glob(f"runtime/**/{name}.onnx")), folder)
    with rasterio.open(folder / "scene.tif") as scene:
        pixels, profile, names = scene.read(), scene.profile, scene.descriptions
    profile.update(driver="GTiff", compress="deflate")

    def write(name: str, values: np.ndarray, descriptions: Sequence[str] | None, column: int = 0) -> None:
        count, height, width = values.shape
        place = profile["transform"] @ Affine.translation(column, 0)
        changes = {
            "count": count,
            "height": height,
            "width": width,
            "dtype": values.dtype,
            "transform": place,
        }
        with rasterio.open(folder / name, "w", **{**profile, **changes}) as dataset:
            dataset.write(values)
            if descriptions:
                dataset.descriptions = descriptions

    write("large.tif", np.tile(pixels, (1, 3, 3)), names)
    write("west.tif", pixels[:, :, :250], names)
    write("east.tif", pixels[:, :, 250:], names, column=250)
    write("uint16.tif", pixels[[2, 1, 0, 3]].astype(np.uint16) * 40 + 300, None)
    write("labels.tif", (pixels[3:] > 120).astype(np.uint8) + 1, None)
    (folder / "scenes.txt").write_text("west.tif\neast.tif\n")
    _write_vectors(folder)
    make_potsdam(folder)


def _write_vectors(folder: Path) -> None:
    """Write an area of interest and four clicks, in the CRS of the scene."""
    with rasterio.open(folder / "scene.tif") as scene:
        corners = [scene.xy(row, column) for row, column in ((50, 60), (60, 400), (350, 300), (50, 60))]
        clicks = [scene.xy(row, column) for row, column in ((40, 40), (200, 250), (300, 100), (350, 480))]
        crs = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{scene.crs.to_epsg()}"}}
    area = {"type": "Polygon", "coordinates": [corners]}
    points = [{"type": "Point", "coordinates": click} for click in clicks]
    features: dict[str, list[tuple[Any, dict[str, str]]]] = {
        "aoi": [(area, {})],
        "clicks": [(point, {"class": f"k{i % 2}"}) for i, point in enumerate(points)],
    }
    for name, members in features.items():
        items = [{"type": "Feature", "geometry": shape, "properties": values} for shape, values in members]
        text = json.dumps({"type": "FeatureCollection", "crs": crs, "features": items})
        (folder / f"{name}.geojson").write_text(text)


def _bounds(scene: Path) -> str:
    """The middle of a scene as LEFT BOTTOM RIGHT TOP."""
    with rasterio.open(scene) as dataset:
        left, top = dataset.xy(100, 110)
        right, bottom = dataset.xy(300, 400)
    return f"{left} {bottom} {right} {top}"


def print_table(commands: Sequence[Command], before: Sequence[str], after: Sequence[str], work: Path) -> int:
    """Compare the outputs of all commands and return 1 if any differ."""
    failed = 0
    for command, *problems in zip(commands, before, after, strict=True):
        texts = [f"{side}: {text}" for side, text in zip(("before", "after"), problems, strict=True) if text]
        count, differences = compare_folders(work / "before" / command.name, work / "after" / command.name)
        outcome = "; ".join([*texts, *differences]) or f"same ({count} files)"
        failed |= int(bool(texts or differences or not count))
        sys.stdout.write(f"{command.name:<20} {outcome}\n")
    titles = ("files", "tags of maps", "fields of cards", "metrics", "metadata of weights")
    tables = (IGNORED_FILES, IGNORED_TAGS, IGNORED_CARD_FIELDS, IGNORED_METRICS, IGNORED_RUN_METADATA)
    for title, table in zip(titles, tables, strict=True):
        sys.stdout.write(
            f"not compared, {title}: {'; '.join(f'{key} ({why})' for key, why in table.items())}\n"
        )
    sys.stdout.write(f"{'DIFFERENT' if failed else 'SAME'}: {len(commands)} commands; outputs in {work}\n")
    return failed


def compare_folders(before: Path, after: Path) -> tuple[int, list[str]]:
    """Compare all files of two folders; return how many there were, and what differs."""
    names = [{file.relative_to(root).as_posix() for file in root.rglob("*.*")} for root in (before, after)]
    differences = [f"only before: {name}" for name in sorted(names[0] - names[1])]
    differences += [f"only after: {name}" for name in sorted(names[1] - names[0])]
    both = [name for name in sorted(names[0] & names[1]) if (before / name).is_file()]
    compared = [name for name in both if Path(name).name not in IGNORED_FILES]
    for name in compared:
        comparable = COMPARABLE.get(Path(name).name) or COMPARABLE.get(Path(name).suffix, Path.read_bytes)
        if comparable(before / name) != comparable(after / name):
            differences.append(f"{name} differs")
    return len(compared), differences


def _tiff(path: Path) -> bytes:
    """The bytes of a map, the values of `IGNORED_TAGS` blanked."""
    content = path.read_bytes()
    with rasterio.open(path) as dataset:
        values = [dataset.tags().get(tag, "") for tag in IGNORED_TAGS]
    for value in filter(None, values):
        content = content.replace(value.encode(), b"x" * len(value))
    return content


def _model(path: Path) -> tuple[bytes, Any]:
    """Graph and weights of a model file, and its card without `IGNORED_CARD_FIELDS`."""
    model = onnx.load(path)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    card = {**metadata, "iic_card": json.loads(metadata["iic_card"])}
    del model.metadata_props[:]
    return model.SerializeToString(deterministic=True), _without(card, IGNORED_CARD_FIELDS)


def _without(value: Any, keys: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner, keys) for key, inner in value.items() if key not in keys}
    return [_without(inner, keys) for inner in value] if isinstance(value, list) else value


def _weights(path: Path) -> tuple[bytes, Any]:
    """The tensors of a weights file as they stand in it, and its metadata without the run's id."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = _without(header.get("__metadata__", {}), IGNORED_RUN_METADATA)
    return content[8 + length :], header


def _metrics(path: Path) -> list[Any]:
    return [_without(json.loads(line), IGNORED_METRICS) for line in path.read_text().splitlines()]


def _geopackage(path: Path) -> list[str]:
    """All statements that make a GeoPackage, without the time of its last change."""
    with sqlite3.connect(path) as database:
        return [re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "", statement) for statement in database.iterdump()]


COMPARABLE: dict[str, Callable[[Path], Any]] = {
    ".tif": _tiff,
    ".onnx": _model,
    ".safetensors": _weights,
    ".jsonl": _metrics,
    "evaluation.json": lambda path: _without(json.loads(path.read_text()), {}),
    ".gpkg": _geopackage,
}

if __name__ == "__main__":
    main()
