"""Clusters become classes: each cluster takes the class that most of its labelled pixels have."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from iic_export.proof import trained_model
from iic_export.settings import Naming
from iic_export.trained_head import TrainedHead
from iic_geotools.classmap.classes import MapClass, class_colours
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.scene.info import describe
from iic_geotools.scene.labels import NOT_LABELLED, SceneLabels, open_labels, read_reduced
from iic_geotools.tiling import TileGrid
from iic_runtime.naming.clusters import merge_clusters
from iic_train.data.rasters import parse_groups
from iic_train.data.scene_reader import SceneReader
from iic_train.data.survey import describe_scenes

_LOG = logging.getLogger(__name__)
TILE = 512
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class NamedClusters:
    """Clusters merged into named classes.

    Attributes:
        classes: Names and colours, in the order of the labels.
        merge: `[classes, clusters]`, 1 where a cluster belongs to a class.
        agreement: Share of the labelled pixels, or images, whose cluster took their class.
        labels: The labels that named them, in words.
    """

    classes: tuple[MapClass, ...]
    merge: torch.Tensor
    agreement: float
    labels: str


def list_files(paths: Sequence[str]) -> str:
    """Return the names of files in words, the first three if there are more."""
    names = [Path(path).name for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")


@dataclass
class _Votes:
    """Labelled pixels of each class in each cluster, and the colours that classes have in their file.

    `overlap` sums, over the pixels of each cluster (row), the probabilities of all of them.
    """

    clusters: int
    counts: dict[str, Counts] = field(default_factory=dict)
    overlap: NDArray[np.float32] = field(init=False)
    colours: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.overlap = np.zeros((self.clusters, self.clusters), np.float32)

    def look_at(self, probabilities: NDArray[np.float32]) -> None:
        """Add the probabilities `[clusters, H, W]` of pixels, labelled or not."""
        np.add.at(self.overlap, probabilities.argmax(0).ravel(), probabilities.reshape(self.clusters, -1).T)

    def add(self, name: str, clusters: NDArray[np.intp], colour: str | None) -> None:
        """Count the clusters of pixels that are labelled with a class."""
        counts = np.bincount(clusters, minlength=self.clusters)
        self.counts[name] = self.counts.get(name, np.zeros(self.clusters, np.int64)) + counts
        if colour is not None:
            self.colours.setdefault(name, colour)


def name_clusters(head: TrainedHead, naming: Naming) -> NamedClusters:
    """Give each cluster the class that most of its labelled pixels have; one without labels that of the nearest one.

    Clusters of whole images are named by the labels of their data set, in the same way.
    """
    if not 0 <= naming.balance <= 1:
        raise UsageError(f"`balance` must be between 0 and 1, not {naming.balance}.")
    if not head.config.dense:
        return _name_image_clusters(head, naming)
    data = head.config.data
    groups, colours = _parse_classes(naming.label_class or (data.label_classes if naming.own_labels else ()))
    votes = _Votes(head.network.config.clusters_b, colours=colours)
    pairs = _labels_and_scenes(head, naming)
    for label_paths, scene_paths in pairs:
        scenes = describe_scenes(data, head.network.config.channels, paths=scene_paths)
        reader = SceneReader(scenes)
        for index, source in enumerate(scenes.sources):
            path = label_paths[scenes.files[index] % len(label_paths)]
            grid = describe(source.path).grid
            # Whether any label lies over any scene is asked once all have been counted.
            with open_labels(path, grid, naming.label_field, elsewhere=True) as labels:
                _count_votes(head, reader, index, labels, groups, votes)
        reader.close()
    if not votes.counts:
        raise SceneError(
            "No pixel of the scenes is labelled; check that scenes and labels cover the same place (`scenes` names "
            "other scenes than the run's) and that the values of the labels are right (`label_class`)."
        )
    if len(votes.counts) == 1:
        raise SceneError(
            f"The labels on the scenes are all {next(iter(votes.counts))}; label at least two classes, as a map of one "
            "needs no model."
        )
    files = [path for paths, _ in pairs for path in paths]
    return _decide(votes, list(groups), naming.balance, list_files(files))


def _name_image_clusters(head: TrainedHead, naming: Naming) -> NamedClusters:
    """Give each cluster of whole images the class of most images in it, by the labels of the run's data set."""
    if naming.labels:
        raise UsageError(
            "`labels` name the classes of pixels, but this run labels whole images: name its clusters by `own_labels`."
        )
    dataset = head.run.dataset()
    votes = _Votes(head.network.config.clusters_b)
    predict = trained_model(head)
    for index in range(len(dataset.map)):
        label = dataset.map.label(index)
        if isinstance(label, int):
            probabilities = predict(dataset.map.image(index))
            votes.look_at(probabilities[:, None, None])
            votes.add(dataset.classes[label], probabilities.argmax(0, keepdims=True), None)
    if len(votes.counts) < 2:
        raise UsageError(f"The data set {dataset.name} has no labels by which to name clusters.")
    return _decide(votes, dataset.classes, naming.balance, f"the labels of {dataset.name}")


def _labels_and_scenes(head: TrainedHead, naming: Naming) -> list[tuple[list[str], list[str]]]:
    """Pair label files with the scenes they lie over: one for each scene, or one for all of them."""
    data = head.config.data
    pairs = []
    if naming.own_labels:
        if not data.labels:
            raise UsageError("The run has no labels of its own; give some as `labels`.")
        pairs.append((list(data.labels), list(data.scenes)))
    if naming.labels:
        labels = [os.fspath(path) for path in naming.labels]
        scenes = [os.fspath(path) for path in naming.scenes] or list(data.scenes)
        if not scenes:
            raise UsageError(
                "The run was not trained on rasters; name the scene under the labels as `scenes`."
            )
        if len(labels) not in (1, len(scenes)):
            raise UsageError(
                f"There are {len(scenes)} scenes but {len(labels)} files of `labels`; give one for each scene, in "
                "order, or one for all of them (`scenes` names other scenes than the run's)."
            )
        pairs.append((labels, scenes))
    return pairs


def _parse_classes(texts: Sequence[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Read values and colours of classes written as NAME=VALUE,VALUE... or NAME=VALUE,VALUE...:#rrggbb."""
    groups, colours = {}, {}
    for text in texts:
        values, _, colour = text.partition(":#")
        ((name, numbers),) = parse_groups([values]).items()
        groups[name] = numbers
        if colour:
            colours[name] = MapClass(name, f"#{colour}").colour
    return groups, colours


def _count_votes(
    head: TrainedHead,
    reader: SceneReader,
    index: int,
    labels: SceneLabels,
    groups: Mapping[str, Sequence[int]],
    votes: _Votes,
) -> None:
    """Count, tile by tile, which clusters the labelled pixels of a scene have."""
    scenes = reader.scenes
    height, width = scenes.shapes[index]
    predict = trained_model(head)
    for tile in TileGrid(width, height, TILE, head.network.halo, head.network.stride):
        values = read_reduced(labels, tile.core, scenes.times[index])
        if (values == NOT_LABELLED).all():
            continue
        pixels = reader.read(index, tile.read)
        if pixels.valid is not None:
            values = np.where(pixels.valid[tile.crop], values, NOT_LABELLED)
        probabilities = predict(pixels.values)[:, *tile.crop]
        votes.look_at(probabilities)
        clusters = probabilities.argmax(0)
        for value in np.unique(values[values != NOT_LABELLED]).tolist():
            for name in _class_names(value, labels, groups):
                votes.add(name, clusters[values == value], labels.colour(value))


def _class_names(value: int, labels: SceneLabels, groups: Mapping[str, Sequence[int]]) -> list[str]:
    if not groups or not labels.numbered:
        return [labels.name(value)]
    return [name for name, values in groups.items() if value in values]


def _decide(votes: _Votes, order: Sequence[str], balance: float, labels: str) -> NamedClusters:
    """Let each cluster take the class with most votes, classes in the order given and then by name."""
    names = [name for name in dict.fromkeys([*order, *sorted(votes.counts)]) if name in votes.counts]
    counts = np.stack([votes.counts[name] for name in names])
    seen = np.maximum(votes.overlap.sum(1, keepdims=True), 1e-9)
    merge = merge_clusters(counts.astype(np.float32), votes.overlap / seen, balance)
    _log_outcome(names, merge, counts.sum(0) > 0)
    kept = np.flatnonzero(merge.any(1))
    kept_names = [names[index] for index in kept]
    colours = class_colours(kept_names, [votes.colours.get(name) for name in kept_names])
    classes = tuple(map(MapClass, kept_names, colours))
    agreement = float((merge * counts).sum() / counts.sum())
    return NamedClusters(classes, torch.from_numpy(merge[kept]), agreement, labels)


def _log_outcome(names: Sequence[str], merge: NDArray[np.float32], labelled: NDArray[np.bool_]) -> None:
    for name, members in zip(names, merge.astype(bool), strict=True):
        if not members.any():
            _LOG.warning("No cluster is mostly %s: the model cannot distinguish it from the others.", name)
            continue
        _LOG.info("%s: cluster %s", name, ", ".join(map(str, np.flatnonzero(members & labelled))))
        for cluster in np.flatnonzero(members & ~labelled):
            _LOG.info("cluster %d: no label lies on it; %s is the nearest class", cluster, name)
