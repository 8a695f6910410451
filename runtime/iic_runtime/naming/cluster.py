"""Clusters of a scene without labels and without PyTorch: the function behind `iic-model cluster`.

k-means sees each pixel's values, their means at two wider scales and the texture there. Each scale is whitened in part,
so that no band counts twice and noise is not blown up. Pixels are gathered into many small cells first, and a cell
counts less than its number of pixels, so that what covers most of a scene does not take most of the centres. A linear
head whose logits are negative squared distances to the centres is that k-means; a few steps of the IIC objective on
neighbouring pixels then move its borders, with the masses of the clusters held. `iic-train rasters` starts from the
same, and goes on to learn features.

Several dates of a place are clustered in the space of what they have in common (canonical correlations). A network
with one hidden layer learns to recognise, on any one date, the cluster that all dates together say. It is refined by
the IIC objective, whose pairs are the same ground on two dates.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import MAX_CLASSES, MapClass, distinct_colours, spread_colours
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.files import check_writable, write_atomically
from iic_geotools.scene.bands import COLOURS, MOST_LISTED, canonical
from iic_geotools.scene.listing import find_scene
from iic_geotools.scene.multiscale import LEAST_DEVIATION
from iic_geotools.settings import PathLike, takes
from iic_geotools.work import OnProgress, Progress, silent
from iic_runtime.model.card import Card, FeatureGroup
from iic_runtime.model.file import put_card
from iic_runtime.model.onnx_head import Head, replace_head
from iic_runtime.naming.clicks import Observer, View
from iic_runtime.naming.dates import SCALES, Canonical, Dates, open_dates
from iic_runtime.naming.kmeans import kmeans, nearest
from iic_runtime.naming.regression import (
    Adam,
    Doubles,
    Floats,
    Ints,
    NetworkFit,
    fit_network,
    one_thread,
    softmax,
)
from iic_runtime.naming.stack import make_bank, open_outputs, prove
from iic_runtime.naming.suggestions import scene_files
from iic_runtime.options import ClusterSettings, ReadingSettings

_LOG = logging.getLogger(__name__)
PAIRS, RADIUS = 30_000, 2
"""Pairs of neighbouring pixels that are sampled, and the largest displacement between them."""
POINTS, CELLS, CELL_SIZE = 15_000, 200, 20
"""Pixels that are gathered into cells, number of cells, and least number of pixels per cell."""
CROWDING = 0.75
"""Power of a cell's number of pixels that it counts with."""
WHITENING, TEXTURE_WEIGHT = 0.5, 0.5
"""Power to which each scale is whitened, and weight of texture; 1 is the variance of one scale's values."""
SHARPNESS, SATURATED = 2.0, 20.0
"""Inverse temperature in units of the mean squared distance to the centres, and the largest logit between centres."""
STEPS, BATCH, RATE, WARMUP = 50, 2_000, 2e-3, 20
"""Steps of the IIC objective, pairs and learning rate of each, and the steps over which the rate rises."""
HELD = 10.0
"""Weight of the KL term that holds the masses of the clusters."""
DATE_STEPS, DATE_RATE = 150, 1e-3
"""Steps and learning rate of the IIC objective on pairs of dates."""
TAUGHT = NetworkFit(steps=1_000, noise=0.1, balance=False)
"""How one head learns the clusters of all dates."""
NETWORK_PARTS = ("hidden_weight", "hidden_bias", "hidden_out", "bias")
"""What a head that is a network learns."""
FLOOR = 2.220446e-16
COLOURED = 2_000
"""Pixels per view that the colours of clusters are taken from."""


@dataclass(frozen=True)
class Clustered:
    """A model whose classes are clusters of a scene.

    Attributes:
        path: The model file.
        card: Its card.
        shares: Share of the scene that each cluster takes, by a sample of it.
    """

    path: Path
    card: Card
    shares: tuple[float, ...]

    def sentence(self) -> str:
        """Describe the result in one line."""
        bands = self.card.bands
        named = ", ".join(bands) if len(bands) <= MOST_LISTED else f"{len(bands)} bands"
        return f"{self.path}: {len(self.shares)} clusters of {named}, found without labels"


@dataclass(frozen=True)
class ClusterArguments(ClusterSettings):
    """Arguments of `cluster_scene`."""

    scene: PathLike
    out: PathLike
    classes: int


@takes(ClusterArguments)
def cluster_scene(arguments: ClusterArguments) -> Clustered:
    """Find clusters of a scene without labels, and write a model that maps them.

    Args:
        scene: The scene, as `segment_raster` takes it; by default all of its bands that are not alpha are used. With
            `pair`, the first date.
        out: The model file, .onnx.
        classes: Number of clusters.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    out, classes = Path(arguments.out), arguments.classes
    if not 2 <= classes <= MAX_CLASSES:
        raise UsageError(f"`classes` must be 2 to {MAX_CLASSES}, not {classes}.")
    scenes = (arguments.scene, *arguments.pair)
    infos = [find_scene(scene, arguments.asset, arguments.mask) for scene in scenes]
    inputs = [file for info in infos for file in scene_files(info)]
    check_writable([(out, (".onnx",), "out")], inputs, overwrite=arguments.overwrite)
    reading = arguments.part(ReadingSettings).values()
    if arguments.pair:
        dates = open_dates(infos, device=arguments.device, threads=arguments.threads, **reading)
        stack, method = dates.stack, "canonical correlations of dates, refined by IIC"
        head, shares, colours = fit_date_clusters(dates, classes, arguments.seed, arguments.progress)
    else:
        stack, source = make_bank(infos[0], words=0, **reading)
        outputs = open_outputs(stack, arguments.device, arguments.threads)
        observer = Observer(outputs, source, source.grid or infos[0].grid, stack.card)
        method = "k-means on multi-scale features, refined by IIC"
        head, shares, colours = fit_clusters(observer, classes, arguments.seed, arguments.progress)
    card = replace(
        stack.card,
        name=out.stem,
        classes=tuple(MapClass(f"cluster {index}", colour) for index, colour in enumerate(colours)),
        origin=replace(
            stack.card.origin,
            chosen_by=method,
            data=", ".join(dict.fromkeys(Path(info.title).name for info in infos)),
        ),
    )
    content = put_card(replace_head(stack.content, head), card)
    prove(out, content)
    write_atomically(out, content)
    return Clustered(out, card, shares)


@one_thread()
def fit_clusters(
    observer: Observer, count: int, seed: int = 0, progress: OnProgress = silent
) -> tuple[Head, tuple[float, ...], list[str]]:
    """Return a head on raw features whose classes are clusters, the largest first, with their shares and colours.

    Args:
        progress: Called with reports of how far the work is.
    """
    rng = np.random.default_rng(seed)
    views = observer.spread_views(progress)
    share = -(-PAIRS // len(views))
    first, second = (
        np.concatenate(part) for part in zip(*(_pairs(v, share, rng) for v in views), strict=True)
    )
    if len(first) < count:
        raise SceneError(f"The scene holds too little data to find {count} clusters in.")
    mean, basis = _whitening(first, observer.card.features)
    first, second = (first - mean) @ basis, (second - mean) @ basis
    points = first[rng.permutation(len(first))[:POINTS]]
    centres = _centres(points, count, rng)
    matrix = _refined(_distances(centres, points), first, second, rng)
    masses = softmax(_logits(matrix, first)).mean(0)
    order = np.argsort(-masses, kind="stable")
    weight = (basis @ matrix[:-1, order]).T
    bias = matrix[-1, order] - weight @ mean
    progress(Progress("cluster", 1, 1))
    head = Head(weight.astype(np.float32), bias.astype(np.float32))
    return head, tuple(masses[order].tolist()), _true_colours(head, views, observer.card)


def _true_colours(head: Head, views: Sequence[View], card: Card) -> list[str]:
    """Return the mean colour of each cluster in a stretched picture of the scene, no two alike."""
    count, names = len(head.bias), [canonical(name) for name in card.bands]
    shown = [names.index(name) for name in COLOURS[:3] if name in names]
    if len(shown) < 3:
        return distinct_colours(count)
    samples = [view.sample(COLOURED, number) for number, view in enumerate(views)]
    features, values = (np.concatenate(part) for part in zip(*samples, strict=True))
    labels = head.logits(features).argmax(1)
    values = values[:, shown]
    low, high = np.percentile(values, (2, 98), axis=0)
    picture = 255 * np.clip((values - low) / np.maximum(high - low, 1e-9), 0, 1)
    means = [
        picture[labels == label].mean(0) if (labels == label).any() else picture.mean(0)
        for label in range(count)
    ]
    return spread_colours(["#{:02x}{:02x}{:02x}".format(*mean.round().astype(int)) for mean in means])


@one_thread()
def fit_date_clusters(
    dates: Dates, count: int, seed: int = 0, progress: OnProgress = silent
) -> tuple[Head, tuple[float, ...], list[str]]:
    """Return a head on raw features whose classes are clusters of the ground, the same on all dates; shares; colours.

    The colours are those of the first date.

    The other arguments are those of `fit_clusters`.
    """
    rng = np.random.default_rng(seed)
    samples = dates.sample(PAIRS, rng, progress)
    if len(samples[0]) < count:
        raise SceneError(f"The dates have too little data in common to find {count} clusters in.")
    owners, columns = joint_clusters(samples, dates.stack.card.features, count, rng)
    raw = np.concatenate(samples)
    mean, factor = raw[:, columns].mean(0), 1 / np.maximum(raw[:, columns].std(0), LEAST_DEVIATION)
    seen = [((sample[:, columns] - mean) * factor).astype(np.float32) for sample in samples]
    head = fit_network(
        np.concatenate(seen),
        np.tile(owners, len(samples)),
        np.ones(len(raw), np.float32),
        count,
        seed,
        TAUGHT,
    )
    head = refine_network(head, seen, rng)
    masses = softmax(head.logits(np.concatenate(seen))).mean(0, dtype=np.float64)
    head = _on_raw(head, mean, factor, columns, raw.shape[1])
    progress(Progress("cluster", 1, 1))
    order = np.argsort(-masses, kind="stable")
    head, views = head.take(order), dates.observers[0].spread_views()
    return head, tuple(masses[order].tolist()), _true_colours(head, views, dates.stack.card)


def joint_clusters(
    samples: Sequence[Doubles], groups: Sequence[FeatureGroup], count: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return the cluster of each place by all dates together, and the features that were clustered.

    Args:
        samples: Features `[N, F]` of the same places on each date.
    """
    canonical = Canonical.of(samples, groups)
    variates = [canonical.weighted(sample, date) for date, sample in enumerate(samples)]
    points = np.concatenate(variates)
    points = points[rng.permutation(len(points))[:POINTS]]
    matrix = _distances(_centres(points, count, rng), points)
    return np.sum([_logits(matrix, part) for part in variates], 0).argmax(1), canonical.columns


def _on_raw(head: Head, mean: Doubles, factor: Doubles, columns: Ints, size: int) -> Head:
    """Return a network on some standardised features as one on all raw features."""
    assert head.hidden_weight is not None
    assert head.hidden_bias is not None
    weight = np.zeros((len(head.hidden_bias), size))
    weight[:, columns] = head.hidden_weight * factor
    bias = head.hidden_bias - weight[:, columns] @ mean
    return replace(
        head,
        weight=np.zeros((head.classes, size), np.float32),
        hidden_weight=weight.astype(np.float32),
        hidden_bias=bias.astype(np.float32),
    )


def _pairs(view: View, count: int, rng: np.random.Generator) -> tuple[Doubles, Doubles]:
    """Draw pixels of a view and a neighbour of each, features `[count, F]` twice."""
    height, width = view.valid.shape
    rows, columns = np.nonzero(view.valid)
    drawn = rng.integers(0, max(1, len(rows)), count if len(rows) else 0)
    shifts = rng.integers(-RADIUS, RADIUS + 1, (2, len(drawn)))
    rows, columns = rows[drawn], columns[drawn]
    near_rows = np.clip(rows + shifts[0], 0, height - 1)
    near_columns = np.clip(columns + shifts[1], 0, width - 1)
    kept = view.valid[near_rows, near_columns]
    return (
        view.features[:, rows[kept], columns[kept]].T.astype(np.float64),
        view.features[:, near_rows[kept], near_columns[kept]].T.astype(np.float64),
    )


def _whitening(features: Doubles, groups: Sequence[FeatureGroup]) -> tuple[Doubles, Doubles]:
    """Return the mean, and a linear map to the space in which k-means works.

    Each scale has a total variance of 1 there, and texture `TEXTURE_WEIGHT` of it.
    """
    scales, textures = _clustered(groups)
    mean = features.mean(0)
    columns = []
    for scale in scales:
        values = features[:, scale] - mean[scale]
        variances, axes = np.linalg.eigh(values.T @ values / len(values))
        axes = axes * np.maximum(variances, max(1e-3 * variances.max(), 1e-12)) ** (-WHITENING / 2)
        axes = axes / max(np.sqrt(((values @ axes) ** 2).sum(1).mean()), 1e-6)
        columns.append(_embedded(axes, scale, features.shape[1]))
    spread = np.maximum(features[:, textures].std(0), LEAST_DEVIATION)
    scaled = np.diag(TEXTURE_WEIGHT / spread) / np.sqrt(len(textures))
    columns.append(_embedded(scaled, textures, features.shape[1]))
    return mean, np.concatenate(columns, 1) / np.sqrt(len(scales))


def _clustered(groups: Sequence[FeatureGroup]) -> tuple[list[Ints], Ints]:
    """Return the features of a bank that k-means sees: the bands at each scale, and the texture of brightness."""
    own = groups[0].size
    # A level has textures of brightness and, next to it, of the index, if there is one among the values.
    bands = own - (groups[1].size - own - 1)
    starts = np.cumsum([0, *(group.size for group in groups)])[:SCALES]
    scales = [np.arange(start, start + bands) for start in starts.tolist()]
    ends = np.cumsum([group.size for group in groups])[1:SCALES]
    return scales, ends - 1


def _embedded(block: Doubles, channels: Ints, size: int) -> Doubles:
    whole = np.zeros((size, block.shape[1]))
    whole[channels] = block
    return whole


def _centres(points: Doubles, count: int, rng: np.random.Generator) -> Doubles:
    """Return centres of clusters by k-means over small cells of points."""
    cells = max(count, min(CELLS, len(points) // CELL_SIZE))
    middles = kmeans(points, cells, np.ones(len(points)), rng, starts=1, steps=15)
    sizes = np.bincount(nearest(points, middles)[0], minlength=cells)
    filled = sizes > 0
    if filled.sum() < count:  # fewer different pixels than clusters
        filled[:] = True
    return kmeans(middles[filled], count, np.maximum(sizes[filled], 1e-3) ** CROWDING, rng)


def _distances(centres: Doubles, points: Doubles) -> Doubles:
    """Return a head `[D + 1, clusters]`, biases last, whose softmax is that of negative squared distances."""
    spread = nearest(points, centres)[1].mean()
    apart = ((centres[:, None] - centres) ** 2).sum(-1)
    np.fill_diagonal(apart, np.inf)
    # Where clusters are tight, probabilities are saturated long before weights are large.
    sharpness = min(SHARPNESS / max(spread, 1e-9), SATURATED / max(float(np.median(apart.min(1))), 1e-9))
    return np.asarray(sharpness * np.concatenate([2 * centres.T, -(centres**2).sum(1)[None]]))


def _logits(matrix: Doubles, points: Doubles) -> NDArray[np.float64]:
    return np.asarray(points @ matrix[:-1] + matrix[-1])


def _refined(matrix: Doubles, first: Doubles, second: Doubles, rng: np.random.Generator) -> Doubles:
    """Move the borders of the clusters by the IIC objective on pairs of neighbours."""
    masses = softmax(_logits(matrix, first)).mean(0)
    matrix = matrix.copy()
    optimiser = Adam([matrix])
    for step in range(STEPS):
        drawn = rng.integers(0, len(first), BATCH)
        _, gradient = iic_at_masses(matrix, first[drawn], second[drawn], masses)
        optimiser.step([gradient], RATE * min(1.0, (step + 1) / WARMUP))
    return matrix


def refine_network(head: Head, dates: Sequence[Floats], rng: np.random.Generator) -> Head:
    """Train a network by the IIC objective on the same places on two dates, with the masses of its clusters held.

    Args:
        dates: Standardised features `[N, F]` of the same places on each date.
    """
    masses = np.mean([softmax(head.logits(rows)).mean(0) for rows in dates], 0)
    parts = [getattr(head, name).copy() for name in NETWORK_PARTS]
    head = replace(head, **dict(zip(NETWORK_PARTS, parts, strict=True)))
    optimiser, pairs = Adam(parts), list(combinations(range(len(dates)), 2))
    for step in range(DATE_STEPS):
        drawn = rng.integers(0, len(dates[0]), BATCH)
        views = [dates[number][drawn] for number in pairs[rng.integers(len(pairs))]]
        views = [view + TAUGHT.noise * rng.standard_normal(view.shape, np.float32) for view in views]
        z, z2 = (softmax(head.logits(view)) for view in views)
        _, slopes = iic_slopes(z, z2, masses)
        gradients = [_network_gradient(head, view, slope) for view, slope in zip(views, slopes, strict=True)]
        rate = DATE_RATE * min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + np.cos(np.pi * (step + 1) / DATE_STEPS))
        optimiser.step([sum(part) for part in zip(*gradients, strict=True)], rate)
    return head


def _network_gradient(head: Head, rows: Floats, slope: Doubles) -> list[Doubles]:
    """Return the gradient of each of a network's `NETWORK_PARTS` from that of its logits."""
    hidden_weight, hidden_bias, hidden_out, _ = (getattr(head, name) for name in NETWORK_PARTS)
    units = np.maximum(rows @ hidden_weight.T + hidden_bias, 0)
    back = (slope @ hidden_out) * (units > 0)
    return [back.T @ rows, back.sum(0), slope.T @ units, slope.sum(0)]


def iic_at_masses(matrix: Doubles, first: Doubles, second: Doubles, masses: Doubles) -> tuple[float, Doubles]:
    """Return the IIC loss of a linear head on paired points, with the masses of clusters held, and its gradient.

    The entropy of the masses, which pulls towards clusters of equal size, is replaced by the divergence from `masses`.

    Args:
        matrix: The head `[D + 1, clusters]`, biases last.
        first: Points `[N, D]`.
        masses: Share of each cluster.
    """
    z, z2 = softmax(_logits(matrix, first)), softmax(_logits(matrix, second))
    loss, slopes = iic_slopes(z, z2, masses)
    gradient = np.zeros_like(matrix)
    for back, points in zip(slopes, (first, second), strict=True):
        gradient += np.concatenate([points.T @ back, back.sum(0)[None]])
    return loss, gradient


def iic_slopes(z: Doubles, z2: Doubles, masses: Doubles) -> tuple[float, tuple[Doubles, Doubles]]:
    """Return the IIC loss of paired probabilities, with the masses held, and its gradients by the logits of both."""
    joint = z.T @ z2 / len(z)
    joint = np.maximum((joint + joint.T) / 2, FLOOR)
    marginal = joint.sum(1)
    pull = np.log(marginal / np.maximum(masses, FLOOR))
    loss = (
        (marginal * np.log(marginal)).sum() - (joint * np.log(joint)).sum() + HELD * (marginal * pull).sum()
    )
    slope = (np.log(marginal) + HELD * (pull + 1))[:, None] - np.log(joint)
    slope = (slope + slope.T) / 2 / len(z)
    back, back2 = z2 @ slope, z @ slope
    return float(loss), (
        z * (back - (back * z).sum(1, keepdims=True)),
        z2 * (back2 - (back2 * z2).sum(1, keepdims=True)),
    )
