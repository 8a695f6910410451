"""MNIST from its idx files."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_train.data.base import Arrays, Dataset, Images

_FOLDERS = ("MNIST/raw", "mnist", ".")
_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read(name: str, root: Path, *, overcluster: bool, unlabelled: bool) -> Dataset:
    """Open MNIST under `root`; there are no images without labels, so `unlabelled` changes nothing."""
    return Dataset.of_labelled(
        name,
        _part(root, "train"),
        _part(root, "t10k"),
        classes=tuple(str(digit) for digit in range(10)),
        dense=False,
        overcluster=overcluster,
    )


def _part(root: Path, part: str) -> Images:
    images = read_idx(_find(root, f"{part}-images-idx3-ubyte"))
    labels = read_idx(_find(root, f"{part}-labels-idx1-ubyte"))
    return Arrays(images[:, None], labels, ("grey",))


def _find(root: Path, stem: str) -> Path:
    for folder in _FOLDERS:
        for suffix in ("", ".gz"):
            path = root / folder / f"{stem}{suffix}"
            if path.is_file():
                return path
    raise DataError(
        f"MNIST is not there: put {stem} (or {stem}.gz) into {root / _FOLDERS[0]}, for example with "
        f"torchvision.datasets.MNIST({str(root)!r}, download=True), or name another folder with --data."
    )


def read_idx(path: Path) -> NDArray[Any]:
    """Read an idx file, compressed or not, into an array of its own shape and type.

    Raises:
        DataError: The file is not idx, or shorter or longer than its header says.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}): download it again.") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _DTYPES:
        raise DataError(f"{path} is not an idx file: download it again.")
    dims, dtype = data[3], np.dtype(_DTYPES[data[2]])
    offset = 4 + 4 * dims
    if len(data) < offset:
        raise DataError(f"{path} ends inside its header: download it again.")
    shape = struct.unpack(f">{dims}I", data[4:offset])
    if len(data) - offset != int(np.prod(shape)) * dtype.itemsize:
        raise DataError(f"{path} does not hold the {'x'.join(map(str, shape))} values it announces.")
    return np.frombuffer(data, dtype, offset=offset).reshape(shape).astype(dtype.newbyteorder("="))
