"""Does the IIC objective beat k-means on the bank on one scene? Ideas next to each other, everything else the same.

    python benchmarks/one_scene_ideas.py DATA [--scenes zone1 raleigh ...] [--ideas mlp ...] [--seeds 0 1 2]
    python benchmarks/one_scene_ideas.py DATA --flair3

Scenes, classes and numbers of clusters are those of `own_scene.py`: every idea sees the same 48 windows of a scene
through the same bank (single pixels, and squares of 3, 9, 27 and 81 pixels), starts at the same k-means, and is scored
on every fourth labelled pixel of the windows; clusters take the name of their majority class. Settings are the first
ones that were tried; none was chosen by what came out. With --flair3 the two scenes of `flair3.py` are one, with three
clusters that are matched to the classes one to one. Finished rows are kept in the cache.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, pstdev
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from own_scene import RAREST, SCENES, LabelledScene, share
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional as F

import iic_geotools
from iic_geotools.scene.multiscale import SIDES
from iic_geotools.scene.scene import Pixels
from iic_geotools.tiling import Rect
from iic_train import start
from iic_train.config import DataConfig
from iic_train.data.base import UNLABELLED
from iic_train.data.rasters import LabelRasters, parse_groups
from iic_train.data.scene_reader import SceneReader, Scenes
from iic_train.data.survey import survey_scenes
from iic_train.evaluation.evaluate import Confusion, many_to_one, one_to_one, score
from iic_train.losses.objective import clustering_counts, iic_loss_at_masses
from iic_train.models.bank import AXES, Bank
from iic_train.models.networks import Network
from iic_train.recipes.rasters import choose_reduction, raster_config
from iic_train.recipes.registry import FLAIR3_CLASSES

EVERY = 2
"""Every second row and column is scored."""
HIDDEN = 64
TEACH, STEPS, BATCH, RATE, NOISE = 200, 150, 1_000, 1e-3, 0.1
"""Steps that a network learns the start, steps of an objective, pairs of a step, learning rate, noise on features."""
HELD = start.HELD
REACH, DISPLACEMENTS = 10, 4
"""Largest displacement as in the paper, and how many of them a step takes."""
KEPT = 0.99
"""Part of an exponential mean that is kept at a step."""
GUIDED_RADII, GUIDED_EPS = (2, 6), 0.05
"""Radii of guided filters, and the variance in units of brightness's own below which they are means."""
MANY, LINES = 32, (11, 25)
"""Clusters that are merged, and lengths in pixels of the lines of top-hats."""
Logits = Callable[[Tensor], Tensor]
"""Features `[N, C]` to logits `[N, clusters]`."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Windows of a scene.

    Attributes:
        bank: Which channels are what, as k-means takes them.
        maps: Features `[windows, C, H, W]`, standardised.
        valid: Which pixels hold data `[windows, H, W]`.
        labels: Their classes.
        classes: Number of classes.
    """

    bank: Any
    maps: Tensor
    valid: Tensor
    labels: Tensor
    classes: int

    def pairs(self, count: int, reach: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw neighbouring pixels, as the start does."""
        previous, start.RADIUS = start.RADIUS, reach
        parts = [
            start._pairs(maps, valid, -(-count // len(self.maps)), generator)
            for maps, valid in zip(self.maps, self.valid, strict=True)
        ]
        start.RADIUS = previous
        return torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])


@dataclass(frozen=True, eq=False)
class Start:
    """k-means on the bank, from which every idea starts.

    Attributes:
        head: It, as a function of features.
        masses: Share of each cluster.
        first: Features that it was fitted to, and those of their neighbours.
    """

    head: Logits
    masses: Tensor
    first: Tensor
    second: Tensor


Fit = Callable[[Prepared, Start, torch.Generator], Logits | tuple[Prepared, Logits]]


def prepare(scene: LabelledScene, data: Path) -> Prepared:
    """Read windows of a scene as the defaults of `iic-train rasters` do, and compute its bank there."""
    paths, labels = (sorted(map(str, data.glob(pattern))) for pattern in (scene.scenes, scene.labels))
    present = [name for name in scene.classes if share(name, labels) >= RAREST]
    reduce = choose_reduction(iic_geotools.describe(paths[0]).grid.pixel_side)
    config = DataConfig("rasters", scenes=tuple(paths), labels=tuple(labels), reduce=reduce)
    survey = survey_scenes(config)
    truth = LabelRasters(labels, survey.scenes, parse_groups(present))
    network = Network(raster_config(survey, config, 2, {}).network).eval()
    bank = network.trunk
    assert isinstance(bank, Bank)
    windows, places = windows_and_places(survey.scenes)
    kept = _channels(bank)
    with torch.no_grad():
        scaled = [network.scale(window.pixels) for window in windows]
        bank.standardise(scaled)
        maps = [network.features(view)[0, kept] for view in scaled]
    classes = [torch.from_numpy(truth.read(*place)) for place in places]
    side = min(min(part.shape) for part in classes)
    shapes = slice(side), slice(side)
    return Prepared(
        _layout(bank, kept),
        torch.stack([part[:, *shapes] for part in maps]),
        torch.stack([window.valid[shapes] for window in windows]),
        torch.stack([part[shapes] for part in classes]),
        len(present),
    )


def windows_and_places(scenes: Scenes) -> tuple[list[start.Window], list[tuple[int, Rect]]]:
    """Return the windows that the start would see, and where they are."""
    places: list[tuple[int, Rect]] = []
    read = SceneReader.read

    def noted(reader: SceneReader, level: int, rect: Rect) -> Pixels:
        pixels = read(reader, level, rect)
        if pixels.valid is None or pixels.valid.any():
            places.append((level, rect))
        return pixels

    with patch.object(SceneReader, "read", noted):
        return start.sample_windows(scenes, 0), places


def _channels(bank: Bank) -> Tensor:
    """Return the channels of the bank that are not learnt."""
    kept = torch.ones(bank.out_channels, dtype=torch.bool)
    kept[: bank.learnt_features] = False
    first = bank.learnt_features + bank.own
    for level in range(len(SIDES)):
        begin = first + level * (bank.own + AXES + bank.textures) + bank.own
        kept[begin : begin + AXES] = False
    return kept.nonzero().squeeze(1)


def _layout(bank: Bank, kept: Tensor) -> Any:
    """Return what the start asks a bank, for the channels that are kept."""
    place = {int(channel): index for index, channel in enumerate(kept)}
    return SimpleNamespace(
        clustered=[slice(place[s.start], place[s.start] + s.stop - s.start) for s in bank.clustered],
        texture=[place[channel] for channel in bank.texture],
        factor=bank.factor.flatten()[kept],
        out_channels=len(kept),
    )


def k_means(
    prepared: Prepared, clusters: int, generator: torch.Generator
) -> tuple[Start, nn.Linear, Tensor, Tensor]:
    """Start clusters as `iic-train rasters` does, without the steps of the objective."""
    first, second = prepared.pairs(start.PAIRS, start.RADIUS, generator)
    centre, basis = start._whitening(first, prepared.bank)
    white = (first - centre) @ basis
    points = white[torch.randperm(len(white), generator=generator)[: start.POINTS]]
    head = start._distances(start._centres(points, clusters, generator), points)
    with torch.no_grad():
        masses = head(white).softmax(1).mean(0)
    return Start(_on(head, centre, basis), masses, first, second), head, centre, basis


def _on(head: nn.Module, centre: Tensor, basis: Tensor) -> Logits:
    return lambda features: cast(Tensor, head((features - centre) @ basis))


def taught(begin: Start, generator: torch.Generator) -> nn.Sequential:
    """Return a network with one hidden layer that says what k-means says."""
    features, clusters = begin.first.shape[1], len(begin.masses)
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
    network = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, clusters))
    with torch.no_grad():
        said = begin.head(begin.first).argmax(1)

    def loss(_: int) -> Tensor:
        drawn = torch.randint(len(said), (BATCH // 2,), generator=generator)
        return F.cross_entropy(network(_noisy(begin.first[drawn], generator)), said[drawn])

    _train(network, loss, TEACH, 4e-3)
    return network


def _noisy(features: Tensor, generator: torch.Generator) -> Tensor:
    return features + NOISE * torch.randn(features.shape, generator=generator)


def _train(network: nn.Module, loss: Callable[[int], Tensor], steps: int = STEPS, rate: float = RATE) -> None:
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for step in range(steps):
        optimiser.zero_grad()
        loss(step).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()


def _masses(network: nn.Module, begin: Start) -> Tensor:
    with torch.no_grad():
        masses: Tensor = network(begin.first).softmax(1).mean(0)
    return masses


def mlp_taught(prepared: Prepared, begin: Start, generator: torch.Generator) -> Logits:
    """A network that has learnt the start, and no more."""
    return taught(begin, generator)


def mlp(prepared: Prepared, begin: Start, generator: torch.Generator) -> Logits:
    """The same, refined by IIC on neighbours up to two pixels apart."""
    network = taught(begin, generator)
    masses = _masses(network, begin)

    def loss(_: int) -> Tensor:
        drawn = torch.randint(len(begin.first), (BATCH,), generator=generator)
        z, z2 = (network(_noisy(part[drawn], generator)).softmax(1) for part in (begin.first, begin.second))
        return iic_loss_at_masses(z, z2, masses, HELD)

    _train(network, loss)
    return network


def ema(prepared: Prepared, begin: Start, generator: torch.Generator) -> Logits:
    """A network that agrees with the exponential mean of its past on neighbours; the mean is the result."""
    network = taught(begin, generator)
    masses, teacher = _masses(network, begin), copy.deepcopy(network)

    def loss(_: int) -> Tensor:
        with torch.no_grad():
            for kept, new in zip(teacher.parameters(), network.parameters(), strict=True):
                kept.lerp_(new, 1 - KEPT)
        drawn = torch.randint(len(begin.first), (BATCH,), generator=generator)
        z = network(_noisy(begin.first[drawn], generator)).softmax(1)
        with torch.no_grad():
            z2 = teacher(begin.second[drawn]).softmax(1)
        return iic_loss_at_masses(z, z2, masses, HELD)

    _train(network, loss, 2 * STEPS)
    return teacher


def displacements(prepared: Prepared, begin: Start, generator: torch.Generator) -> Logits:
    """IIC as the paper segments: one joint per displacement up to ten pixels, the mean of their losses."""
    network = taught(begin, generator)
    masses = _masses(network, begin)
    flat = prepared.maps.permute(0, 2, 3, 1)
    count, height, width = prepared.valid.shape

    def loss(_: int) -> Tensor:
        total = torch.zeros(())
        for _ in range(DISPLACEMENTS):
            row, column = (int(torch.randint(-REACH, REACH + 1, (1,), generator=generator)) for _ in range(2))
            drawn = [
                torch.randint(n, (BATCH // DISPLACEMENTS,), generator=generator)
                for n in (count, height, width)
            ]
            moved = (drawn[1] + row).clamp(0, height - 1), (drawn[2] + column).clamp(0, width - 1)
            both = prepared.valid[drawn[0], drawn[1], drawn[2]] & prepared.valid[drawn[0], *moved]
            z = network(_noisy(flat[drawn[0], drawn[1], drawn[2]][both], generator)).softmax(1)
            z2 = network(_noisy(flat[drawn[0], *moved][both], generator)).softmax(1)
            total = total + iic_loss_at_masses(z, z2, masses, HELD)
        return total / DISPLACEMENTS

    _train(network, loss)
    return network


def info_seg(prepared: Prepared, begin: Start, generator: torch.Generator) -> Logits:
    """InfoSeg's objective: a pixel shares information with the mean of its class in its own window, not in others.

    Features are those of the hidden layer; the bound is that of Jensen and Shannon; masses are held as elsewhere.
    """
    network = taught(begin, generator)
    masses = _masses(network, begin)
    flat = prepared.maps.flatten(2).transpose(1, 2)
    valid = prepared.valid.flatten(1)
    windows, pixels = 8, 250

    def loss(_: int) -> Tensor:
        chosen = torch.randperm(len(flat), generator=generator)[:windows]
        places = torch.randint(flat.shape[1], (len(chosen), 2 * pixels), generator=generator)
        held = valid[chosen[:, None], places].float()
        hidden = network[1](network[0](_noisy(flat[chosen[:, None], places], generator)))
        z = network[2](hidden).softmax(2)
        hidden = F.normalize(hidden, dim=2)
        weights = z[:, :pixels] * held[:, :pixels, None]
        means = torch.einsum("npk,npf->nkf", weights, hidden[:, :pixels])
        means = F.normalize(means / weights.sum(1)[:, :, None].clamp_min(1e-6), dim=2)
        # Pixels of window n by the class means of window m.
        scores = (torch.einsum("npf,mkf->nmpk", hidden[:, pixels:], means) * z[:, None, pixels:]).sum(3)
        own = torch.eye(len(chosen), dtype=torch.bool)
        kept = held[:, None, pixels:].expand_as(scores)
        information = -(F.softplus(-scores) * kept)[own].mean() - (F.softplus(scores) * kept)[~own].mean()
        marginal = z.flatten(0, 1).mean(0)
        total: Tensor = HELD * (marginal * (marginal / masses).log()).sum() - information
        return total

    _train(network, loss)
    return network


def guided(prepared: Prepared, begin: Start, generator: torch.Generator) -> tuple[Prepared, Logits]:
    """k-means on guided filters of the bands instead of means in squares: edges stay where they are."""
    own, *wider = prepared.bank.clustered
    brightness = prepared.maps[:, own].mean(1, keepdim=True)
    maps = prepared.maps.clone()
    for group, radius in zip(wider, GUIDED_RADII, strict=True):
        maps[:, group] = guided_filter(brightness, prepared.maps[:, own], radius)
    bank = SimpleNamespace(**{**vars(prepared.bank), "factor": torch.ones(prepared.bank.out_channels)})
    changed = Prepared(bank, maps, prepared.valid, prepared.labels, prepared.classes)
    return changed, k_means(changed, len(begin.masses), generator)[0].head


def guided_filter(guide: Tensor, maps: Tensor, radius: int) -> Tensor:
    """Return maps `[N, C, H, W]` as locally linear functions of a guide `[N, 1, H, W]` (He et al. 2010)."""

    def box(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2 * radius + 1, 1, radius, count_include_pad=False)

    mean_guide, mean_maps = box(guide), box(maps)
    slope = (box(guide * maps) - mean_guide * mean_maps) / (
        box(guide * guide) - mean_guide**2 + GUIDED_EPS * guide.var()
    )
    return box(slope) * guide + box(mean_maps - slope * mean_guide)


IDEAS: dict[str, Fit] = {
    "mlp taught": mlp_taught,
    "mlp + IIC": mlp,
    "teacher": ema,
    "displacements": displacements,
    "InfoSeg": info_seg,
    "guided": guided,
}


def figures(
    prepared: Prepared,
    logits: Logits,
    clusters: int,
    match: Callable[[Any], Any] = many_to_one,
    smooth: bool = False,
) -> list[float]:
    """Return accuracy and mean IoU in per cent; with `smooth`, of probabilities under a guided filter."""
    confusion = Confusion(clusters, prepared.classes)
    for maps, valid, labels in zip(prepared.maps, prepared.valid, prepared.labels, strict=True):
        with torch.no_grad():
            if smooth:
                whole = logits(maps.flatten(1).T).softmax(1).T.reshape(1, clusters, *valid.shape)
                brightness = maps[prepared.bank.clustered[0]].mean(0)[None, None]
                own = guided_filter(brightness, whole, GUIDED_RADII[0])[0].argmax(0)[::EVERY, ::EVERY]
            else:
                some = maps[:, ::EVERY, ::EVERY]
                own = logits(some.flatten(1).T).argmax(1).reshape(some.shape[1:])
        truth = torch.where(valid, labels, UNLABELLED)[::EVERY, ::EVERY]
        confusion.add(own[None], truth[None])
    counts = confusion.counts
    scores = score(counts, match(counts))
    return [100 * scores.accuracy, 100 * scores.mean_iou]


def judge(
    scene: LabelledScene, prepared: Prepared, times: int, seed: int, ideas: list[str]
) -> list[dict[str, Any]]:
    """Score the start, what is shipped, and ideas."""
    clusters = times * prepared.classes
    generator = torch.Generator().manual_seed(seed)
    begin, head, centre, basis = k_means(prepared, clusters, generator)
    rows = {"bank": figures(prepared, begin.head, clusters)}
    white, near = ((part - centre) @ basis for part in (begin.first, begin.second))
    refined = start._refined(copy.deepcopy(head), white, near, generator)
    rows["shipped"] = figures(prepared, _on(refined, centre, basis), clusters)
    rows["guided map"] = figures(prepared, begin.head, clusters, smooth=True)
    for name in ideas:
        result = IDEAS[name](prepared, begin, torch.Generator().manual_seed(seed))
        seen, logits = result if isinstance(result, tuple) else (prepared, result)
        rows[name] = figures(seen, logits, clusters)
    return [
        {"scene": scene.name, "times": times, "seed": seed, "idea": name, "figures": values}
        for name, values in rows.items()
    ]


def flair3(data: Path, seeds: list[int], ideas: list[str]) -> None:
    """Print accuracy and mean IoU of three clusters that are matched one to one, and what bounds them."""
    scene = LabelledScene("flair3", "flair/zone[13]_rgbir.tif", "flair/zone[13]_label.tif", FLAIR3_CLASSES)
    prepared = prepare(scene, data)
    rows: dict[str, list[list[float]]] = {}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        begin, head, centre, basis = k_means(prepared, 3, generator)
        white, near = ((part - centre) @ basis for part in (begin.first, begin.second))
        fits: dict[str, Logits | tuple[Prepared, Logits]] = {
            "bank": begin.head,
            "shipped": _on(start._refined(copy.deepcopy(head), white, near, generator), centre, basis),
        }
        for name in ideas:
            fits[name] = IDEAS[name](prepared, begin, torch.Generator().manual_seed(seed))
        many, *_ = k_means(prepared, MANY, generator)
        for name, even in (("merged", False), ("merged, per mass", True)):
            fits[name] = _grouped(many.head, merge(many, 3, even))
        fits["bank and top-hats"] = with_top_hats(prepared, generator)
        for name, fit in fits.items():
            seen, logits = fit if isinstance(fit, tuple) else (prepared, fit)
            rows.setdefault(name, []).append(figures(seen, logits, 3, one_to_one))
        bound = figures(prepared, many.head, MANY, many_to_one)
        rows.setdefault(f"{MANY} clusters named by labels", []).append(bound)
        bound = figures(prepared, linear_with_labels(prepared, generator), 3, one_to_one)
        rows.setdefault("linear, with labels", []).append(bound)
        for name, values in rows.items():
            accuracy, iou = (mean(column) for column in zip(*values, strict=True))
            spread = pstdev(value[1] for value in values)
            print(
                f"{name:<30}{accuracy:>7.1f} %   mean IoU {iou:5.1f} ± {spread:.1f}   seeds {len(values)}",
                flush=True,
            )


def merge(begin: Start, count: int, even: bool) -> list[int]:
    """Merge clusters pair by pair, always those that lose least of the information that neighbours share.

    With `even`, the loss counts per mass (harmonic mean), so that small clusters are not merged first.
    """
    with torch.no_grad():
        z, z2 = (begin.head(part).softmax(1) for part in (begin.first, begin.second))
    joint = clustering_counts(z, z2)[0].double()
    joint = (joint + joint.T) / 2 / joint.sum()
    groups = [[index] for index in range(len(joint))]
    while len(groups) > count:
        table = torch.stack([torch.stack([joint[a][:, b].sum() for b in groups]) for a in groups])
        mass = table.sum(1)
        best, pair = np.inf, (0, 1)
        for i in range(len(groups)):
            for j in range(i):
                loss = information(table) - information(_joined(table, i, j))
                loss = float(loss / (mass[i] * mass[j] / (mass[i] + mass[j]))) if even else float(loss)
                if loss < best:
                    best, pair = loss, (i, j)
        groups[pair[1]] += groups.pop(pair[0])
    owner = [0] * len(joint)
    for number, group in enumerate(groups):
        for index in group:
            owner[index] = number
    return owner


def _joined(table: Tensor, i: int, j: int) -> Tensor:
    table = table.clone()
    table[j] += table[i]
    table[:, j] += table[:, i]
    kept = [index for index in range(len(table)) if index != i]
    return table[kept][:, kept]


def information(joint: Tensor) -> float:
    """Return the mutual information of a joint distribution."""
    return float((joint * (joint.clamp_min(1e-12) / torch.outer(joint.sum(1), joint.sum(0))).log()).sum())


def _grouped(logits: Logits, owner: list[int]) -> Logits:
    groups = F.one_hot(torch.tensor(owner)).float()
    return lambda features: (logits(features).softmax(1) @ groups + 1e-12).log()


def with_top_hats(prepared: Prepared, generator: torch.Generator) -> tuple[Prepared, Logits]:
    """k-means on the bank and the morphological building index: what is brighter than lines through it."""
    bright = prepared.maps[:, prepared.bank.clustered[0]][:, :3].amax(1).numpy()
    hats = []
    for length in LINES:
        square = np.eye(length, dtype=bool)
        middle = np.arange(length) == length // 2
        lines = (np.tile(middle, (length, 1)), np.tile(middle[:, None], length), square, square[::-1])
        openings = [ndimage.grey_opening(bright, footprint=line[None]) for line in lines]
        hats.append(bright - np.mean(openings, 0))
    maps = torch.from_numpy(np.stack(hats, 1)).float()
    maps = (maps - maps.mean((0, 2, 3), keepdim=True)) / maps.std((0, 2, 3), keepdim=True)
    own = vars(prepared.bank)
    channels = prepared.maps.shape[1]
    bank = SimpleNamespace(
        **{
            **own,
            "texture": [*own["texture"], *range(channels, channels + len(LINES))],
            "factor": torch.cat([own["factor"], torch.ones(len(LINES))]),
            "out_channels": channels + len(LINES),
        }
    )
    wider = replace(prepared, bank=bank, maps=torch.cat([prepared.maps, maps], 1))
    return wider, k_means(wider, 3, generator)[0].head


def linear_with_labels(prepared: Prepared, generator: torch.Generator) -> Logits:
    """A linear classifier that has learnt from the labels themselves: what the features allow."""
    known = (prepared.valid & (prepared.labels != UNLABELLED)).nonzero()
    drawn = known[torch.randperm(len(known), generator=generator)[: start.PAIRS]]
    features = prepared.maps[drawn[:, 0], :, drawn[:, 1], drawn[:, 2]]
    labels = prepared.labels[drawn[:, 0], drawn[:, 1], drawn[:, 2]].long()
    head = nn.Linear(features.shape[1], prepared.classes)

    def loss(_: int) -> Tensor:
        some = torch.randint(len(labels), (BATCH,), generator=generator)
        return F.cross_entropy(head(features[some]), labels[some])

    _train(head, loss, 4 * STEPS, 1e-2)
    return head


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the mean IoU of the bank's start, and what every idea adds to it."""
    ideas = list(dict.fromkeys(row["idea"] for row in rows))
    print(f"{'scene':<22}" + "".join(f"{idea:>15}" for idea in ideas))
    gains: dict[str, dict[str, float]] = {}
    for scene in dict.fromkeys(row["scene"] for row in rows):
        own = {
            idea: [r["figures"][1] for r in rows if (r["scene"], r["idea"]) == (scene, idea)]
            for idea in ideas
        }
        base = mean(own["bank"])
        gains[scene] = {idea: mean(values) - base for idea, values in own.items() if values}
        cells = (
            f"{base:>15.1f}" if idea == "bank" else f"{gains[scene].get(idea, np.nan):>+15.1f}"
            for idea in ideas
        )
        print(f"{scene:<22}" + "".join(cells))
    columns = ([own.get(idea, np.nan) for own in gains.values()] for idea in ideas)
    cells = (f"{mean(column):>+8.1f} ({min(column):>+4.0f})" for column in columns)
    print(f"{'all':<22}" + "".join(f"{cell:>15}" for cell in cells))
    print("mean gain over the bank's start in points of mean IoU, in brackets that of the worst scene")


def main() -> None:
    """Score what is not in the cache yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--scenes", nargs="+", default=[], help="parts of names")
    parser.add_argument("--ideas", nargs="+", default=list(IDEAS), choices=IDEAS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cache", type=Path, default=Path("one_scene_ideas.jsonl"))
    parser.add_argument("--flair3", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.flair3:
        flair3(options.data, options.seeds, options.ideas)
        return
    lines = options.cache.read_text().splitlines() if options.cache.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for scene in SCENES:
        if options.scenes and not any(part in scene.name for part in options.scenes):
            continue
        prepared = None
        for seed in options.seeds:
            for times in (1, 2):
                key = scene.name, times, seed
                known = {r["idea"] for r in rows if (r["scene"], r["times"], r["seed"]) == key}
                missing = [idea for idea in options.ideas if idea not in known]
                if not missing:
                    continue
                started = time.process_time()
                prepared = prepared or prepare(scene, options.data)
                new = [
                    row for row in judge(scene, prepared, times, seed, missing) if row["idea"] not in known
                ]
                rows += new
                with options.cache.open("a") as cache:
                    cache.write("".join(json.dumps(row) + "\n" for row in new))
                print(scene.name, times, seed, f"{time.process_time() - started:.0f} s", flush=True)
    print_table(rows)


if __name__ == "__main__":
    main()
