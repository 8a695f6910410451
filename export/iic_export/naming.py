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
from iic_train.data.scenes import SceneReader, Scenes, open_scenes, resolution_of

_LOG = logging.getLogger(__name__)
TILE = 512
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Naming:
    """What says which cluster is which class.

    Attributes:
        labels: A raster of classes, or points and polygons with a class field.
        field: The field that holds the class.
        classes: Classes of a raster as NAME=VALUE,VALUE...; empty: every value is a class.
        scene: The scene they lie over; None: those of the run's scenes that they touch.
    """

    labels: str | os.PathLike[str]
    field: str | None = None
    classes: Sequence[str] = ()
    scene: str | os.PathLike[str] | None = None


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
        UsageError: The run labels whole images, or has no scene and none was given.
        SceneError: The labels cannot be read, or lie on no scene.
    """
    if not subject.config.dense:
        raise UsageError("--labels names pixels; this run labels whole images.")
    votes = _Votes(subject.network.config.clusters_b, {}, {})
    groups = parse_groups(naming.classes)
    scenes = _scenes(subject, naming)
    reader = SceneReader(scenes)
    for index, source in enumerate(scenes.sources):
        with open_labels(naming.labels, describe(source.path).grid, naming.field) as labels:
            _count(subject, scenes, reader, index, labels, groups, votes)
    reader.close()
    if not votes.counts:
        raise SceneError(
            f"No pixel of the scenes is labelled by {naming.labels}: do they lie over each other, with the same "
            "reference system (--scene names another scene)?"
        )
    return _decide(votes, list(groups))


def _scenes(subject: Subject, naming: Naming) -> Scenes:
    data = subject.config.data
    paths = data.scenes if naming.scene is None else (os.fspath(naming.scene),)
    if not paths:
        raise UsageError("The run was not trained on rasters: name the scene under the labels with --scene.")
    return open_scenes(
        paths,
        subject.network.config.channels,
        bands=data.bands,
        nodata=data.nodata,
        resolution=resolution_of(data),
    )


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
    if not groups:
        return [labels.name(value)]
    return [name for name, values in groups.items() if value in values]


def _decide(votes: _Votes, order: Sequence[str]) -> Named:
    names = [name for name in (order or sorted(votes.counts)) if name in votes.counts]
    counts = np.stack([votes.counts[name] for name in names])
    winners = counts.argmax(0)
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
    return Named(classes, merge, float(counts.max(0).sum() / counts.sum()))


def _colours(names: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Colours from the file where it has them all distinct, else a palette."""
    found = [known.get(name) for name in names]
    free = iter(colour for colour in distinct_colours(2 * len(names)) if colour not in found)
    return [colour if colour and found.count(colour) == 1 else next(free) for colour in found]
