"""Images to labels: models that were trained to cluster or classify whole images, such as MNIST, CIFAR or STL10."""

import csv
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from iic_geotools.classmap.classes import MapClass
from iic_geotools.errors import DataError, ModelError, UsageError
from iic_geotools.files import check_writable, replacement
from iic_geotools.scene.bands import canonical
from iic_geotools.settings import PathLike, Settings, checked, setting, takes
from iic_geotools.work import OnProgress, Progress, silent
from iic_runtime.engine.base import OUTPUTS, EngineSpec, LabelArray, check_outputs, usable_devices
from iic_runtime.engine.onnx import OnnxEngine
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import find_model

_LOG = logging.getLogger(__name__)
ClassifierDevice = Literal["auto", "cpu", "cuda", "tensorrt"]
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".pgm", ".ppm")
ARRAY_SUFFIX = ".npy"
PROBABILITIES = "probabilities"
# Modes of Pillow images whose pixels have 8 bits, or become 8 bits without loss.
EIGHT_BITS = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"}


@dataclass(frozen=True)
class Classification:
    """The result for a number of images.

    Attributes:
        labels: Number of the class of each image `[N]`, uint8.
        confidence: 255 x the probability of each label `[N]`, uint8.
        probabilities: Probability of each class `[N, classes]`, float32.
    """

    labels: LabelArray
    confidence: LabelArray
    probabilities: NDArray[np.float32]

    def top(self, count: int) -> NDArray[np.intp]:
        """Return the `count` most probable classes of each image, `[N, count]`, the most probable first."""
        return np.argsort(-self.probabilities, axis=1, kind="stable")[:, :count]


class Classifier:
    """A model that is ready to label whole images.

    Args:
        model: A model file, by its path or already read; by default the one that the environment variable `IIC_MODEL`
            names, or else the one that was exported to the working directory.
        device: "auto", "cpu", "cuda" or "tensorrt".
        threads: Number of threads of the engine; by default all cores.
        batch: Number of images that are run at once.

    Raises:
        ModelError: The file is not a model of images.
        UsageError: No model is named, and none was exported here.

    Example:
        >>> classify = Classifier("model.onnx")
        >>> result = classify(images)  # [N, bands, H, W], in the card's band order and dtype
        >>> result.labels, result.confidence, result.probabilities
    """

    @checked
    def __init__(
        self,
        model: PathLike | ModelFile | None = None,
        *,
        device: ClassifierDevice = "auto",
        threads: int | None = None,
        batch: int = 64,
    ) -> None:
        if batch < 1:
            raise UsageError(f"`batch` must be at least 1, not {batch}.")
        self.model = find_model(model, "clustering")
        if self.card.task != "clustering":
            raise ModelError(f"{self.model.path} labels pixels, not whole images; use iic-segment-raster.")
        chosen = usable_devices()[0] if device == "auto" else device
        spec = EngineSpec(chosen, tile=1, batch=batch, threads=threads)
        self.engine = OnnxEngine(self.model, spec, (*OUTPUTS, PROBABILITIES))
        if PROBABILITIES not in self.engine.output_names:
            raise ModelError(
                f"{self.model.path} does not give probabilities; export it again with iic-export."
            )

    @property
    def card(self) -> Card:
        """The card of the model."""
        return self.model.card

    @property
    def classes(self) -> tuple[MapClass, ...]:
        """The classes, in the order of the labels."""
        return self.card.classes

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images that the model takes."""
        height, width = self.engine.image_size
        if height is None or width is None:
            raise ModelError(f"{self.model.path} has no fixed image size; export it again with iic-export.")
        return height, width

    @property
    def provider(self) -> str:
        """The execution provider in use."""
        return self.engine.provider

    def __call__(self, images: NDArray[Any]) -> Classification:
        """Label images `[N, bands, H, W]`, or one image `[bands, H, W]`, in the card's band order and dtype.

        Raises:
            ModelError: The images are not what the model takes.
        """
        images = images[None] if images.ndim == 3 else images
        taken = (len(self.card.bands), *self.size)
        if images.ndim != 4 or images.shape[1:] != taken:
            shape = ", ".join(map(str, taken))
            raise ModelError(
                f"The model takes images [N, {shape}] ({', '.join(self.card.bands)}), not shape {images.shape}."
            )
        if images.dtype != self.card.dtype:
            raise ModelError(
                f"The model takes {self.card.dtype}, not {images.dtype}; convert the images first."
            )
        step = self.engine.spec.batch
        starts = range(0, len(images), step)
        parts = [self._run(np.ascontiguousarray(images[start : start + step])) for start in starts]
        if not parts:
            empty = np.empty(0, np.uint8)
            return Classification(empty, empty, np.empty((0, len(self.classes)), np.float32))
        labels, confidence, probabilities = (np.concatenate(outputs) for outputs in zip(*parts, strict=True))
        return Classification(labels, confidence, probabilities)

    def _run(self, batch: NDArray[Any]) -> tuple[LabelArray, LabelArray, NDArray[np.float32]]:
        count, spec = len(batch), self.engine.spec
        if spec.device == "tensorrt":  # which would build an engine for each number of images
            batch = np.resize(batch, (spec.batch, *batch.shape[1:]))
        outputs = self.engine.fetch(batch, (*OUTPUTS, PROBABILITIES))
        labels, confidence, probabilities = (values[:count] for values in outputs)
        batch = batch[:count]
        check_outputs(self.card, batch.shape, {"labels": labels, "confidence": confidence})
        if probabilities.shape != (len(batch), len(self.classes)):
            raise ModelError(
                f"The graph of the model {self.card.name} returned probabilities of shape {probabilities.shape}; "
                "check it with iic-model validate."
            )
        return labels, confidence, probabilities


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(Settings):
    """How images are labelled, and what is written about them."""

    model: PathLike | None = setting(
        None,
        "A model file of whole images. By default the one that iic-export wrote to the working directory.",
        metavar="FILE",
        envvar="IIC_MODEL",
    )
    top: int = setting(1, "Number of classes per image, the most probable first.")
    probabilities: bool = setting(False, "Add a column with the probability of each class.")
    device: ClassifierDevice = setting("auto", "Device to compute on.")
    threads: int | None = setting(None, "Number of threads; by default all cores.")
    batch: int = setting(64, "Number of images that are run at once.")
    overwrite: bool = setting(False, "Replace the table if it exists.")
    progress: OnProgress = setting(silent, "Function that takes reports of progress.", option=False)


@dataclass(frozen=True)
class ClassifyArguments(ClassifySettings):
    """Arguments of `classify_images`."""

    images: Sequence[PathLike]
    out: PathLike = "labels.csv"


@dataclass(frozen=True)
class ClassifySummary:
    """What was written about images.

    Attributes:
        path: The table.
        counts: Number of images of each class, by its name.
    """

    path: Path
    counts: dict[str, int]

    def sentence(self) -> str:
        """The result in one line."""
        most = sorted(self.counts.items(), key=lambda entry: -entry[1])[:5]
        shares = ", ".join(f"{name}: {count}" for name, count in most if count)
        return f"{self.path}: {sum(self.counts.values())} images ({shares})"


@takes(ClassifyArguments)
def classify_images(arguments: ClassifyArguments) -> ClassifySummary:
    """Label whole images and write a table with a row per image.

    Image files are converted to the model's bands, and scaled and cropped to its size if they have another.

    Args:
        images: Image files, folders of them, and arrays `.npy` [N, bands, H, W] in the model's dtype.
        out: The table, `.csv`.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file was written.
    """
    out = Path(arguments.out)
    files = list_images(arguments.images)
    check_writable([(out, (".csv",), "out")], files, overwrite=arguments.overwrite)
    classify = Classifier(
        arguments.model, device=arguments.device, threads=arguments.threads, batch=arguments.batch
    )
    if not 1 <= arguments.top <= len(classify.classes):
        raise UsageError(f"`top` must be 1 to {len(classify.classes)}, not {arguments.top}.")
    names = [item.name for item in classify.classes]
    counts = dict.fromkeys(names, 0)
    done = 0
    with replacement(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(_header(names, arguments.top, arguments.probabilities))
        for group in _batches(_read_all(files, classify), arguments.batch):
            result = classify(np.stack([pixels for _, pixels in group]))
            for index, (name, _) in enumerate(group):
                table.writerow([name, *_row(result, index, names, arguments.top, arguments.probabilities)])
                counts[names[result.labels[index]]] += 1
            done += len(group)
            arguments.progress(Progress("classify", done, max(done, len(files)), "images"))
    return ClassifySummary(out, counts)


def list_images(images: Sequence[PathLike]) -> list[Path]:
    """Return the image files and arrays that are named, those of folders in the order of their names."""
    files: list[Path] = []
    for name in map(Path, images):
        if name.is_dir():
            suffixes = (*IMAGE_SUFFIXES, ARRAY_SUFFIX)
            inside = sorted(path for path in name.rglob("*") if path.suffix.lower() in suffixes)
            if not inside:
                raise DataError(f"The folder {name} holds no images ({', '.join(suffixes)}).")
            files += inside
        elif name.is_file():
            files.append(name)
        else:
            raise DataError(f"There is no image {name}; check the path.")
    if not files:
        raise UsageError("Give one or more `images`.")
    return files


def read_image(path: PathLike, card: Card, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Read an image file as a model takes it, `[bands, H, W]`.

    The shorter side is scaled to the model's, and the middle of the longer one is kept.
    """
    bands = tuple(map(canonical, card.bands))
    mode = {("gray",): "L", ("red", "green", "blue"): "RGB"}.get(bands)
    if mode is None or card.dtype != "uint8":
        raise ModelError(
            f"{card.name} takes {', '.join(card.bands)} as {card.dtype}: give arrays ({ARRAY_SUFFIX}) instead of "
            "image files."
        )
    try:
        with Image.open(path) as opened:
            if opened.mode not in EIGHT_BITS:
                raise DataError(f"{os.fspath(path)} does not have 8 bits per value; convert it first.")
            image = ImageOps.exif_transpose(opened).convert(mode)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{os.fspath(path)} cannot be read as an image ({error}).") from error
    height, width = size
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, np.uint8)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def _read_all(files: Iterable[Path], classify: Classifier) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the name and the pixels of every image."""
    size, bands = classify.size, len(classify.card.bands)
    for path in files:
        if path.suffix.lower() != ARRAY_SUFFIX:
            yield str(path), read_image(path, classify.card, size)
            continue
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read as an array ({error}).") from error
        if array.ndim == 3 and bands == 1:  # [N, H, W]
            array = array[:, None]
        elif array.ndim == 3:
            array = array[None]
        if array.shape[1:] != (bands, *size) or array.dtype != classify.card.dtype:
            wanted = ", ".join(map(str, (bands, *size)))
            raise DataError(
                f"{path} holds {array.dtype} of shape {array.shape}; the model takes {classify.card.dtype} "
                f"[N, {wanted}]."
            )
        for index in range(len(array)):
            yield f"{path}[{index}]", np.asarray(array[index])


def _batches(
    images: Iterator[tuple[str, NDArray[Any]]], size: int
) -> Iterator[list[tuple[str, NDArray[Any]]]]:
    while batch := list(itertools.islice(images, size)):
        yield batch


def _header(names: Sequence[str], top: int, probabilities: bool) -> list[str]:
    ranks = ["", *(f"_{rank}" for rank in range(2, top + 1))]
    columns = [f"{column}{rank}" for rank in ranks for column in ("class", "label", "probability")]
    return ["image", *columns, *(names if probabilities else ())]


def _row(
    result: Classification, index: int, names: Sequence[str], top: int, probabilities: bool
) -> list[object]:
    row: list[object] = []
    values = result.probabilities[index]
    for label in result.top(top)[index]:
        row += [names[label], int(label), f"{values[label]:.4f}"]
    return [*row, *(f"{value:.4f}" for value in values)] if probabilities else row
