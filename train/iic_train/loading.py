"""Batches of raw images in an order that depends on nothing but seed, epoch and pass: resuming needs no state."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from iic_train.data.base import Images


class Batch(NamedTuple):
    """Raw pixels `[N, C, H, W]` and which of them count, `[N, H, W]`; None: all."""

    pixels: Tensor
    valid: Tensor | None


class Source(Protocol):
    """What a head is trained on."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels in order."""
        ...

    def __len__(self) -> int:
        """How many images, or windows, one pass sees."""
        ...

    def read(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """Read these images; what is random about it comes from `rng`."""
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
        """Read images, each with a square drawn at random."""
        found = [self._cut(int(index), rng) for index in indices]
        pixels = torch.from_numpy(np.stack([image for image, _ in found]))
        if all(valid is None for _, valid in found):
            return Batch(pixels, None)
        whole = np.ones(pixels.shape[-2:], bool)
        return Batch(
            pixels, torch.from_numpy(np.stack([whole if valid is None else valid for _, valid in found]))
        )

    def _cut(self, index: int, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        image, valid = self.images.image(index), self.images.valid(index)
        if self.size is None or image.shape[-2:] == (self.size, self.size):
            return image, valid
        return random_square(image, valid, self.size, rng)


def random_square(
    image: NDArray[Any], valid: NDArray[np.bool_] | None, size: int, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A random square of an image; a side that is too short is padded evenly with pixels that do not count."""
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
    """Steps of a pass with `images` images each over all ranks; a last incomplete batch is left out."""
    steps = max(1, len(source) // images)
    return steps if limit is None else min(steps, limit)


def batches(
    source: Source,
    images: int,
    key: Sequence[int],
    *,
    steps: int,
    rank: int = 0,
    ranks: int = 1,
    workers: int = 0,
    pin: bool = False,
) -> Iterator[Batch]:
    """One pass over `source` in an order given by `key` (seed, epoch, pass).

    Args:
        source: What to read.
        images: Images a step, over all ranks.
        key: Whole numbers that stand for this pass.
        steps: Steps of the pass.
        rank: Which share of every batch to read.
        ranks: Number of shares.
        workers: Processes that read ahead; 0 reads in this one.
        pin: Put batches into page-locked memory.
    """
    dataset = _Pass(source, images // ranks, tuple(key), steps, rank, ranks)
    loader: DataLoader[Batch] = DataLoader(
        dataset, batch_size=None, shuffle=False, num_workers=workers, pin_memory=pin
    )
    return iter(loader)


class _Pass(Dataset[Batch]):
    """The steps of one pass, each of which any process can read on its own."""

    def __init__(
        self, source: Source, share: int, key: tuple[int, ...], steps: int, rank: int, ranks: int
    ) -> None:
        self.source, self.share, self.key, self.steps, self.rank, self.ranks = (
            source,
            share,
            key,
            steps,
            rank,
            ranks,
        )
        order = np.random.default_rng(key).permutation(len(source))
        self.order = np.resize(order, steps * share * ranks)  # a source smaller than a batch is repeated

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Batch:
        start = (step * self.ranks + self.rank) * self.share
        rng = np.random.default_rng((*self.key, step, self.rank))
        return self.source.read(self.order[start : start + self.share], rng)
