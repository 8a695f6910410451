"""ISPRS Potsdam in chips of 200 px, from the survey's tiles or from the authors' archive of .mat files."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_train.data.base import UNLABELLED, Dataset, Images, Joined, Subset
from iic_train.data.potsdam_tiles import Chips, cut_chips, find_tiles

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


def read(name: str, root: Path, *, overcluster: bool, unlabelled: bool) -> Dataset:
    """Open Potsdam under `root`.

    The unsupervised protocol trains on everything and matches and tests on all labelled chips. With `overcluster` a
    tenth of all chips, labelled ones, is kept for the test.
    """
    without, train, test = _parts(root, class_table(name))
    classes = _CLASSES[name]
    trained = Joined(without, train) if unlabelled else train
    if overcluster:
        return Dataset(name, True, trained, trained, map=train, test=test, classes=classes)
    everything, labelled = Joined(trained, test), Joined(train, test)
    return Dataset(name, True, everything, everything, map=labelled, test=labelled, classes=classes)


def _parts(root: Path, table: NDArray[np.uint8]) -> tuple[Images, Images, Images]:
    """Chips without labels, labelled chips to train and match on, labelled chips to test on."""
    for folder in (root / name for name in _FOLDERS):
        if all((folder / file).is_file() for file in _ID_FILES):
            without, train, test = (
                MatChips(folder, (folder / file).read_text().split(), table) for file in _ID_FILES
            )
            return without, train, test
        if folder.is_dir() and (tiles := find_tiles(folder)):
            return _split(cut_chips(tiles, folder / "chips", table))
    raise DataError(
        "Potsdam is missing: put 4_Ortho_RGBIR and 5_Labels_all of the ISPRS benchmark (www.isprs.org, "
        f"2D semantic labelling, on request) or the authors' Potsdam.tar.gz into {root / _FOLDERS[0]}, "
        "or name another folder with `data`."
    )


def _split(chips: Chips) -> tuple[Images, Images, Images]:
    labelled = np.flatnonzero(chips.labelled)
    if len(labelled) < 2:
        raise DataError(f"{chips.folder.parent} has no label images: put 5_Labels_all beside 4_Ortho_RGBIR.")
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
