"""Teaching a scene click by click: what `iic-model name` does at once, kept open so that each click costs little.

    teacher = Teacher.open("scene.tif")
    view = teacher.look(Rect(0, 0, 512, 512))                  # once for each part that is shown
    lesson = teacher.fit(["water", "wood"], labels, places)    # milliseconds after each click
    labels, confidence = lesson.label(view)

A map is made of the same clicks by `name_model` and `segment_raster`, and equals what `lesson.label` shows if the
lesson was fitted with `full`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.radiometry import Pair
from iic_geotools.scene.scene import SceneSource
from iic_geotools.tiling import Rect
from iic_runtime.engine.base import LabelArray
from iic_runtime.model.file import ModelFile
from iic_runtime.model.onnx_head import Head, has_features
from iic_runtime.model.select import ground_resolution
from iic_runtime.naming import SMOOTHING, default_smoothing
from iic_runtime.naming.clicks import Clicks, Observer, View
from iic_runtime.naming.cluster import fit_clusters
from iic_runtime.naming.fitting import Judgement, advise, fit_head, unstandardised
from iic_runtime.naming.name import choose_features
from iic_runtime.naming.regression import Floats
from iic_runtime.naming.stack import open_outputs
from iic_runtime.options import Device


class ReadingOptions(TypedDict, total=False):
    """How the scene is read, and on which device: as in `segment_raster`."""

    bands: Sequence[str] | None
    rescale: str | None
    reflectance: Pair | None
    nodata: float | None
    match_gsd: bool | None
    device: Device
    threads: int | None


@dataclass(frozen=True)
class Fit:
    """A head on the features of a teacher.

    Attributes:
        classes: Names of its classes, in order.
        head: The head, which takes raw features.
        smoothing: Pixels in each direction over which probabilities are averaged.
    """

    classes: tuple[str, ...]
    head: Head
    smoothing: int = SMOOTHING

    def probabilities(self, view: View) -> Floats:
        """Return the probabilities of the classes `[classes, h, w]`, smoothed as in the map but at the view's edge."""
        count, height, width = view.features.shape
        maps = self.head.maps(view.features.reshape(count, -1))
        maps = np.exp(maps - maps.max(0))
        maps = (maps / maps.sum(0)).reshape(-1, height, width)
        return _box_means(maps, self.smoothing) if self.smoothing else maps

    def label(self, view: View) -> tuple[LabelArray, LabelArray]:
        """Return labels, which count `classes`, and confidence `[h, w]`; 255 and 0 where there is no data."""
        maps = self.probabilities(view)
        labels = np.where(view.valid, maps.argmax(0), NODATA).astype(np.uint8)
        confidence = np.where(view.valid, np.rint(255 * maps.max(0)), 0).astype(np.uint8)
        return labels, confidence


@dataclass(frozen=True)
class Lesson(Fit):
    """A head that was fitted to clicks; `classes` are those that have clicks on data.

    Attributes:
        judgement: What cross-validation over places says.
        advice: Which classes need more clicks, one sentence each.
    """

    judgement: Judgement = field(kw_only=True)
    advice: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clusters(Fit):
    """Clusters that were found without labels, the largest first.

    Attributes:
        shares: Share of the scene that each takes, by a sample of it.
    """

    shares: tuple[float, ...] = ()


class Teacher:
    """A scene with its features, ready for clicks; `open` makes one. Safe to use from several threads.

    Attributes:
        info: What is known about the scene.
        file: The model whose features are fitted; it is not written.
        reading: How the scene is read for it.
        grid: The grid that views and clicks are on.
        smoothing: Pixels in each direction over which probabilities are averaged at most.
    """

    def __init__(self, info: SceneInfo, file: ModelFile, reading: SceneSource, observer: Observer) -> None:
        self.info, self.file, self.reading = info, file, reading
        self.grid: GeoBox = observer.grid
        self.smoothing = default_smoothing(ground_resolution(self.grid))
        self._observer = observer

    @classmethod
    def open(
        cls,
        scene: str | os.PathLike[str],
        model: str | os.PathLike[str] | None = None,
        **options: Unpack[ReadingOptions],
    ) -> "Teacher":
        """Open a scene and its features; the arguments are those of `name_model`.

        Raises:
            IICError: The scene cannot be read, or does not suit the model that is given.
        """
        info = describe(os.fspath(scene))
        device, threads = options.pop("device", "auto"), options.pop("threads", None)
        file, reading = choose_features(info, model, **options)
        if not has_features(file.content):
            raise UsageError(f"{file.path} outputs no features; export it again with iic-export.")
        outputs = open_outputs(file, device, threads)
        return cls(info, file, reading, Observer(outputs, reading, reading.grid or info.grid, file.card))

    def look(self, rect: Rect) -> View:
        """Return the features of a part of the scene, which do not depend on how the part is chosen.

        Raises:
            SceneError: The pixels cannot be read.
        """
        return self._observer.look(rect)

    def fit(
        self, names: Sequence[str], labels: ArrayLike, places: ArrayLike, *, full: bool = False
    ) -> Lesson:
        """Fit a head to clicks; only those that are new are looked at.

        Args:
            labels: Class of each click `[N]`, counted from 0 in the order of `names`.
            places: Row and column of each click `[N, 2]` on the teacher's grid.
            full: Fit what `name_model` does, which takes seconds where there are many clicks. Without it, linear heads
                are fitted to the clicks and the means of their neighbours.

        Raises:
            UsageError: A click lies outside the grid, or has no class.
            SceneError: Fewer than two classes have clicks on data.
        """
        clicks = self._clicks(names, labels, places)
        observations = self._observer.observe(clicks)
        samples = observations.samples if full else observations.samples.condensed()
        head, judgement = fit_head(samples, observations.standardised_scene, full=full)
        return Lesson(
            classes=observations.clicks.names,
            head=unstandardised(head, observations.mean, observations.factor),
            smoothing=default_smoothing(ground_resolution(self.grid), judgement.accuracy),
            judgement=judgement,
            advice=advise(judgement, observations.clicks.names),
        )

    def clusters(self, count: int, seed: int = 0) -> "Clusters":
        """Find clusters without labels, as `cluster_scene` does, on the features of this teacher.

        Raises:
            SceneError: The scene holds too little data.
            UsageError: The features are not those of a bank.
        """
        if not self.file.card.features:
            raise UsageError(
                f"{self.file.card.name} has no multi-scale features to find clusters in; open no model."
            )
        head, shares, _ = fit_clusters(self._observer, count, seed)
        return Clusters(tuple(f"cluster {index}" for index in range(count)), head, shares=shares)

    def _clicks(self, names: Sequence[str], labels: ArrayLike, places: ArrayLike) -> Clicks:
        """Return clicks in the order in which a file of them is read: by name of the class, then by place."""
        kinds = np.asarray(labels, np.int64).reshape(-1)
        spots = np.asarray(places, np.int64).reshape(-1, 2)
        if len(kinds) != len(spots):
            raise UsageError(
                f"There are {len(kinds)} `labels` and {len(spots)} `places`; give one for each click."
            )
        if len(kinds) and not 0 <= kinds.min() <= kinds.max() < len(names):
            raise UsageError(f"`labels` must be 0 to {len(names) - 1}, one of the {len(names)} `names`.")
        inside = (spots >= 0).all(1) & (spots < (self.grid.height, self.grid.width)).all(1)
        if not inside.all():
            row, column = spots[~inside][0]
            raise UsageError(
                f"The click at row {row}, column {column} lies outside the scene's {self.grid.height} rows and "
                f"{self.grid.width} columns."
            )
        order = np.array(sorted(range(len(names)), key=lambda index: names[index]), np.int64)
        rank = np.empty(len(names), np.int64)
        rank[order] = np.arange(len(names))
        sequence = np.lexsort((spots[:, 1], spots[:, 0], rank[kinds]))
        return Clicks(
            tuple(names[index] for index in order),
            (None,) * len(names),
            rank[kinds][sequence],
            spots[sequence],
        )


def _box_means(maps: Floats, reach: int) -> Floats:
    """Return means over squares, of which the part outside the array does not count."""

    def running(values: NDArray[Any], axis: int) -> NDArray[Any]:
        length = values.shape[axis]
        sums = np.cumsum(values, axis, np.float64)
        sums = np.concatenate([np.zeros_like(sums.take([0], axis)), sums], axis)
        first = np.maximum(np.arange(length) - reach, 0)
        last = np.minimum(np.arange(length) + reach + 1, length)
        shape = [-1 if dimension == axis else 1 for dimension in range(values.ndim)]
        return np.asarray((sums.take(last, axis) - sums.take(first, axis)) / (last - first).reshape(shape))

    return running(running(maps, 1), 2).astype(np.float32)
