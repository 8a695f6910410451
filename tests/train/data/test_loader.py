from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.steps import batches

from iic_geotools.errors import DataError
from iic_train.data.base import Arrays
from iic_train.data.loader import (
    Batch,
    ImageSource,
    Loader,
    random_square,
    share_of,
    steps_of,
)


def numbered(count: int, side: int = 2) -> ImageSource:
    images = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, side, side), np.uint8)
    return ImageSource(Arrays(images, None, ("grey",)))


def numbers(loaded: Iterable[Batch]) -> list[list[int]]:
    return [batch.pixels[:, 0, 0, 0].tolist() for batch in loaded]


def test_a_pass_sees_every_image_once_in_an_order_of_its_own() -> None:
    source = numbered(12)
    first = numbers(batches(source, 4, (0, 1, 0), steps=3))
    assert sorted(number for batch in first for number in batch) == list(range(12))
    assert first == numbers(batches(source, 4, (0, 1, 0), steps=3))
    assert first != numbers(batches(source, 4, (0, 2, 0), steps=3))
    assert first != numbers(batches(source, 4, (1, 1, 0), steps=3))


def test_ranks_share_the_batches_of_one_process() -> None:
    source = numbered(24)
    whole = numbers(batches(source, 8, (3, 1, 0), steps=3))
    shares = [numbers(batches(source, 8, (3, 1, 0), steps=3, rank=rank, ranks=2)) for rank in (0, 1)]
    assert [a + b for a, b in zip(*shares, strict=True)] == whole


@given(images=st.integers(1, 40), ranks=st.integers(1, 9))
def test_shares_cover_a_batch_and_differ_by_one_image_at_most(images: int, ranks: int) -> None:
    shares = [range(images)[share_of(images, rank, ranks)] for rank in range(ranks)]
    assert [index for share in shares for index in share] == list(range(images))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_ranks_share_a_batch_that_cannot_be_divided() -> None:
    source = numbered(24)
    whole = numbers(batches(source, 7, (3, 1, 0), steps=3))
    shares = [numbers(batches(source, 7, (3, 1, 0), steps=3, rank=rank, ranks=4)) for rank in range(4)]
    assert [[*chain(*parts)] for parts in zip(*shares, strict=True)] == whole


def test_a_loader_reads_pass_after_pass_in_the_same_processes() -> None:
    sources = [numbered(12), numbered(9)]
    alone, helped = (Loader(sources, 4, workers=workers) for workers in (0, 1))
    for source, key, steps in ((0, (0, 1, 0), 3), (1, (0, 1, 1), 2), (0, (0, 2, 0), 3)):
        expected = numbers(alone.batches(source, key, steps))
        assert expected == numbers(batches(sources[source], 4, key, steps=steps))
        assert numbers(helped.batches(source, key, steps)) == expected


class Unreadable:
    channels = ("grey",)

    def __len__(self) -> int:
        return 8

    def read(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        try:
            raise OSError("disk on fire: smoke")
        except OSError as error:
            raise DataError("image.png cannot be read (disk on fire: smoke); restore it.") from error


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_process_that_reads_ahead_is_one_sentence(workers: int) -> None:
    with pytest.raises(DataError) as caught:
        list(Loader([Unreadable()], 4, workers=workers).batches(0, (1, 1, 0), 2))
    assert str(caught.value) == "image.png cannot be read (disk on fire: smoke); restore it."


def test_incomplete_batches_are_left_out_and_small_sources_repeated() -> None:
    assert steps_of(numbered(11), 4) == 2
    assert steps_of(numbered(11), 4, limit=1) == 1
    assert steps_of(numbered(3), 4) == 1
    (only,) = numbers(batches(numbered(3), 8, (0, 1, 0), steps=1))
    assert len(only) == 8
    assert set(only) == {0, 1, 2}


@given(
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    size=st.integers(1, 16),
    seed=st.integers(0, 100),
    masked=st.booleans(),
)
def test_random_squares_are_parts_of_the_image_and_padding_does_not_count(
    *, height: int, width: int, size: int, seed: int, masked: bool
) -> None:
    rng = np.random.default_rng(seed)
    image = np.arange(1, height * width + 1).reshape(1, height, width)
    mask = rng.random((height, width)) < 0.7 if masked else None
    cut, valid = random_square(image, mask, size, rng)
    assert cut.shape == (1, size, size)
    assert valid.shape == (size, size)
    inside = cut[0] > 0
    assert inside.sum() == min(height, size) * min(width, size)
    assert not (valid & ~inside).any()
    expected = np.ones((height, width), bool) if mask is None else mask
    np.testing.assert_array_equal(valid[inside], expected.ravel()[cut[0][inside] - 1])


def test_images_of_different_sizes_make_a_batch_with_a_mask() -> None:
    class Mixed:
        channels = ("grey",)

        def __len__(self) -> int:
            return 2

        def image(self, index: int) -> NDArray[np.uint8]:
            return np.full((1, 8 if index else 4, 8), 9, np.uint8)

        def label(self, index: int) -> None:
            return

        def valid(self, index: int) -> None:
            return

    batch = ImageSource(Mixed(), 8).read(np.array([0, 1]), np.random.default_rng(0))
    assert batch.pixels.shape == (2, 1, 8, 8)
    assert batch.valid.sum((1, 2)).tolist() == [32, 64]


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.float32])
def test_the_type_of_pixels_is_kept(dtype: Any) -> None:
    source = ImageSource(Arrays(np.ones((2, 1, 4, 4), dtype), None, ("grey",)))
    assert source.read(np.array([0]), np.random.default_rng(0)).pixels.dtype == getattr(
        torch, np.dtype(dtype).name
    )
