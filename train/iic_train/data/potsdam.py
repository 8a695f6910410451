"""ISPRS Potsdam in chips of 200 px, from the survey's tiles or from the authors' archive of .mat files."""

import hashlib
import json
import logging
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from iic_geotools.errors import DataError
from iic_geotools.files import replacement, write_atomically
from iic_geotools.work import OnProgress, Progress, silent
from iic_train.data.base import UNLABELLED, Dataset, Images, Joined, Subset

_LOG = logging.getLogger(__name__)
CHIP = 200
"""Side of a chip in pixels of half scale."""
_SOURCE = 2 * CHIP

_NAME = re.compile(r"potsdam_0?(\d+)_0?(\d+)_(RGBIR|label|label_noBoundary)\.tiff?$", re.IGNORECASE)
_WITHHELD = {
    *((2, 13), (2, 14), (3, 13), (3, 14), (4, 13), (4, 14), (4, 15)),
    *((5, 13), (5, 14), (5, 15), (6, 13), (6, 14), (6, 15), (7, 13)),
}
"""Tiles whose labels the benchmark withheld until after the paper; they are unlabelled here too."""

_COLOURS = ((255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0))
_TOLERANCE = 32
"""Some label images are a few counts off the six colours."""


@dataclass(frozen=True)
class Tile:
    """One orthophoto and, unless it was withheld, its label image."""

    name: str
    image: Path
    label: Path | None


def find_tiles(folder: Path) -> list[Tile]:
    """Return the tiles anywhere under `folder`, in the order of their numbers."""
    images: dict[tuple[int, int], Path] = {}
    labels: dict[tuple[int, int], Path] = {}
    for path in sorted(folder.rglob("*.tif*")):
        if match := _NAME.search(path.name):
            key = (int(match[1]), int(match[2]))
            if match[3].upper() == "RGBIR":
                images[key] = path
            elif match[3].lower() == "label" or key not in labels:
                labels[key] = path
    return [
        Tile(f"{row}_{column}", image, None if (row, column) in _WITHHELD else labels.get((row, column)))
        for (row, column), image in sorted(images.items())
    ]


def colours_to_classes(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn a label image [3, H, W] into classes 0 to 5, 255 where the colour is none of the six."""
    table = np.full(8, UNLABELLED, np.uint8)
    for index, (red, green, blue) in enumerate(_COLOURS):
        table[(red > 0) * 4 + (green > 0) * 2 + (blue > 0)] = index
    high = rgb >= 255 - _TOLERANCE
    clear = (high | (rgb <= _TOLERANCE)).all(0)
    classes = table[high[0] * np.uint8(4) + high[1] * np.uint8(2) + high[2]]
    return np.where(clear, classes, np.uint8(UNLABELLED))


class Chips:
    """Chips on disk, read through memory maps that every process opens for itself."""

    channels = ("red", "green", "blue", "nir")

    def __init__(self, folder: Path, labelled: NDArray[np.bool_], table: NDArray[np.uint8]) -> None:
        self.folder = folder
        self.labelled = labelled
        self.table = table

    def __len__(self) -> int:
        return len(self.labelled)

    def image(self, index: int) -> NDArray[np.uint8]:
        """Return chip `index` as [4, 200, 200]."""
        return np.array(self._images[index])

    def label(self, index: int) -> NDArray[np.uint8] | None:
        """Return the classes of chip `index`, or None if its tile has no labels."""
        return self.table[self._labels[index]] if self.labelled[index] else None

    def valid(self, index: int) -> None:
        """Every pixel may enter the objective."""
        return

    @cached_property
    def _images(self) -> NDArray[np.uint8]:
        return np.asarray(np.load(self.folder / "images.npy", mmap_mode="r"))

    @cached_property
    def _labels(self) -> NDArray[np.uint8]:
        return np.asarray(np.load(self.folder / "labels.npy", mmap_mode="r"))

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "labelled": self.labelled, "table": self.table}


def cut_chips(
    tiles: list[Tile], folder: Path, table: NDArray[np.uint8], progress: OnProgress = silent
) -> Chips:
    """Cut `tiles` into `folder` unless that was done before from the same files.

    The list of tiles is written last, so chips that are listed are complete.
    """
    listing = folder / "chips.json"
    counts = [_chip_count(tile) for tile in tiles]
    labelled = np.repeat(
        [tile.label is not None for tile in tiles], [rows * columns for rows, columns in counts]
    )
    listed = {
        "tiles": [tile.name for tile in tiles],
        "labelled": int(labelled.sum()),
        "source": _digest(tiles),
    }
    if not (listing.is_file() and json.loads(listing.read_bytes()) == listed):
        try:
            _LOG.info(
                "Cutting %d tiles of Potsdam into %d chips in %s, once.", len(tiles), len(labelled), folder
            )
            folder.mkdir(parents=True, exist_ok=True)
            listing.unlink(missing_ok=True)
            _write_chips(tiles, counts, folder, progress)
            write_atomically(listing, json.dumps(listed, indent=1).encode())
        except DataError:
            raise
        except rasterio.RasterioIOError as error:
            raise DataError(
                f"A tile of Potsdam cannot be read ({error}): unpack its archive again."
            ) from error
        except OSError as error:
            raise DataError(f"Chips of Potsdam cannot be written to {folder} ({error}).") from error
    return Chips(folder, labelled, table)


def _digest(tiles: list[Tile]) -> str:
    files = [file for tile in tiles for file in (tile.image, tile.label) if file is not None]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _chip_count(tile: Tile) -> tuple[int, int]:
    try:
        with rasterio.open(tile.image) as image:
            height, width, bands = image.height, image.width, image.count
    except rasterio.RasterioIOError as error:
        raise DataError(f"{tile.image} cannot be read ({error}): unpack its archive again.") from error
    if bands != 4 or min(height, width) < _SOURCE:
        raise DataError(
            f"{tile.image} is not a tile of red, green, blue and infrared of at least {_SOURCE} px."
        )
    return height // _SOURCE, width // _SOURCE


def _write_chips(
    tiles: list[Tile], counts: list[tuple[int, int]], folder: Path, progress: OnProgress
) -> None:
    total = sum(rows * columns for rows, columns in counts)
    with replacement(folder / "images.npy") as image_path, replacement(folder / "labels.npy") as label_path:
        images = np.lib.format.open_memmap(image_path, "w+", np.uint8, (total, 4, CHIP, CHIP))
        labels = np.lib.format.open_memmap(label_path, "w+", np.uint8, (total, CHIP, CHIP))
        start = 0
        for tile, (rows, columns) in zip(tiles, counts, strict=True):
            for row in range(rows):
                images[start : start + columns] = _image_row(tile.image, row, columns)
                labels[start : start + columns] = (
                    UNLABELLED if tile.label is None else _label_row(tile, row, columns)
                )
                start += columns
                progress(Progress("cut", start, total, "chips"))
        images.flush()
        labels.flush()


def _image_row(path: Path, row: int, columns: int) -> NDArray[np.uint8]:
    """One row of chips: every pixel the rounded mean of four."""
    with rasterio.open(path) as source:
        pixels = source.read(window=Window(0, row * _SOURCE, columns * _SOURCE, _SOURCE)).astype(np.uint16)
    quads = pixels.reshape(4, CHIP, 2, columns, CHIP, 2)
    mean = (quads.sum((2, 5), dtype=np.uint16) + 2) // 4
    return np.asarray(mean, np.uint8).transpose(2, 0, 1, 3)


def _label_row(tile: Tile, row: int, columns: int) -> NDArray[np.uint8]:
    """One row of label chips: the upper left of every four pixels, since classes have no mean."""
    with rasterio.open(tile.label) as source, rasterio.open(tile.image) as image:
        if source.count < 3 or source.shape != image.shape:
            raise DataError(f"{tile.label} does not hold a colour for every pixel of {tile.image.name}.")
        rgb = source.read((1, 2, 3), window=Window(0, row * _SOURCE, columns * _SOURCE, _SOURCE))
    classes = colours_to_classes(rgb[:, ::2, ::2])
    return classes.reshape(CHIP, columns, CHIP).transpose(1, 0, 2)


_FOLDERS = ("potsdam", "Potsdam")
_ID_FILES = ("unlabelled_train.txt", "labelled_train.txt", "labelled_test.txt")
_SPLIT_SEED = 0
_TEST_SHARE = 0.1

_CLASSES = {
    "potsdam": ("roads", "buildings", "low vegetation", "trees", "cars", "clutter"),
    "potsdam-3": ("roads and cars", "buildings and clutter", "vegetation and trees"),
}
_TO_THREE = (0, 1, 2, 2, 0, 1)


def class_table(name: str) -> NDArray[np.uint8]:
    """Return the 256 entries that turn the six classes (255 = none) into those of `name`."""
    table = np.full(256, UNLABELLED, np.uint8)
    table[:6] = _TO_THREE if name == "potsdam-3" else range(6)
    return table


def read(
    name: str, root: Path, *, overcluster: bool, unlabelled: bool, progress: OnProgress = silent
) -> Dataset:
    """Open Potsdam under `root`.

    The unsupervised protocol trains on everything and matches and tests on all labelled chips. With `overcluster` a
    tenth of all chips, labelled ones, is kept for the test.
    """
    without, train, test = _parts(root, class_table(name), progress)
    classes = _CLASSES[name]
    trained = Joined(without, train) if unlabelled else train
    if overcluster:
        return Dataset(name, True, trained, trained, map=train, test=test, classes=classes)
    everything, labelled = Joined(trained, test), Joined(train, test)
    return Dataset(name, True, everything, everything, map=labelled, test=labelled, classes=classes)


def _parts(root: Path, table: NDArray[np.uint8], progress: OnProgress) -> tuple[Images, Images, Images]:
    """Chips without labels, labelled chips to train and match on, labelled chips to test on."""
    for folder in (root / name for name in _FOLDERS):
        if all((folder / file).is_file() for file in _ID_FILES):
            without, train, test = (
                MatChips(folder, (folder / file).read_text().split(), table) for file in _ID_FILES
            )
            return without, train, test
        if folder.is_dir() and (tiles := find_tiles(folder)):
            return _split(cut_chips(tiles, folder / "chips", table, progress))
    raise DataError(
        "Potsdam is missing: put 4_Ortho_RGBIR and 5_Labels_all of the ISPRS benchmark (www.isprs.org, "
        f"2D semantic labelling, on request) or the authors' Potsdam.tar.gz into {root / _FOLDERS[0]}, "
        "or name another folder with `data`."
    )


def _split(chips: Chips) -> tuple[Images, Images, Images]:
    labelled = np.flatnonzero(chips.labelled)
    if len(labelled) < 2:
        raise DataError(f"{chips.folder.parent} has no label images: put 5_Labels_all next to 4_Ortho_RGBIR.")
    count = min(max(1, round(_TEST_SHARE * len(chips))), len(labelled) - 1)
    test = np.random.default_rng(_SPLIT_SEED).choice(labelled, count, replace=False)
    train = np.setdiff1d(labelled, test)
    without = np.flatnonzero(~chips.labelled)
    return Subset(chips, without), Subset(chips, train), Subset(chips, np.sort(test))


class MatChips:
    """Chips of the authors' archive: imgs/<id>.mat and, where there are labels, gt/<id>.mat."""

    channels = ("red", "green", "blue", "nir")

    def __init__(self, folder: Path, ids: list[str], table: NDArray[np.uint8]) -> None:
        self.folder = folder
        self.ids = ids
        self.table = table

    def __len__(self) -> int:
        return len(self.ids)

    def image(self, index: int) -> NDArray[Any]:
        """Return chip `index` as [4, H, W]."""
        pixels = self._load("imgs", index, "img")
        if pixels.ndim != 3 or pixels.shape[2] != len(self.channels):
            raise DataError(
                f"{self.folder / 'imgs' / self.ids[index]}.mat does not hold red, green, blue and nir."
            )
        return pixels.transpose(2, 0, 1)

    def label(self, index: int) -> NDArray[np.uint8] | None:
        """Return the classes of chip `index`, or None if it is not labelled."""
        if not (self.folder / "gt" / f"{self.ids[index]}.mat").is_file():
            return None
        return self.table[self._load("gt", index, "gt").astype(np.uint8)]

    def valid(self, index: int) -> None:
        """Every pixel may enter the objective."""
        return

    def _load(self, kind: str, index: int, key: str) -> NDArray[Any]:
        from scipy.io import loadmat

        path = self.folder / kind / f"{self.ids[index]}.mat"
        try:
            return np.asarray(loadmat(path)[key])
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}): unpack the archive again.") from error
