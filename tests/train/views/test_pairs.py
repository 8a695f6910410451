import colorsys
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iic_train.views.pairs import (
    Move,
    central_views,
    change_values,
    crop_and_resize,
    dense_views,
    gaussian_blur,
    image_views,
    luminance,
    resample,
)
from iic_train.views.random_numbers import Draw
from iic_train.views.settings import DensePairs, ImagePairs, Photometry

RGBI = ("red", "green", "blue", "nir")
STILL = Photometry()


def images(n: int = 4, channels: int = 4, height: int = 16, width: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(seed))


@given(
    seed=st.integers(0, 10_000), side=st.integers(1, 9), dtype=st.sampled_from([torch.float32, torch.float64])
)
def test_flips_and_quarter_turns_are_undone_exactly(seed: int, side: int, dtype: Any) -> None:
    pairs = DensePairs(STILL, flip=0.5, flip_vertical=0.5, turn=0.5)
    x = images(5, 4, side, side, seed).to(dtype)
    first, second, move = dense_views(pairs, x, RGBI, Draw(seed))
    assert torch.equal(first, x)
    assert torch.equal(move.undo(second), x)


def test_all_eight_flips_and_turns_occur() -> None:
    x = torch.arange(4.0).view(1, 1, 2, 2).expand(200, 1, 2, 2)
    _, second, _ = dense_views(
        DensePairs(STILL, flip=0.5, flip_vertical=0.5, turn=0.5), x, ("grey",), Draw(0)
    )
    assert len({tuple(image.flatten().tolist()) for image in second}) == 8


def test_published_default_flips_horizontally_only() -> None:
    x = torch.arange(4.0).view(1, 1, 2, 2).expand(100, 1, 2, 2)
    _, second, _ = dense_views(DensePairs(STILL), x, ("grey",), Draw(0))
    assert {tuple(image.flatten().tolist()) for image in second} == {(0, 1, 2, 3), (1, 0, 3, 2)}


def test_flips_of_oblong_images_are_fine_but_turns_are_not() -> None:
    x = images(3, 4, 6, 9)
    _, second, move = dense_views(DensePairs(STILL), x, RGBI, Draw(1))
    assert torch.equal(move.undo(second), x)
    with pytest.raises(ValueError, match="square"):
        Move(torch.ones(3, dtype=torch.bool)).apply(x)


def plane(height: int, width: int) -> torch.Tensor:
    """A linear function of position: bilinear sampling is exact on it."""
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64), torch.arange(width, dtype=torch.float64), indexing="ij"
    )
    return (0.3 * x - 0.7 * y + 5.0).expand(6, 2, height, width)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000))
def test_affine_moves_are_undone_exactly_where_bilinear_sampling_is_exact(seed: int) -> None:
    x = plane(32, 32)
    pairs = DensePairs(STILL, turn=0.5, flip_vertical=0.5, rotation=30, shear=10, zoom=0.2)
    _, second, move = dense_views(pairs, x, ("a", "b"), Draw(seed))
    back = move.undo(second)
    known = move.undo(move.apply(torch.ones_like(x))) > 1 - 1e-9
    assert known[..., 8:24, 8:24].any()
    torch.testing.assert_close(back[known], x[known], rtol=0, atol=1e-5)
    assert (back[~known] <= 5.0 + 0.3 * 32).all()


def test_what_the_other_view_did_not_see_is_zero() -> None:
    ones = torch.ones(1, 1, 20, 20)
    half = torch.tensor([[[0.5, 0.0], [0.0, 0.5]]])  # the view shows the central half of the image
    back = resample(resample(ones, half), torch.linalg.inv(half))
    assert back[0, 0, 10, 10] == 1
    assert back[0, 0, 2, 2] == 0
    assert 90 <= back.sum() <= 110


def test_rotation_turns_about_the_centre_of_oblong_images_too() -> None:
    x = torch.zeros(1, 1, 9, 15)
    x[0, 0, 4, 10] = 1.0  # three to the right of the centre
    quarter = torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]])  # what is below comes from the right
    assert resample(x, quarter)[0, 0].argmax() == 7 * 15 + 7


def test_moves_are_exact_in_half_precision() -> None:
    turn = torch.tensor([[[math.cos(0.2), -math.sin(0.2)], [math.sin(0.2), math.cos(0.2)]]])
    images = torch.arange(200.0).expand(1, 1, 200, 200)
    expected = resample(images, turn)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(resample(images, turn), expected)


def test_infrared_is_not_jittered_by_default() -> None:
    x = images()
    first, second, move = dense_views(DensePairs(), x, RGBI, Draw(3))
    back = move.undo(second)
    assert torch.equal(first, x)
    assert torch.equal(back[:, 3], x[:, 3])
    assert not torch.isclose(back[:, :3], x[:, :3]).all(1).any(-1).any(-1).all()


@pytest.mark.parametrize(
    "option", ["all_brightness", "all_contrast", "all_gamma", "band_gain", "noise", "blur"]
)
def test_stronger_choices_change_all_bands(option: str) -> None:
    x = images()
    changed = change_values(Photometry(**{option: 0.5}), x, RGBI, Draw(0))
    assert ((changed - x).abs().amax((0, 2, 3)) > 1e-2).all()
    assert changed.amin() >= 0
    assert changed.amax() <= 1


def test_joint_brightness_and_gamma_keep_the_order_of_bands() -> None:
    x = 0.2 + 0.3 * images()
    brighter = change_values(Photometry(all_brightness=0.3), x, RGBI, Draw(0))
    torch.testing.assert_close(brighter[:, 3] / x[:, 3], brighter[:, 0] / x[:, 0])


def test_vegetation_jitter_changes_plants_only() -> None:
    roof, plant = (0.6, 0.5, 0.4, 0.5), (0.2, 0.3, 0.2, 0.6)
    x = torch.tensor([roof, plant]).T.reshape(1, 4, 1, 2).expand(50, -1, -1, -1)
    changed = change_values(Photometry(vegetation_jitter=1.0), x, RGBI, Draw(0))
    torch.testing.assert_close(changed[..., 0], x[..., 0])
    torch.testing.assert_close(changed[:, 1:3], x[:, 1:3])
    excess = (changed[:, 3] - changed[:, 0])[..., 1]
    assert excess.min() >= 0
    assert excess.min() < 0.1
    assert excess.max() > 0.7


def test_vegetation_jitter_needs_red_and_infrared() -> None:
    x = images(channels=3)
    assert torch.equal(change_values(Photometry(vegetation_jitter=1.0), x, RGBI[:3], Draw(0)), x)


def test_values_beyond_one_survive() -> None:
    x = 3.0 * images()
    changed = change_values(Photometry(brightness=0.01), x, RGBI, Draw(0))
    assert changed.amax() > 2.5


def test_each_image_is_changed_on_its_own() -> None:
    x = images(1).expand(6, -1, -1, -1)
    changed = change_values(Photometry(0.4, 0.4, 0.4, 0.125), x, RGBI, Draw(0))
    assert len({round(float(image.sum()), 4) for image in changed}) == 6


def test_the_input_is_not_written_to() -> None:
    x = images(channels=3)
    before = x.clone()
    change_values(Photometry(0.4, 0.4, 0.4, 0.125, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0), x, RGBI[:3], Draw(0))
    assert torch.equal(x, before)
    y = images()
    before = y.clone()
    change_values(Photometry(vegetation_jitter=1.0), y, RGBI, Draw(0))
    assert torch.equal(y, before)


def test_hue_turns_as_the_colour_circle_does() -> None:
    x = images(1, 3, 5, 5)
    changed = change_values(Photometry(hue=0.5), x, RGBI[:3], Draw(5))
    amount = Draw(5)
    amount.orders(1, 1)
    turn = 0.5 * float(amount.uniform((1, 1, 1, 1, 1), -1.0, 1.0))
    for y in range(5):
        for z in range(5):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, y, z].tolist())
            expected = colorsys.hsv_to_rgb((h + turn) % 1.0, s, v)
            assert changed[0, :, y, z].tolist() == pytest.approx(expected, abs=1e-5)


def test_saturation_and_contrast_keep_what_they_should() -> None:
    x = 0.3 + 0.4 * images(channels=3)
    saturated = change_values(Photometry(saturation=0.3), x, RGBI[:3], Draw(0))
    torch.testing.assert_close(luminance(saturated), luminance(x), atol=1e-5, rtol=0)
    stretched = change_values(Photometry(contrast=0.3), x, RGBI[:3], Draw(0))
    torch.testing.assert_close(luminance(stretched).mean((1, 2, 3)), luminance(x).mean((1, 2, 3)))


def test_blur_keeps_constants_and_zero_sigma() -> None:
    flat = torch.full((2, 3, 12, 12), 0.4)
    torch.testing.assert_close(gaussian_blur(flat, torch.tensor([0.5, 2.0]), 2.0), flat)
    x = images(2)
    torch.testing.assert_close(gaussian_blur(x, torch.zeros(2), 2.0), x)


MNIST = ImagePairs(24, 20, (16, 20, 24), centred=0.5, rotation=25.0, flip=0.0)


def test_repeats_pair_one_first_view_with_several_second_ones() -> None:
    x = images(6, 1, 28, 28)
    first, second = image_views(MNIST, x, ("grey",), Draw(0), repeats=3)
    assert first.shape == (6, 1, 24, 24)
    assert second.shape == (18, 1, 24, 24)
    assert not torch.equal(second[:6], second[6:12])


def test_same_seed_same_pairs() -> None:
    x = images(6, 1, 28, 28)
    for a, b in zip(
        image_views(MNIST, x, ("grey",), Draw(7)), image_views(MNIST, x, ("grey",), Draw(7)), strict=True
    ):
        assert torch.equal(a, b)


@given(side=st.integers(2, 12), top=st.integers(0, 4), left=st.integers(0, 3), size=st.integers(2, 20))
def test_crops_are_resized_as_if_cut_out_first(side: int, top: int, left: int, size: int) -> None:
    x = images(2, 3, 16, 15).double()
    cropped = crop_and_resize(x, torch.tensor([[top, left]]).expand(2, 2), torch.full((2,), side), size)
    cut = x[..., top : top + side, left : left + side]
    expected = torch.nn.functional.interpolate(cut, (size, size), mode="bilinear", align_corners=False)
    torch.testing.assert_close(cropped, expected, atol=1e-9, rtol=0)


def test_evaluation_looks_at_the_centre() -> None:
    x = images(2, 3, 96, 96)
    pairs = ImagePairs(64, 64, (64,))
    torch.testing.assert_close(central_views(pairs, x), x[..., 16:80, 16:80], atol=1e-5, rtol=0)
    still = ImagePairs(64, 64, (64,), centred=1.0, flip=0.0, photometry=STILL)
    torch.testing.assert_close(
        image_views(still, x, RGBI[:3], Draw(0))[0], x[..., 16:80, 16:80], atol=1e-5, rtol=0
    )


def test_random_crops_reach_every_corner() -> None:
    pairs = ImagePairs(2, 2, (2,), flip=0.0, photometry=STILL)
    x = torch.arange(16.0).view(1, 1, 4, 4).expand(300, 1, 4, 4)
    _, second = image_views(pairs, x, ("nir",), Draw(0))
    assert {round(float(v)) for v in second[:, 0, 0, 0]} == {0, 1, 2, 4, 5, 6, 8, 9, 10}


def spread(views: torch.Tensor, axis: int) -> torch.Tensor:
    """Standard deviation in pixels of each view's ink along an axis (0: rows)."""
    ink = views[:, 0].sum(2 - axis)
    place = torch.arange(ink.shape[1], dtype=ink.dtype)
    centre = (ink * place).sum(1, keepdim=True) / ink.sum(1, keepdim=True)
    return ((ink * (place - centre) ** 2).sum(1) / ink.sum(1)).sqrt()


def test_second_views_are_stretched_along_each_axis_by_itself() -> None:
    x = torch.zeros(200, 1, 41, 41)
    x[..., 15:26, 15:26] = 1
    pairs = ImagePairs(41, 41, (41,), stretch=0.3, rotated=1.0, flip=0.0, photometry=STILL)
    _, second = image_views(pairs, x, ("nir",), Draw(0))
    heights, widths = (spread(second, axis) / spread(x[:1], axis) for axis in (0, 1))
    for factors in (heights, widths):
        assert torch.exp(torch.tensor(-0.35)) < factors.min() < 0.8
        assert 1.25 < factors.max() < torch.exp(torch.tensor(0.35))
    assert abs(torch.corrcoef(torch.stack([heights, widths]))[0, 1]) < 0.2


def test_second_views_are_slanted_without_leaning_over() -> None:
    x = torch.zeros(200, 1, 41, 41)
    x[..., 8:33, 20] = 1
    pairs = ImagePairs(41, 41, (41,), shear=20.0, rotated=1.0, flip=0.0, photometry=STILL)
    _, second = image_views(pairs, x, ("nir",), Draw(0))
    torch.testing.assert_close(spread(second, 0), spread(x, 0), atol=0.2, rtol=0)
    places = torch.arange(41.0)
    top, bottom = ((second[:, 0, row] * places).sum(1) / second[:, 0, row].sum(1) for row in (10, 30))
    slants = torch.rad2deg(torch.atan((bottom - top) / 20))
    assert 15 < slants.max() < 21
    assert -21 < slants.min() < -15


def test_a_seed_means_the_same_views_whether_numbers_are_sent_one_by_one_or_together() -> None:
    one_by_one, together = Draw(7), Draw(7)
    drawn = [one_by_one.uniform((3, 1), -1.0, 1.0), one_by_one.orders(3, 4), one_by_one.chance(3, 0.5)]
    host = together.on_host()
    sent = together.send((host.uniform((3, 1), -1.0, 1.0), (host.orders(3, 4), None), host.chance(3, 0.5)))
    assert torch.equal(sent[0], drawn[0])
    assert torch.equal(sent[1][0], drawn[1])
    assert torch.equal(sent[2], drawn[2])
    assert one_by_one.seed() == together.seed()


def test_numbers_of_all_types_and_sizes_arrive_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """`meta` stands for a device; what is copied to it is kept on the CPU to look at."""
    copies = []

    def keep(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        copies.append(device.type)
        return tensor

    monkeypatch.setattr("iic_train.views.random_numbers.to_device", keep)
    sent = (
        torch.tensor([True, False, True]),
        (torch.rand(5, 1, 2), None, torch.arange(7).view(7, 1)),
        (1, 2),
        torch.zeros(0, 3),
    )
    arrived = Draw(0, "meta").send(sent)
    assert copies == ["meta"]
    assert torch.equal(arrived[0], sent[0])
    assert torch.equal(arrived[1][0], sent[1][0])
    assert torch.equal(arrived[1][2], sent[1][2])
    assert arrived[1][1] is None
    assert arrived[2] == (1, 2)
    assert arrived[3].shape == (0, 3)
