"""Where training starts: head B of a `bank` network at k-means centres, found without labels.

k-means sees each pixel's values, their means at two wider scales and the texture there. Each scale is whitened in
part, so that no band counts twice and noise is not blown up. Pixels are gathered into many small cells first, and a
cell counts less than its number of pixels, so that what covers most of a scene does not take most of the centres. A
linear head whose logits are negative squared distances to the centres is that k-means; a few steps of the IIC objective
on neighbouring pixels then move its borders, with the masses of the clusters held.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from iic_geotools.scene.multiscale import LEAST_DEVIATION
from iic_geotools.tiling import Rect
from iic_train.data.scene_reader import SceneReader, Scenes
from iic_train.evaluation.kmeans import assign, kmeans
from iic_train.losses.objective import iic_loss_at_masses
from iic_train.models.bank import Bank
from iic_train.models.networks import Network

SATURATED = 20.0
"""Largest logit, at a centre, between its own cluster and the nearest other one: a probability of 2e-9."""


# Compared on 16 labelled scenes, checked on 18 others (docs/own-scene-log.md).
WINDOWS, SIDE = 48, 128
"""Number of windows of the scenes that are sampled, and their side in pixels."""
PAIRS, RADIUS = 30_000, 2
"""Number of pairs of neighbouring pixels that are sampled, and the largest displacement between the two."""
POINTS = 15_000
"""Number of pixels that are gathered into cells."""
CELLS, LEAST_SIZE = 200, 20
"""Number of cells, and the least number of pixels per cell."""
CROWDING = 0.75
"""A cell weighs its number of pixels to this power; 1 gives the k-means of the pixels, 0 makes all cells alike."""
STARTS = 20
"""Number of starts of k-means, of which the one of least inertia is kept."""
WHITENING = 0.5
"""Power to which each scale is whitened, from 0 (not at all) to 1 (fully)."""
TEXTURE = 0.5
"""Weight of texture; 1 is the variance of one scale's values."""
SHARPNESS = 2.0
"""Inverse temperature of the probabilities, in units of the mean squared distance to the centres."""
STEPS, BATCH = 50, 2_000
"""Number of steps of the IIC objective, and of pairs per step."""
RATE, WARMUP = 2e-3, 20
"""Learning rate of Adam, and the number of steps over which it rises to that."""
HELD = 10.0
"""Weight of the KL term that fixes the cluster sizes."""


@dataclass(frozen=True)
class Window:
    """A window of a scene.

    Attributes:
        pixels: Raw values `[1, bands, H, W]`.
        valid: Which pixels hold data, `[H, W]`.
    """

    pixels: Tensor
    valid: Tensor

    def to(self, device: torch.device) -> "Window":
        """Return the window on a device."""
        return Window(self.pixels.to(device), self.valid.to(device))


def sample_windows(scenes: Scenes, seed: int) -> list[Window]:
    """Cut windows out of the scenes at random, more of them from larger scenes."""
    rng = np.random.default_rng(seed)
    areas = np.array([height * width for height, width in scenes.shapes], float)
    reader = SceneReader(scenes)
    windows: list[Window] = []
    for _ in range(4 * WINDOWS):
        level = int(rng.choice(len(areas), p=areas / areas.sum()))
        height, width = scenes.shapes[level]
        rows, columns = min(SIDE, height), min(SIDE, width)
        rect = Rect(
            int(rng.integers(width - columns + 1)), int(rng.integers(height - rows + 1)), columns, rows
        )
        read = reader.read(level, rect)
        valid = np.ones((rows, columns), bool) if read.valid is None else read.valid
        if valid.any():
            windows.append(Window(torch.from_numpy(read.values)[None], torch.from_numpy(valid)))
        if len(windows) == WINDOWS:
            break
    reader.close()
    return windows


def start_network(network: Network, windows: Sequence[Window], seed: int) -> None:
    """Fit the bank of a network to windows of its scenes and start head B at k-means centres."""
    bank = network.trunk
    assert isinstance(bank, Bank)
    network.eval()
    scaled = [network.scale(window.pixels) for window in windows]
    bank.standardise(scaled)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        pairs = [
            _pairs(network.features(view)[0], window.valid, -(-PAIRS // len(windows)), generator)
            for view, window in zip(scaled, windows, strict=True)
        ]
    first, second = (torch.cat(side) for side in zip(*pairs, strict=True))
    mean, basis = _whitening(first, bank)
    first, second = (first - mean) @ basis, (second - mean) @ basis
    points = first[torch.randperm(len(first), generator=generator)[:POINTS]]
    centres = _centres(points, network.config.clusters_b, generator)
    head = _refined(_distances(centres, points), first, second, generator)
    _put(network, head, mean, basis)


def _pairs(features: Tensor, valid: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw pixels of a window and a neighbour of each, features `[count, C]` twice."""
    height, width = valid.shape
    places = valid.flatten().nonzero().squeeze(1)
    drawn = places[torch.randint(len(places), (count,), generator=generator)]
    shifts = torch.randint(-RADIUS, RADIUS + 1, (2, count), generator=generator)
    rows = (drawn // width + shifts[0]).clamp(0, height - 1)
    columns = (drawn % width + shifts[1]).clamp(0, width - 1)
    kept = valid[rows, columns]
    flat = features.flatten(1).T
    return flat[drawn[kept]], flat[(rows * width + columns)[kept]]


def _whitening(features: Tensor, bank: Bank) -> tuple[Tensor, Tensor]:
    """Return the mean, and a linear map to the space in which k-means works.

    Each scale has a total variance of 1 there, and texture `TEXTURE` of it.
    """
    mean = features.mean(0)
    factor = bank.factor.flatten()
    inverse = torch.where(factor > 0, 1 / factor, 0.0)  # 0 for constant channels
    columns = []
    for group in bank.clustered:
        values = (features[:, group] - mean[group]) * inverse[group]
        variances, axes = torch.linalg.eigh(values.T @ values / len(values))
        least = max(1e-3 * float(variances.max()), 1e-12)
        axes = axes * variances.clamp_min(least) ** (-WHITENING / 2)
        axes = axes / (values @ axes).pow(2).sum(1).mean().sqrt().clamp_min(1e-6)
        columns.append(_embedded(axes * inverse[group, None], torch.arange(bank.out_channels)[group], bank))
    texture = torch.tensor(bank.texture)
    spread = features[:, texture].std(0).clamp_min(LEAST_DEVIATION)
    scaled = torch.diag(TEXTURE / spread) / math.sqrt(len(texture))
    columns.append(_embedded(scaled, texture, bank))
    return mean, torch.cat(columns, 1) / math.sqrt(len(bank.clustered))


def _centres(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Return centres of clusters by k-means over small cells of points."""
    count = max(clusters, min(CELLS, len(points) // LEAST_SIZE))
    cells = kmeans(points, count, generator, restarts=1, steps=15)
    sizes = torch.bincount(assign(points, cells)[0], minlength=count)
    filled = sizes > 0
    if int(filled.sum()) < clusters:  # fewer different pixels than clusters
        filled[:] = True
    weights = sizes[filled].float() ** CROWDING
    return kmeans(cells[filled], clusters, generator, restarts=STARTS, weights=weights)


def _embedded(block: Tensor, channels: Tensor, bank: Bank) -> Tensor:
    whole = torch.zeros(bank.out_channels, block.shape[1])
    whole[channels] = block
    return whole


def _distances(centres: Tensor, points: Tensor) -> nn.Linear:
    """Return a linear head whose softmax is that of negative squared distances to the centres."""
    spread = torch.cdist(points, centres).min(1).values.pow(2).mean()
    apart = torch.cdist(centres, centres).fill_diagonal_(math.inf).min(1).values.pow(2)
    # Where clusters are tight, probabilities are saturated long before weights are large.
    sharpness = min(SHARPNESS / max(float(spread), 1e-9), SATURATED / max(float(apart.median()), 1e-9))
    head = nn.Linear(centres.shape[1], len(centres))
    with torch.no_grad():
        head.weight.copy_(2 * sharpness * centres)
        head.bias.copy_(-sharpness * centres.pow(2).sum(1))
    return head


def _refined(head: nn.Linear, first: Tensor, second: Tensor, generator: torch.Generator) -> nn.Linear:
    """Move the borders of the clusters by the IIC objective on pairs of neighbours."""
    optimiser = torch.optim.Adam(head.parameters(), lr=RATE)
    with torch.no_grad():
        masses = head(first).softmax(1).mean(0)
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / WARMUP)
        drawn = torch.randint(len(first), (BATCH,), generator=generator)
        z, z2 = head(first[drawn]).softmax(1), head(second[drawn]).softmax(1)
        optimiser.zero_grad()
        iic_loss_at_masses(z, z2, masses, HELD).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return head


@torch.no_grad()
def _put(network: Network, head: nn.Linear, mean: Tensor, basis: Tensor) -> None:
    """Write a head on whitened points as every sub-head of head B, which sees features."""
    served = network.heads["b"]
    assert isinstance(served, nn.Conv2d)
    assert served.bias is not None
    weight = head.weight @ basis.T
    bias = head.bias - weight @ mean
    count = network.config.sub_heads
    served.weight.copy_(weight.repeat(count, 1)[:, :, None, None])
    served.bias.copy_(bias.repeat(count))
