import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iic_train.data import Arrays
from iic_train.loading import ImageSource, batches, random_square, steps_of


def numbered(count: int, side: int = 2) -> ImageSource:
    images = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, side, side), np.uint8)
    return ImageSource(Arrays(images, None, ("grey",)))


def numbers(found) -> list[list[int]]:
    return [batch.pixels[:, 0, 0, 0].tolist() for batch in found]


def test_a_pass_sees_every_image_once_in_an_order_of_its_own():
    source = numbered(12)
    first = numbers(batches(source, 4, (0, 1, 0), steps=3))
    assert sorted(number for batch in first for number in batch) == list(range(12))
    assert first == numbers(batches(source, 4, (0, 1, 0), steps=3))
    assert first != numbers(batches(source, 4, (0, 2, 0), steps=3))
    assert first != numbers(batches(source, 4, (1, 1, 0), steps=3))


def test_ranks_share_the_batches_of_one_process():
    source = numbered(24)
    whole = numbers(batches(source, 8, (3, 1, 0), steps=3))
    shares = [numbers(batches(source, 8, (3, 1, 0), steps=3, rank=rank, ranks=2)) for rank in (0, 1)]
    assert [a + b for a, b in zip(*shares, strict=True)] == whole


def test_incomplete_batches_are_left_out_and_small_sources_repeated():
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
    *, height, width, size, seed, masked
):
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


def test_images_of_different_sizes_make_a_batch_with_a_mask():
    class Mixed:
        channels = ("grey",)

        def __len__(self):
            return 2

        def image(self, index):
            return np.full((1, 8 if index else 4, 8), 9, np.uint8)

        def label(self, index):
            return None

        def valid(self, index):
            return None

    batch = ImageSource(Mixed(), 8).read(np.array([0, 1]), np.random.default_rng(0))
    assert batch.pixels.shape == (2, 1, 8, 8)
    assert batch.valid.sum((1, 2)).tolist() == [32, 64]


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.float32])
def test_the_type_of_pixels_is_kept(dtype):
    source = ImageSource(Arrays(np.ones((2, 1, 4, 4), dtype), None, ("grey",)))
    assert source.read(np.array([0]), np.random.default_rng(0)).pixels.dtype == getattr(
        torch, np.dtype(dtype).name
    )
