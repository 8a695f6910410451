"""Pairs of views of the same content, made in batches on the device.

Dense pairs: the second view is changed photometrically and moved by a `Move`, whose `undo` brings
probability maps back onto the first view's pixels. Flips and quarter turns are exact; affine moves are
bilinear, with zeros where the other view did not look.
Image pairs: crops, rotations and flips of whole images, which need no way back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from iic_train.photometry import Draw, Photometry

POTSDAM_JITTER = Photometry(0.1, 0.1, 0.1, 0.1)
STRONG_JITTER = Photometry(0.4, 0.4, 0.4, 0.125)
"""The two published strengths: Potsdam's, and that of everything else."""


@dataclass(frozen=True)
class Move:
    """A geometric change of each image of a batch: affine, then transposition, then flips; None is no change.

    Attributes:
        transposed: `[N]`, which images have rows and columns exchanged.
        flipped_x: `[N]`, which are flipped horizontally.
        flipped_y: `[N]`, which are flipped vertically.
        matrix: `[N, 2, 2]`, where a moved pixel comes from, in (x, y) counted from the image's centre.
    """

    transposed: Tensor | None = None
    flipped_x: Tensor | None = None
    flipped_y: Tensor | None = None
    matrix: Tensor | None = None

    def apply(self, images: Tensor) -> Tensor:
        """Move images `[N, C, H, W]`."""
        if self.matrix is not None:
            images = resample(images, self.matrix)
        return self._flip_y(self._flip_x(self._transpose(images)))

    def undo(self, maps: Tensor) -> Tensor:
        """Bring maps `[N, C, H, W]` of moved images back; zero where there is nothing to bring."""
        maps = self._transpose(self._flip_x(self._flip_y(maps)))
        return maps if self.matrix is None else resample(maps, torch.linalg.inv(self.matrix))

    def _transpose(self, images: Tensor) -> Tensor:
        if self.transposed is None:
            return images
        if images.shape[-2] != images.shape[-1]:
            raise ValueError("Quarter turns need square images.")
        return _where(self.transposed, images.transpose(-2, -1), images)

    def _flip_x(self, images: Tensor) -> Tensor:
        return images if self.flipped_x is None else _where(self.flipped_x, images.flip(-1), images)

    def _flip_y(self, images: Tensor) -> Tensor:
        return images if self.flipped_y is None else _where(self.flipped_y, images.flip(-2), images)


def _where(chosen: Tensor, changed: Tensor, images: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, 1, 1, 1), changed, images)


def resample(images: Tensor, matrix: Tensor) -> Tensor:
    """Sample images bilinearly at `matrix @ position`, positions being pixels counted from the centre."""
    height, width = images.shape[-2:]
    shape = torch.tensor([width, height], device=images.device, dtype=matrix.dtype)
    normalised = matrix * (shape[None, None, :] / shape[None, :, None])
    theta = torch.cat([normalised, torch.zeros_like(normalised[..., :1])], dim=2).to(images.dtype)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@dataclass(frozen=True)
class DensePairs:
    """How pairs for segmentation are made; the defaults are those published for Potsdam.

    Attributes:
        photometry: Changes of the second view's values; by default of its colour bands only.
        both: Change the first view's values too, independently.
        flip: Probability of a horizontal flip.
        flip_vertical: Probability of a vertical flip.
        turn: Probability of a transposition; with both flips at 0.5 all eight flips and turns are equally likely.
        rotation: Largest rotation in degrees.
        shear: Largest shear in degrees.
        zoom: Largest relative change of size.
    """

    photometry: Photometry = POTSDAM_JITTER
    both: bool = False
    flip: float = 0.5
    flip_vertical: float = 0.0
    turn: float = 0.0
    rotation: float = 0.0
    shear: float = 0.0
    zoom: float = 0.0

    def __call__(self, images: Tensor, channels: Sequence[str], draw: Draw) -> tuple[Tensor, Tensor, Move]:
        """Two views of scaled images `[N, C, H, W]` and the move between them."""
        move = self._move(len(images), draw)
        first = self.photometry(images, channels, draw) if self.both else images
        return first, move.apply(self.photometry(images, channels, draw)), move

    def _move(self, count: int, draw: Draw) -> Move:
        transposed, flipped_x, flipped_y = (
            draw.chance(count, probability) if probability else None
            for probability in (self.turn, self.flip, self.flip_vertical)
        )
        return Move(transposed, flipped_x, flipped_y, self._matrix(count, draw))

    def _matrix(self, count: int, draw: Draw) -> Tensor | None:
        if not (self.rotation or self.shear or self.zoom):
            return None
        angle, shear = (
            draw.uniform((count,), -limit, limit) * math.pi / 180 for limit in (self.rotation, self.shear)
        )
        zoom = draw.uniform((count,), 1 - self.zoom, 1 + self.zoom)
        rows = [angle.cos(), -(angle + shear).sin(), angle.sin(), (angle + shear).cos()]
        return torch.stack([zoom * value for value in rows], 1).view(-1, 2, 2)


@dataclass(frozen=True)
class ImagePairs:
    """How pairs for clustering are made.

    Attributes:
        size: Side of the views.
        crop: Side of the square that the first view and evaluation take from an image.
        crops: Sides, equally likely, of the square that the second view takes.
        centred: Probability that the first view takes the central square rather than a random one.
        rotation: Largest rotation of the second view in degrees.
        shear: Its largest slant in degrees.
        stretch: Largest logarithm of the factors by which it is wider and higher, each drawn by itself.
        rotated: Probability that it is rotated, slanted and stretched at all.
        flip: Probability that the second view is flipped horizontally.
        photometry: Changes of the second view's values.
    """

    size: int
    crop: int
    crops: tuple[int, ...]
    centred: float = 0.0
    rotation: float = 0.0
    shear: float = 0.0
    stretch: float = 0.0
    rotated: float = 0.5
    flip: float = 0.5
    photometry: Photometry = STRONG_JITTER

    def __call__(
        self, images: Tensor, channels: Sequence[str], draw: Draw, repeats: int = 1
    ) -> tuple[Tensor, Tensor]:
        """The first views `[N, C, size, size]` and `[repeats * N, ...]` second ones, in `repeats` rounds."""
        count = len(images)
        sides = torch.full((count,), self.crop, device=images.device)
        corners = self._corners(images, sides, draw)
        centre = draw.chance(count, self.centred)
        corners = torch.where(centre[:, None], self._central(images), corners)
        first = crop_and_resize(images, corners, sides, self.size)
        return first, torch.cat([self._second(images, channels, draw) for _ in range(repeats)])

    def evaluation(self, images: Tensor) -> Tensor:
        """The central square, resized: what evaluation and serving look at."""
        sides = torch.full((len(images),), self.crop, device=images.device)
        return crop_and_resize(images, self._central(images).expand(len(images), 2), sides, self.size)

    def _second(self, images: Tensor, channels: Sequence[str], draw: Draw) -> Tensor:
        count = len(images)
        if self.rotation or self.shear or self.stretch:
            images = _where(
                draw.chance(count, self.rotated), resample(images, self._bend(count, draw)), images
            )
        choices = torch.tensor(self.crops, device=images.device)
        sides = choices[draw.integers(count, 0, len(self.crops))]
        view = crop_and_resize(images, self._corners(images, sides, draw), sides, self.size)
        view = _where(draw.chance(count, self.flip), view.flip(-1), view)
        return self.photometry(view, channels, draw)

    def _bend(self, count: int, draw: Draw) -> Tensor:
        """Rotations after slants after stretches, `[N, 2, 2]`."""
        angle, slant = (
            draw.uniform((count,), -limit, limit) * math.pi / 180 for limit in (self.rotation, self.shear)
        )
        width, height = draw.uniform((2, count), -self.stretch, self.stretch).exp()
        upright = torch.stack([width, slant.tan() * height, torch.zeros_like(width), height], 1)
        turns = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1)
        return turns.view(-1, 2, 2) @ upright.view(-1, 2, 2)

    def _corners(self, images: Tensor, sides: Tensor, draw: Draw) -> Tensor:
        """Row and column of the first pixel of random squares, `[N, 2]`."""
        room = torch.tensor(images.shape[-2:], device=images.device) - sides[:, None] + 1
        return (draw.uniform((len(images), 2), 0.0, 1.0) * room).floor().minimum(room - 1).long()

    def _central(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        corner = [round((height - self.crop) / 2), round((width - self.crop) / 2)]
        return torch.tensor([corner], device=images.device)


def crop_and_resize(images: Tensor, corners: Tensor, sides: Tensor, size: int) -> Tensor:
    """Cut a square out of each image and resize it bilinearly; nothing outside the square is looked at."""
    height, width = images.shape[-2:]
    steps = (torch.arange(size, device=images.device, dtype=images.dtype) + 0.5) / size
    inside = (steps[None] * sides[:, None] - 0.5).clamp_min(0.0).minimum(sides[:, None] - 1.0)
    rows, columns = inside + corners[:, :1], inside + corners[:, 1:]
    x = ((2 * columns + 1) / width - 1)[:, None, :].expand(-1, size, -1)
    y = ((2 * rows + 1) / height - 1)[:, :, None].expand(-1, -1, size)
    grid = torch.stack([x, y], dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
