"""A trunk that puts learnt features of a pixel's close surroundings next to a fixed bank of wider ones.

The bank (`iic_geotools.scene.multiscale`) holds the square roots of the bands, their means in squares of 3, 9, 27 and
81 pixels and the texture there; here also the means of the learnt features. Nothing in it is trained: its constants are
found once, over a sample of the scenes. A linear head on the bank starts at k-means centres, and a linear head on all
features is what a few clicks fit.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.scene.multiscale import (
    INDEX_OFFSET,
    LEAST_DEVIATION,
    LEAST_SPREAD,
    LIMIT,
    OFFSET,
    REACH,
    ROOTS,
    SIDES,
    SMOOTH,
    TEXTURE,
)
from iic_train.models.geometry import Geometry
from iic_train.models.layers import conv_norm_relu

CLUSTERED = 2
"""Number of levels, from the finest, that k-means sees: wider means move the borders of its clusters."""
AXES = 8
"""Number of principal axes of the learnt features whose means are in the bank."""


class Bank(nn.Module):
    """Learnt features, followed by the bank.

    Args:
        bands: Names of the input bands.
        widths: Number of channels of each layer of the learnt features.
    """

    def __init__(self, bands: Sequence[str], widths: Sequence[int]) -> None:
        super().__init__()
        befores = (len(bands), *widths[:-1])
        self.learnt = nn.Sequential(*map(conv_norm_relu, befores, widths, (3, 3, 1)))
        self.learnt_features = widths[-1]
        self.indexes = [bands.index(name) for name in ("nir", "red")] if {"red", "nir"} <= set(bands) else []
        self.bands = len(bands)
        self.own = self.bands + bool(self.indexes)
        self.textures = 1 + bool(self.indexes)
        per_level = self.own + self.textures + AXES
        self.out_channels = self.learnt_features + self.own + len(SIDES) * per_level
        self.mean: Tensor
        self.deviation: Tensor
        self.centre: Tensor
        self.axes: Tensor
        self.offset: Tensor
        self.factor: Tensor
        self.kernel: Tensor
        self.register_buffer("mean", torch.zeros(self.bands, 1, 1))
        self.register_buffer("deviation", torch.ones(self.bands, 1, 1))
        self.register_buffer("centre", torch.zeros(self.learnt_features, 1, 1))
        self.register_buffer("axes", torch.zeros(AXES, self.learnt_features, 1, 1))
        self.register_buffer("offset", torch.zeros(self.out_channels, 1, 1))
        self.register_buffer("factor", torch.ones(self.out_channels, 1, 1))
        summed = self.own + 1 + AXES
        self.register_buffer("kernel", torch.full((summed, 1, 3, 1), 1 / 3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, out_channels, H, W]` of scaled bands."""
        learnt = self.learnt(x)
        return (torch.cat([learnt, *self.wide(x, learnt)], 1) - self.offset) * self.factor

    def wide(self, x: Tensor, learnt: Tensor) -> list[Tensor]:
        """Return the bank, not yet standardised: own values, then means and deviations of each level."""
        values = ((self.roots(x) - self.mean) * self.spread_factor()).clamp(-LIMIT, LIMIT)
        own = [values]
        if self.indexes:
            nir, red = (x[:, i : i + 1] for i in self.indexes)
            own.append((nir - red) / (nir.abs() + red.abs() + INDEX_OFFSET))
        axes = F.conv2d(learnt - self.centre, self.axes)
        # Axes first, so that what has texture, index and brightness, is last.
        maps = torch.cat([axes, *own, values.mean(1, keepdim=True)], 1)
        features, weight = own, torch.ones_like(x[:, :1])
        means, energy = maps, torch.zeros_like(maps[:, -self.textures :])
        for level in range(len(SIDES)):
            # Outside the scene nothing is averaged: the same sums over ones say how much of a square is inside.
            maps, wider = self._mean(maps, 3**level), self._mean(weight, 3**level)
            finer, means = means, maps / wider
            if level < len(SIDES) - 1:
                energy = energy + weight * (finer - means)[:, -self.textures :].square()
            energy, weight = self._mean(energy, 3**level), wider
            texture = energy / weight + SMOOTH**2
            for _ in range(ROOTS):
                texture = texture.sqrt()
            features = [*features, means[:, AXES:-1], means[:, :AXES], TEXTURE * texture]
        return features

    def roots(self, x: Tensor) -> Tensor:
        """Return the square roots of the bands, not yet standardised."""
        return (x + OFFSET).clamp_min(0.0).sqrt()

    def spread_factor(self) -> Tensor:
        """Return the inverse deviation of the bands, 0 for those that are constant."""
        return torch.where(self.deviation > LEAST_SPREAD, 1 / self.deviation.clamp_min(LEAST_SPREAD), 0.0)

    @property
    def feature_groups(self) -> list[tuple[int, int, bool]]:
        """Kinds of the channels, in order: how many, the side of the squares they describe, whether they are learnt."""
        groups = [(self.learnt_features, 1, True), (self.own, 1, False)]
        for side in SIDES:
            groups += [(self.own, side, False), (AXES, side, True), (self.textures, side, False)]
        return groups

    @property
    def clustered(self) -> list[slice]:
        """Channels that k-means sees: the bands, their means at the first levels, and last the texture there."""
        own, per_level = self.learnt_features, self.own + self.textures + AXES
        first = own + self.own
        levels = [first + level * per_level for level in range(CLUSTERED)]
        return [slice(start, start + self.bands) for start in (own, *levels)]

    @property
    def texture(self) -> list[int]:
        """Channels of the texture of brightness at the levels that k-means sees."""
        per_level = self.own + self.textures + AXES
        first = self.learnt_features + self.own + per_level - 1
        return [first + level * per_level for level in range(CLUSTERED)]

    @torch.no_grad()
    def standardise(self, windows: Sequence[Tensor]) -> None:
        """Find all constants of the bank over scaled windows `[N, bands, H, W]`; learnt features stay as they are."""
        roots = torch.cat([self.roots(x).transpose(0, 1).flatten(1) for x in windows], 1).double()
        self.mean.copy_(roots.mean(1).view(-1, 1, 1))
        self.deviation.copy_(roots.std(1).view(-1, 1, 1))
        self._take_axes(windows)
        self._take_units(windows, torch.ones(self.out_channels - self.learnt_features, dtype=torch.bool))

    @torch.no_grad()
    def calibrate(self, windows: Sequence[Tensor]) -> None:
        """Recompute the principal axes of the learnt features, and what brings their means to unit variance.

        All other constants stay, because heads were fitted to the channels that they make.
        """
        self._take_axes(windows)
        self._take_units(windows, self._pooled_axes())

    def _take_axes(self, windows: Sequence[Tensor]) -> None:
        learnt = torch.cat([self.learnt(x).transpose(0, 1).flatten(1) for x in windows], 1).double()
        self.centre.copy_(learnt.mean(1).view(-1, 1, 1))
        axes = torch.linalg.eigh(torch.cov(learnt)).eigenvectors.flip(1)[:, :AXES].T
        # The sign of an axis is arbitrary: its largest entry is made positive, so that machines agree.
        axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
        self.axes.copy_(axes[:, :, None, None])

    def _take_units(self, windows: Sequence[Tensor], channels: Tensor) -> None:
        """Bring these channels of the bank to mean 0 and variance 1."""
        features = torch.cat(
            [
                torch.cat(self.wide(x, self.learnt(x)), 1)[:, channels].transpose(0, 1).flatten(1)
                for x in windows
            ],
            1,
        )
        places = self.learnt_features + channels.nonzero().squeeze(1)
        self.offset[places] = features.mean(1).view(-1, 1, 1)
        deviation = features.std(1).view(-1, 1, 1)
        self.factor[places] = torch.where(
            deviation > LEAST_DEVIATION, 1 / deviation.clamp_min(LEAST_DEVIATION), 0.0
        )

    def geometry(self) -> Geometry:
        """Return how far its features see: the learnt ones and then the widest square of their means."""
        reach = max(REACH, 2 + SIDES[-1] // 2)
        return Geometry(1, 1, 2 * reach + 1, reach, reach)

    def _pooled_axes(self) -> Tensor:
        """Return which channels of the bank are means of learnt features."""
        per_level = self.own + self.textures + AXES
        channels = torch.zeros(self.own + len(SIDES) * per_level, dtype=torch.bool)
        for level in range(len(SIDES)):
            first = self.own + level * per_level + self.own
            channels[first : first + AXES] = True
        return channels

    def _mean(self, maps: Tensor, dilation: int) -> Tensor:
        groups = maps.shape[1]
        kernel = self.kernel[:groups].to(maps.dtype)
        maps = F.conv2d(maps, kernel, padding=(dilation, 0), dilation=dilation, groups=groups)
        return F.conv2d(maps, kernel.transpose(2, 3), padding=(0, dilation), dilation=dilation, groups=groups)
