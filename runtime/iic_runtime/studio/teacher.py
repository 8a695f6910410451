"""What a model sees of a scene, and a head fitted to clicks on it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import ModelError
from iic_geotools.geobox import GeoBox
from iic_geotools.progress import silent
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.scene import SceneSource
from iic_geotools.tiling import Rect, TileGrid
from iic_runtime.engine.base import OUTPUTS, Device, open_engine
from iic_runtime.engine.onnx import OnnxEngine
from iic_runtime.model.file import ModelFile
from iic_runtime.model.onnx_head import Head
from iic_runtime.model.select import ModelSelector
from iic_runtime.naming import SMOOTHING
from iic_runtime.naming.clicks import Clicks, observe
from iic_runtime.naming.fitting import Judgement, advise, fit_head, unstandardised
from iic_runtime.naming.regression import softmax
from iic_runtime.raster.model_input import choose_reading

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class View:
    """Features `[F, h, w]` of a rectangle, and which of its pixels hold data."""

    features: Floats
    valid: NDArray[np.bool_]
    rect: Rect


@dataclass(frozen=True)
class Lesson:
    """A head fitted to clicks."""

    classes: tuple[str, ...]
    judgement: Judgement | None
    advice: tuple[str, ...]
    head: Head

    def probabilities(self, view: View) -> Floats:
        """Return smoothed probabilities `[K, h, w]`."""
        count, height, width = view.features.shape
        logits = self.head.logits(np.ascontiguousarray(view.features.reshape(count, -1).T))
        grid = np.ascontiguousarray(softmax(logits).T.reshape(-1, height, width))
        return _box_mean(grid, SMOOTHING)

    def label(self, view: View) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return labels and confidence `[h, w]`."""
        probabilities = self.probabilities(view)
        labels = probabilities.argmax(0).astype(np.uint8)
        confidence = (255 * probabilities.max(0)).round().astype(np.uint8)
        return np.where(view.valid, labels, np.uint8(NODATA)), np.where(view.valid, confidence, np.uint8(0))


def _box_mean(values: Floats, reach: int) -> Floats:
    side = 2 * reach + 1
    ones = np.ones((1, *values.shape[1:]), np.float32)
    summed = np.pad(np.concatenate([values, ones]), ((0, 0), (reach + 1, reach), (reach + 1, reach)))
    summed = summed.cumsum(1, dtype=np.float64).cumsum(2)
    total = (
        summed[:, side:, side:]
        - summed[:, :-side, side:]
        - summed[:, side:, :-side]
        + summed[:, :-side, :-side]
    )
    return np.asarray(total[:-1] / total[-1], np.float32)


class Teacher:
    """A model, a scene, and what the model sees of it."""

    def __init__(self, file: ModelFile, info: SceneInfo, reading: SceneSource, engine: OnnxEngine) -> None:
        self.file, self.info, self.reading = file, info, reading
        self._engine, self._lock = engine, Lock()
        self._run = lru_cache(256)(self._run_bytes)

    @classmethod
    def open(
        cls,
        scene: str | os.PathLike[str],
        model: str | os.PathLike[str] | None = None,
        *,
        bands: Sequence[str | int] | None = None,
        rescale: str | None = None,
        reflectance: tuple[float, float] | None = None,
        nodata: float | None = None,
        match_gsd: bool | None = None,
        device: Device = "auto",
        threads: int | None = None,
    ) -> Self:
        """Open a scene."""
        info = describe(os.fspath(scene))
        file = ModelSelector(model).for_scene(info)
        reading = choose_reading(
            info,
            file.card,
            bands=bands,
            rescale=rescale,
            reflectance=reflectance,
            nodata=nodata,
            match_gsd=match_gsd,
        )
        engine = open_engine(file, device, threads, outputs=(*OUTPUTS, "features"))
        if not isinstance(engine, OnnxEngine):
            raise ModelError("no features")
        return cls(file, info, reading, engine)

    @property
    def grid(self) -> GeoBox:
        """The grid of places and views."""
        return self.reading.grid or self.info.grid

    def look(self, rect: Rect) -> View:
        """Return what the model sees in a rectangle."""
        card, grid = self.file.card, self.grid
        side = max(rect.width, rect.height)
        tile = TileGrid(grid.width, grid.height, side, card.halo, card.stride, rect).at(0, 0)
        with self.reading.open() as scene:
            pixels = scene.read(tile.read)
        valid = np.ones((rect.height, rect.width), bool) if pixels.valid is None else pixels.valid[tile.crop]
        return View(self._outputs(pixels.values)[:, *tile.crop], valid, rect)

    def _outputs(self, values: NDArray[Any]) -> Floats:
        features: Floats = self._engine.fetch(values[None], ["features"])[0][0]
        return features

    def _run_bytes(self, content: bytes, shape: tuple[int, ...], dtype: str) -> Floats:
        return self._outputs(np.frombuffer(content, dtype).reshape(shape))

    def fit(
        self, names: Sequence[str], labels: NDArray[Any], places: NDArray[Any], full: bool = False
    ) -> Lesson:
        """Fit a head to clicks."""
        clicks = Clicks(tuple(names), (None,) * len(names), np.asarray(labels), np.asarray(places))
        with self._lock:
            observations = observe(
                clicks,
                lambda image: self._run(image.tobytes(), image.shape, str(image.dtype)),
                self.reading,
                self.grid,
                self.file.card,
                silent,
            )
        judgement = None
        samples = observations.samples
        if full:
            head, judgement = fit_head(samples, observations.standardised_scene)
        else:
            head = samples.fit(np.ones(len(samples.labels), bool), samples.members, 0, 0.0)
        names = observations.clicks.names
        advice = () if judgement is None else advise(judgement, names)
        head = unstandardised(head, observations.mean, observations.factor)
        return Lesson(tuple(names), judgement, advice, replace(head))
