"""The folder of the page: the model, the libraries, the page's own files and an example."""

import json
import shutil
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from iic_geotools import __version__
from iic_geotools.errors import ModelError, OutputError, SceneError, UsageError
from iic_geotools.files import check_name, scratch_folder
from iic_geotools.scene.bands import canonical, words_of
from iic_geotools.scene.info import describe
from iic_geotools.settings import PathLike, takes
from iic_runtime.engine.base import OUTPUTS
from iic_runtime.model.card import Card
from iic_runtime.model.onnx_graph import only_outputs, takes_floats
from iic_runtime.model.select import find_model
from iic_runtime.options import PageSettings
from iic_runtime.page.vendor import vendored_files
from iic_runtime.raster.model_input import choose_reading

CONFIG = "page.json"
"""What the page knows about its model and example."""
_OWN = ("index.html", "page.css", "page.js", "worker.js", "scene.js", "outputs.js", "isolate.js")
_WEBGPU = "webgpu", "asyncify"
"""Parts of the names of files that only the graphics card needs."""
_ORT_LICENCE = "onnxruntime-web: MIT License, Copyright (c) Microsoft Corporation\n"
LARGEST_EXAMPLE = 64 << 20
"""Bytes that an example may have: everyone who opens the page downloads it."""


@dataclass(frozen=True)
class PageArguments(PageSettings):
    """Arguments of `write_page`."""

    model: PathLike
    out: PathLike


@takes(PageArguments)
def write_page(arguments: PageArguments) -> Path:
    """Write a static site that maps scenes in the browser, on the device of whoever opens it.

    Any web server can host the folder; nothing is installed there, and no scene is sent to it.

    Args:
        model: A model file, its https:// address, or the name of a bundled model.
        out: The folder.

    Returns:
        The folder.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No folder is left.
    """
    out = Path(arguments.out)
    check_name(out)
    _check_folder(out, arguments.overwrite)
    file = find_model(arguments.model, "segmentation")
    card = file.card
    if card.task != "segmentation":
        raise ModelError(f"{file.path} labels whole images, not pixels; give a segmentation model.")
    graph = only_outputs(file.content, OUTPUTS)
    on_gpu = takes_floats(graph, len(card.bands)) if arguments.webgpu else None
    config = {
        "version": __version__,
        "card": json.loads(card.to_json()),
        "sha256": file.digest,
        "words": {name: sorted(words_of(canonical(name)) | {canonical(name)}) for name in card.bands},
        "webgpu": on_gpu is not None,
        "example": None if arguments.example is None else _example(Path(arguments.example), card),
    }
    libraries = vendored_files(None if arguments.runtime is None else Path(arguments.runtime))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(out) as scratch:
            site = scratch / "site"
            _write(site, config, graph, libraries)
            if on_gpu is not None:
                (site / "model-float.onnx").write_bytes(on_gpu)
            if arguments.example is not None:
                shutil.copyfile(arguments.example, site / config["example"]["file"])
            if out.exists():
                out.replace(scratch / "before")
            site.replace(out)
    except OSError as error:
        raise OutputError(f"The page {out} cannot be written: {error}.") from error
    return out


def _check_folder(out: Path, overwrite: bool) -> None:
    """Refuse to replace anything but a page."""
    if not out.exists():
        return
    if not out.is_dir():
        raise OutputError(f"{out} is a file; give the name of a folder.")
    if any(out.iterdir()):
        if not (out / CONFIG).is_file():
            raise OutputError(f"The folder {out} holds something else than a page; give another one.")
        if not overwrite:
            raise OutputError(f"{out} exists; give another name, or `overwrite` to replace it.")


def _example(path: Path, card: Card) -> dict[str, Any]:
    """How the example is read, so that the page need not ask."""
    if path.suffix.lower() not in (".tif", ".tiff"):
        raise UsageError(f"`example` must be a .tif, which is what the page reads, not {path.name}.")
    info = describe(str(path))
    if path.stat().st_size > LARGEST_EXAMPLE:
        raise SceneError(
            f"{path} has {path.stat().st_size >> 20} MB, and everyone who opens the page downloads it; give a scene "
            f"of at most {LARGEST_EXAMPLE >> 20} MB."
        )
    reading = choose_reading(info, card)
    if reading.grid is not None:
        raise SceneError(
            f"The pixels of {path} are too fine for {card.name}; resample it, and give the result as `example`."
        )
    absent = {band.position for band in reading.optional if band.absent}
    numbers = iter(reading.bidx)
    return {
        "file": "example.tif",
        "title": path.name,
        "bands": [None if position in absent else next(numbers) for position in range(len(card.bands))],
        "rescale": None if reading.rescale is None else asdict(reading.rescale),
        "notes": list(reading.notes),
    }


def _write(site: Path, config: dict[str, Any], model: bytes, libraries: dict[str, bytes]) -> None:
    (site / "vendor").mkdir(parents=True)
    (site / CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")
    (site / "model.onnx").write_bytes(model)
    licences = _ORT_LICENCE
    for name, content in libraries.items():
        if name.endswith("/LICENSE"):
            licences += f"\n{name.partition('/')[0]}:\n{content.decode()}"
        elif config["webgpu"] or not any(part in name for part in _WEBGPU):
            (site / "vendor" / Path(name).name).write_bytes(content)
    (site / "vendor" / "LICENCES.txt").write_text(licences, encoding="utf-8")
    package: Traversable = resources.files("iic_runtime")
    for name in _OWN:
        (site / name).write_bytes((package / "page" / name).read_bytes())
    # The view of the studio: the same gestures and keys.
    (site / "viewer.js").write_bytes((package / "studio" / "page" / "viewer.js").read_bytes())
