"""Clusters become classes: each cluster takes the class that people's labels mostly say it is."""

import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from iic_export.labelled import NOT_LABELLED, Labelled, open_labels
from iic_export.parity import trained
from iic_export.subject import Subject
from iic_geotools.colours import MapClass, distinct_colours
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.grid import Grid, Rect
from iic_geotools.scene import describe
from iic_train.data.rasters import parse_groups
from iic_train.data.scenes import SceneReader, Scenes, scenes_of

_LOG = logging.getLogger(__name__)
TILE = 512
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Naming:
    """What says which cluster is which class.

    Attributes:
        labels: Rasters of classes, or points and polygons with a class field: one for each scene, or one for all.
        field: The field that holds the class.
        classes: Classes of rasters as NAME=VALUE,VALUE... or NAME=VALUE,VALUE...:#rrggbb; empty: as the run groups
            its own labels, else every value is a class.
        scenes: The scenes they lie over; empty: those of the run.
        own: Name by the label rasters that the run was evaluated with, too.
        balance: How far the numbers of labelled pixels of the classes are evened out before they are compared:
            0 counts pixels, 1 lets all classes count the same however many pixels of each are labelled.
    """

    labels: Sequence[str | os.PathLike[str]] = ()
    field: str | None = None
    classes: Sequence[str] = ()
    scenes: Sequence[str | os.PathLike[str]] = ()
    own: bool = False
    balance: float = 0.0


@dataclass(frozen=True)
class Named:
    """The outcome.

    Attributes:
        classes: Names and colours, in the order of the labels.
        merge: `[classes, clusters]`, 1 where a cluster belongs to a class.
        agreement: Share of the labelled pixels whose cluster took their class.
    """

    classes: tuple[MapClass, ...]
    merge: torch.Tensor
    agreement: float


@dataclass
class _Votes:
    """How often each class was found in each cluster, and the colours classes have in their file."""

    clusters: int
    counts: dict[str, Counts]
    colours: dict[str, str]


def name_clusters(subject: Subject, naming: Naming) -> Named:
    """Give each cluster the class that most of its labelled pixels have; one without any stays by itself.

    Raises:
        UsageError: The run labels whole images, or what lies over which scene cannot be told.
        SceneError: The labels cannot be read, or lie on no scene.
    """
    if not subject.config.dense:
        raise UsageError("--labels names pixels; this run labels whole images.")
    if not 0 <= naming.balance <= 1:
        raise UsageError(f"--balance must be 0 to 1, not {naming.balance}.")
    data = subject.config.data
    groups, colours = _classes(naming.classes or (data.label_classes if naming.own else ()))
    votes = _Votes(subject.network.config.clusters_b, {}, colours)
    for labels, paths in _sheets(subject, naming):
        scenes = scenes_of(data, subject.network.config.channels, paths=paths)
        reader = SceneReader(scenes)
        for view, source in enumerate(scenes.sources):
            path = labels[scenes.files[view] % len(labels)]
            with open_labels(path, describe(source.path).grid, naming.field) as opened:
                _count(subject, scenes, reader, view, opened, groups, votes)
        reader.close()
    if not votes.counts:
        raise SceneError(
            "No pixel of the scenes is labelled: do they and the labels lie over each other, with the same "
            "reference system (--scene names other scenes), and are the values right (--label-class)?"
        )
    return _decide(votes, list(groups), naming.balance)


def _sheets(subject: Subject, naming: Naming) -> list[tuple[list[str], list[str]]]:
    """Label files and the scenes they lie over: one for each scene, or one for all of them."""
    data = subject.config.data
    found = []
    if naming.own:
        if not data.labels:
            raise UsageError("The run was given no labels of its own; name some with --labels.")
        found.append((list(data.labels), list(data.scenes)))
    if naming.labels:
        labels, scenes = ([os.fspath(path) for path in paths] for paths in (naming.labels, naming.scenes))
        scenes = scenes or list(data.scenes)
        if not scenes:
            raise UsageError(
                "The run was not trained on rasters: name the scene under the labels with --scene."
            )
        if len(labels) not in (1, len(scenes)):
            raise UsageError(
                f"There are {len(scenes)} scenes but {len(labels)} --labels: give one for each scene, in order, or "
                "one for all of them (--scene names other scenes than the run's)."
            )
        found.append((labels, scenes))
    return found


def _classes(texts: Sequence[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Values and colours of classes written as NAME=VALUE,VALUE... or NAME=VALUE,VALUE...:#rrggbb."""
    groups, colours = {}, {}
    for text in texts:
        values, _, colour = text.partition(":#")
        ((name, numbers),) = parse_groups([values]).items()
        groups[name] = numbers
        if colour:
            colours[name] = MapClass(name, f"#{colour}").colour
    return groups, colours


def _count(
    subject: Subject,
    scenes: Scenes,
    reader: SceneReader,
    index: int,
    labels: Labelled,
    groups: Mapping[str, Sequence[int]],
    votes: _Votes,
) -> None:
    height, width = scenes.shapes[index]
    predict = trained(subject.network, subject.config.pairs)
    for tile in Grid(width, height, TILE, subject.network.halo, subject.network.stride):
        values = _coarse(labels, tile.core, scenes.times[index])
        if (values == NOT_LABELLED).all():
            continue
        pixels = reader.read(index, tile.read)
        if pixels.valid is not None:
            values = np.where(pixels.valid[tile.crop], values, NOT_LABELLED)
        clusters = predict(pixels.values)[:, *tile.crop].argmax(0)
        for value in np.unique(values[values != NOT_LABELLED]).tolist():
            for name in _names(value, labels, groups):
                found = np.bincount(clusters[values == value], minlength=votes.clusters)
                votes.counts[name] = votes.counts.get(name, np.zeros(votes.clusters, np.int64)) + found
                if (colour := labels.colour(value)) is not None:
                    votes.colours.setdefault(name, colour)


def _coarse(labels: Labelled, rect: Rect, times: int) -> Counts:
    """Labels at the resolution that is trained at: a reduced pixel has that of its centre, or any that was clicked."""
    fine = labels.read(Rect(rect.col * times, rect.row * times, rect.width * times, rect.height * times))
    if times == 1:
        return fine
    blocks = fine.reshape(rect.height, times, rect.width, times)
    centre = blocks[:, times // 2, :, times // 2]
    return np.where(centre == NOT_LABELLED, blocks.max((1, 3)), centre)


def _names(value: int, labels: Labelled, groups: Mapping[str, Sequence[int]]) -> list[str]:
    if not groups or not labels.numbered:
        return [labels.name(value)]
    return [name for name, values in groups.items() if value in values]


def _decide(votes: _Votes, order: Sequence[str], balance: float) -> Named:
    names = [name for name in dict.fromkeys([*order, *sorted(votes.counts)]) if name in votes.counts]
    counts = np.stack([votes.counts[name] for name in names])
    winners = (counts / counts.sum(1, keepdims=True) ** balance).argmax(0)
    members: dict[str, list[int]] = defaultdict(list)
    for cluster in range(votes.clusters):
        seen = counts[:, cluster].sum() > 0
        members[names[winners[cluster]] if seen else f"cluster {cluster}"].append(cluster)
    for name in names:
        if name in members:
            _LOG.info("%s: cluster %s", name, ", ".join(map(str, members[name])))
        else:
            _LOG.warning("No cluster is mostly %s: the model cannot tell it from the others.", name)
    unseen = [name for name in members if name not in names]
    if unseen:
        _LOG.warning("No label lies on %s: left as it is; label some of it.", ", ".join(unseen))
    kept = [name for name in names if name in members] + unseen
    merge = torch.zeros(len(kept), votes.clusters)
    for row, name in enumerate(kept):
        merge[row, members[name]] = 1.0
    classes = tuple(map(MapClass, kept, _colours(kept, votes.colours)))
    right = np.take_along_axis(counts, winners[None], 0).sum()
    return Named(classes, merge, float(right / counts.sum()))


def _colours(names: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Colours from the file where it has them all distinct, else a palette."""
    found = [known.get(name) for name in names]
    free = iter(colour for colour in distinct_colours(2 * len(names)) if colour not in found)
    return [colour if colour and found.count(colour) == 1 else next(free) for colour in found]
