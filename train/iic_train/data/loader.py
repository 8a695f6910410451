"""Batches of raw images in an order that follows from seed, epoch and pass alone, so that resuming needs no state."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from iic_geotools.errors import IICError, last_line
from iic_train.data.base import Images
from iic_train.views.random_numbers import to_device


class Batch(NamedTuple):
    """Raw pixels.

    Attributes:
        pixels: They, `[N, C, H, W]`.
        valid: Which of them count, `[N, H, W]`, or None if all do.
        other: What the same places show on another date, or None if second views show the same.
    """

    pixels: Tensor
    valid: Tensor | None
    other: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """Copy from the CPU to a device without making the host wait."""
        valid = None if self.valid is None else to_device(self.valid, device)
        return Batch(to_device(self.pixels, device), valid)


class Source(Protocol):
    """What a head is trained on."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels in order."""
        ...

    def __len__(self) -> int:
        """Return the number of images, or windows, per pass."""
        ...

    def read(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """Read these images; all randomness comes from `rng`."""
        ...


class ImageSource:
    """Images of a data set, cut to random squares if `size` is given."""

    def __init__(self, images: Images, size: int | None = None) -> None:
        self.images = images
        self.size = size
        self.channels = images.channels

    def __len__(self) -> int:
        return len(self.images)

    def read(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """Read a random square of each image."""
        squares = [self._cut(int(index), rng) for index in indices]
        pixels = torch.from_numpy(np.stack([image for image, _ in squares]))
        if all(valid is None for _, valid in squares):
            return Batch(pixels, None)
        whole = np.ones(pixels.shape[-2:], bool)
        return Batch(
            pixels, torch.from_numpy(np.stack([whole if valid is None else valid for _, valid in squares]))
        )

    def _cut(self, index: int, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        image, valid = self.images.image(index), self.images.valid(index)
        if self.size is None or image.shape[-2:] == (self.size, self.size):
            return image, valid
        return random_square(image, valid, self.size, rng)


def random_square(
    image: NDArray[Any], valid: NDArray[np.bool_] | None, size: int, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Cut a random square; an image that is too small is padded evenly with pixels that do not count."""
    height, width = image.shape[-2:]
    if valid is None:
        valid = np.ones((height, width), bool)
    row, column = (int(rng.integers(max(0, side - size) + 1)) for side in (height, width))
    image, valid = (array[..., row : row + size, column : column + size] for array in (image, valid))
    missing = [size - side for side in valid.shape]
    if any(missing):
        margins = [(gap // 2, gap - gap // 2) for gap in missing]
        image, valid = np.pad(image, [(0, 0), *margins]), np.pad(valid, margins)
    return image, valid


def steps_of(source: Source, images: int, limit: int | None = None) -> int:
    """Return the number of steps per pass with `images` images per step; a last incomplete batch is left out."""
    steps = max(1, len(source) // images)
    return steps if limit is None else min(steps, limit)


def share_of(images: int, rank: int, ranks: int) -> slice:
    """Return the images of every batch that a rank reads; shares differ by one image at most."""
    return slice(images * rank // ranks, images * (rank + 1) // ranks)


def labelled_batches(
    images: Images, batch_size: int, crop: int | None = None
) -> Iterator[tuple[Tensor, Tensor, NDArray[np.int64]]]:
    """Yield (images [N, C, H, W], labels [N] or [N, H, W], indices) of the labelled images, in order.

    A batch holds images of one size; it ends early where the size changes.
    """
    batch: list[tuple[NDArray[Any], Any, int]] = []
    for index in range(len(images)):
        label = images.label(index)
        if label is None:
            continue
        image = _centre(images.image(index), crop)
        if batch and (len(batch) == batch_size or batch[0][0].shape != image.shape):
            yield _stacked(batch)
            batch = []
        batch.append((image, label if isinstance(label, int) else _centre(label, crop), index))
    if batch:
        yield _stacked(batch)


def _stacked(batch: list[tuple[NDArray[Any], Any, int]]) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    images, labels, indices = zip(*batch, strict=True)
    return (
        torch.from_numpy(np.ascontiguousarray(np.stack(images))),
        torch.from_numpy(np.stack(labels)),
        np.array(indices, np.int64),
    )


def _centre(pixels: NDArray[Any], side: int | None) -> NDArray[Any]:
    if side is None:
        return pixels
    top, left = (max(0, (length - side) // 2) for length in pixels.shape[-2:])
    return pixels[..., top : top + side, left : left + side]


class Loader:
    """Reads batches ahead, in processes that are started once and live as long as the loader.

    Args:
        rank: Number of the share of every batch to read.
        ranks: Number of shares.
        workers: Number of processes that read ahead; 0 reads in this process.
        pin: Whether batches are put into page-locked memory.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        images: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        workers: int = 0,
        pin: bool = False,
    ) -> None:
        self._requests = _Requests()
        self._loader: DataLoader[Batch] = DataLoader(
            _Steps(tuple(sources), images, rank, ranks),
            batch_size=None,
            sampler=self._requests,
            num_workers=workers,
            pin_memory=pin,
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCHED if workers else None,
        )

    def batches(self, source: int, key: Sequence[int], steps: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of one pass; the one before must have ended.

        Args:
            key: Integers that identify the pass and from which its order follows: seed, epoch, number of the pass.
        """
        self._requests.steps = [_Request(source, tuple(key), steps, step) for step in range(first, steps)]
        return _with_plain_errors(iter(self._loader))


def _with_plain_errors(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches; an error on purpose in a process that reads ahead is the sentence alone, without its traceback."""
    try:
        yield from batches
    except IICError as error:
        if not str(error).startswith("Caught "):
            raise
        sentence = last_line(error).partition(": ")[2]
        raise type(error)(sentence) from error


PREFETCHED = 2
"""Number of batches that each process reads ahead."""


class _Request(NamedTuple):
    """A step of a pass: all that a process needs to know to read its batch."""

    source: int
    key: tuple[int, ...]
    steps: int
    step: int


class _Requests(Sampler[Any]):
    """The steps of the present pass."""

    def __init__(self) -> None:
        self.steps: list[_Request] = []

    def __iter__(self) -> Iterator[_Request]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


class _Steps(Dataset[Batch]):
    """The steps of all passes, each of which any process can read on its own."""

    def __init__(self, sources: tuple[Source, ...], images: int, rank: int, ranks: int) -> None:
        self.sources, self.images, self.rank = sources, images, rank
        self.share = share_of(images, rank, ranks)
        self._pass: tuple[int, tuple[int, ...], int] | None = None
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)

    def __getitem__(self, request: _Request) -> Batch:
        source = self.sources[request.source]
        if self._pass != request[:3]:
            order = np.random.default_rng(request.key).permutation(len(source))
            # a source smaller than a batch is repeated
            self._pass, self._order = request[:3], np.resize(order, request.steps * self.images)
        batch = self._order[request.step * self.images :][: self.images]
        rng = np.random.default_rng((*request.key, request.step, self.rank))
        return source.read(batch[self.share], rng)
