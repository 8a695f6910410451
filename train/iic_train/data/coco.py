"""COCO-Stuff 164k: its 15 coarse stuff classes, or sky, plants and ground alone.

Labels are used to choose images and pixels, never to supervise. Pixels that are not labelled, or with none of the
classes (mostly things), stay out of the objective and of every figure.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from iic_geotools.errors import DataError
from iic_geotools.files import write_atomically
from iic_train.data.base import UNLABELLED, Dataset

logger = logging.getLogger(__name__)

SCALE = 0.33
"""Images are used at a third of their size."""
SIDE = 128
"""Images that are smaller after scaling are padded to this side; training crops to it."""
_SHORTEST = 360
_COVERED = 0.75

_FOLDERS = ("coco-stuff-164k", "coco-stuff", "cocostuff")
_SPLITS = ("train2017", "val2017")
_AUTHORS_LISTS = {"coco-stuff": "Coco164kFull_Stuff_Coarse_7.txt", "coco-stuff-3": "Coco164kFew_Stuff_6.txt"}

_STUFF: dict[str, tuple[int, ...]] = {
    "ceiling": (102, 103),
    "floor": (101, 114, 115, 116, 117, 118),
    "food": (121, 122, 153, 170),
    "furniture": (98, 107, 108, 110, 112, 123, 130, 133, 156, 161, 165),
    "raw material": (100, 132, 139, 143),
    "textile": (92, 93, 104, 105, 109, 131, 137, 141, 152, 167, 168),
    "wall": (171, 172, 173, 174, 175, 176, 177),
    "window": (180, 181),
    "building": (95, 96, 128, 151, 158, 166),
    "ground": (111, 125, 126, 136, 140, 144, 145, 147, 149, 154, 159),
    "plant": (94, 97, 119, 124, 129, 134, 142, 163, 169),
    "sky": (106, 157),
    "solid": (127, 135, 150, 160, 162, 182),
    "structural": (99, 113, 138, 146, 164),
    "water": (120, 148, 155, 178, 179),
}
"""Category ids of COCO-Stuff by supercategory, in the order of the paper's classes."""

_CLASSES = {"coco-stuff": tuple(_STUFF), "coco-stuff-3": ("sky", "plant", "ground")}


def class_table(name: str) -> NDArray[np.uint8]:
    """Return the 256 entries that turn values of an annotation (category id - 1, 255 = none) into classes."""
    table = np.full(256, UNLABELLED, np.uint8)
    for index, stuff in enumerate(_CLASSES[name]):
        table[np.array(_STUFF[stuff]) - 1] = index
    return table


def read(name: str, root: Path, *, overcluster: bool) -> Dataset:
    """Open COCO-Stuff under `root`; every chosen image is labelled."""
    folder = _folder(root)
    train, test = (Stuff(folder, split, _chosen(name, folder, split), class_table(name)) for split in _SPLITS)
    return Dataset.of_labelled(name, train, test, _CLASSES[name], dense=True, overcluster=overcluster)


class Stuff:
    """Chosen images of one split, scaled, with the labels that belong to them."""

    channels = ("red", "green", "blue")

    def __init__(self, folder: Path, split: str, names: list[str], table: NDArray[np.uint8]) -> None:
        self.images = folder / "images" / split
        self.annotations = folder / "annotations" / split
        self.names = names
        self.table = table

    def __len__(self) -> int:
        return len(self.names)

    def image(self, index: int) -> NDArray[np.uint8]:
        """Return image `index` as [3, H, W], red first, at least 128 pixels wide and high."""
        path = self.images / f"{self.names[index]}.jpg"
        with _open(path) as picture:
            size = _scaled(picture.size)
            picture.draft("RGB", size)  # the decoder may halve while it decodes
            pixels = np.asarray(picture.convert("RGB").resize(size, Image.Resampling.BILINEAR))
        return _padded(pixels.transpose(2, 0, 1), 0)

    def label(self, index: int) -> NDArray[np.uint8]:
        """Return the classes of image `index` as [H, W], 255 where there is none."""
        with _open(self.annotations / f"{self.names[index]}.png") as picture:
            values = np.asarray(picture.resize(_scaled(picture.size), Image.Resampling.NEAREST))
        return _padded(self.table[values], UNLABELLED)

    def valid(self, index: int) -> NDArray[np.bool_]:
        """Return the pixels of image `index` that belong to one of the classes."""
        return np.asarray(self.label(index) != UNLABELLED)


def _scaled(size: tuple[int, int]) -> tuple[int, int]:
    return round(size[0] * SCALE), round(size[1] * SCALE)


def _padded(pixels: NDArray[np.uint8], fill: int) -> NDArray[np.uint8]:
    missing = [max(0, SIDE - side) for side in pixels.shape[-2:]]
    if not any(missing):
        return pixels
    around = [(0, 0)] * (pixels.ndim - 2) + [(side // 2, side - side // 2) for side in missing]
    return np.pad(pixels, around, constant_values=fill)


def _open(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except FileNotFoundError as error:
        raise DataError(f"COCO-Stuff is incomplete: {path} is missing, unpack its archive again.") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{path} is not an image: unpack its archive again.") from error


def _folder(root: Path) -> Path:
    for name in _FOLDERS:
        folder = root / name
        if all((folder / kind / split).is_dir() for kind in ("images", "annotations") for split in _SPLITS):
            return folder
    raise DataError(
        "COCO-Stuff 164k is missing: unpack train2017.zip and val2017.zip into "
        f"{root / _FOLDERS[0] / 'images'} and stuffthingmaps_trainval2017.zip into "
        f"{root / _FOLDERS[0] / 'annotations'} "
        "(links: github.com/nightrome/cocostuff), or name another folder with `data`."
    )


def _chosen(name: str, folder: Path, split: str) -> list[str]:
    """Names of the images to use: the authors' list if it is there, else one computed here once."""
    authors, ours = (folder / "curated" / split / file for file in (_AUTHORS_LISTS[name], f"{name}.txt"))
    for path in (authors, ours):
        if path.is_file():
            return path.read_text().split()
    annotations = sorted((folder / "annotations" / split).glob("*.png"))
    logger.info("Choosing images for %s among %d of %s, once.", name, len(annotations), split)
    names = _choose(annotations, class_table(name))
    if not names:
        raise DataError(
            f"No image of {folder / 'annotations' / split} is large enough and mostly stuff: "
            "is it COCO-Stuff 164k?"
        )
    try:
        ours.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(ours, "\n".join([*names, ""]).encode())
    except OSError as error:
        raise DataError(
            f"The list of images cannot be kept in {ours} ({error}): make it writable."
        ) from error
    return names


def _choose(paths: list[Path], table: NDArray[np.uint8]) -> list[str]:
    with ThreadPoolExecutor() as pool:  # decoding releases the interpreter lock
        chosen = list(pool.map(partial(_mostly_stuff, table=table), paths))
    return [path.stem for path, good in zip(paths, chosen, strict=True) if good]


def _mostly_stuff(path: Path, table: NDArray[np.uint8]) -> bool:
    with _open(path) as picture:
        if min(picture.size) < _SHORTEST:
            return False
        values: NDArray[Any] = np.asarray(picture)
    counts = np.bincount(values.ravel(), minlength=256)
    return bool(counts[table != UNLABELLED].sum() >= _COVERED * values.size)
