"""The cache of downloaded models, by their digests."""

import logging
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from iic_geotools.errors import ModelError, OutputError, UsageError
from iic_geotools.files import CACHE_VARIABLE, cache_folder, write_atomically
from iic_geotools.settings import checked
from iic_runtime.model.engine_card import ENGINE_SUFFIX
from iic_runtime.model.file import ModelFile
from iic_runtime.model.remote.address import DIGEST, Address, is_address
from iic_runtime.model.remote.collection import Collection
from iic_runtime.model.select import INDEX_VARIABLE

_LOG = logging.getLogger(__name__)
MAX_MODEL = 512 << 20
"""The most bytes that a downloaded model may have."""


@checked
def get_model(model: str, *, index: str | os.PathLike[str] | None = None, refresh: bool = False) -> ModelFile:
    """Return a remote model, from the cache or else downloaded into it.

    The cache is in the folder that the environment variable `IIC_CACHE` names, or else in the user's cache folder. A
    model comes into it only if it can be read and, where its digest is known, is the one that was meant.

    Args:
        model: The https:// address of a model file, which may end in `#sha256=` and its digest; or a name in `index`.
        index: A collection of models, by the path or the address of its index; by default the one that the
            environment variable `IIC_MODEL_INDEX` names.
        refresh: Whether to ask the server again although the address was downloaded before. What has a digest never
            changes and is never asked for again.

    Raises:
        UsageError: It is neither an address nor a name in a collection.
        ModelError: It cannot be downloaded or is not a model.
        OutputError: The cache cannot be written to.
    """
    if is_address(model):
        return _get(Address.parse(model), refresh)
    source = index or os.environ.get(INDEX_VARIABLE)
    if not source:
        raise UsageError(
            f"{model[:80]} is not an address; to get a model by name, give an `index`, or set {INDEX_VARIABLE}."
        )
    entry = Collection.read(source).find(model)
    if is_address(entry.url):
        return _get(replace(Address.parse(entry.url), digest=entry.sha256), refresh)
    file = ModelFile.read(entry.url)
    if file.digest != entry.sha256:
        raise ModelError(
            f"{entry.url} is not the file that the index {os.fspath(source)} means; copy both again."
        )
    return _keep(file)


def is_cached(path: Path) -> bool:
    """Return whether a file is in the cache, where nothing may be changed."""
    return path.resolve().parent == _folder().resolve()


def _get(address: Address, refresh: bool) -> ModelFile:
    if address.name.lower().endswith(ENGINE_SUFFIX):
        raise UsageError(
            f"{address.shown} is an engine, which is machine code; give the address of the .onnx file."
        )
    digest = address.digest or (None if refresh else _recorded_digest(address))
    known = None if digest is None else _read(digest)
    if known is not None:
        _LOG.info("Model: %s, downloaded before (sha256 %s)", address.shown, known.digest)
        return known
    content = address.download(MAX_MODEL)
    # The file is checked like any other before it is kept: damaged ones never come into the cache.
    model = _keep(ModelFile.parse(Path(address.name).with_suffix(".onnx"), content))
    if address.digest is None:
        _write(_record(address), model.digest.encode())
    _LOG.info("Model: %s, downloaded (%.2f MB, sha256 %s)", address.shown, len(content) / 1e6, model.digest)
    return model


def _folder() -> Path:
    return cache_folder() / "models"


def _file(digest: str) -> Path:
    return _folder() / f"{digest}.onnx"


def _record(address: Address) -> Path:
    """Return the file that says what was last downloaded from an address, which may hold a token and is not kept."""
    return cache_folder() / "addresses" / sha256(address.url.encode()).hexdigest()


def _recorded_digest(address: Address) -> str | None:
    try:
        digest = _record(address).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return digest if DIGEST.fullmatch(digest) else None


def _read(digest: str) -> ModelFile | None:
    """Return a model in the cache; None if it is not there, or no longer what it was."""
    path = _file(digest)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return ModelFile.parse(path, content) if sha256(content).hexdigest() == digest else None


def _keep(model: ModelFile) -> ModelFile:
    path = _file(model.digest)
    if _read(model.digest) is None:
        _write(path, model.content)
    return replace(model, path=path)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise OutputError(
            f"The cache {path.parent} cannot be written to ({error.__cause__ or error}); set {CACHE_VARIABLE} to "
            "another folder."
        ) from error
