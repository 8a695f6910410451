"""Array to labels: a model that is opened once and can be shared by threads."""

import os
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import ModelError, UsageError
from iic_geotools.scene.bands import mark_missing
from iic_geotools.scene.info import SceneInfo, fill_holes, valid_pixels
from iic_geotools.scene.radiometry import Pair, sample_values
from iic_geotools.scene.scene import Pixels
from iic_geotools.settings import takes
from iic_geotools.tiling import Rect, Tile, TileGrid
from iic_geotools.work import map_ahead
from iic_runtime.engine.base import Engine, EngineSpec, LabelArray
from iic_runtime.engine.open_engine import open_engine, open_lanes, open_spec
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import Model, ModelSelector, find_model
from iic_runtime.options import EngineSettings
from iic_runtime.raster.model_input import Input, choose_rescale

Group = Sequence[tuple[Tile, Pixels]]
Mask = NDArray[np.bool_]
OPEN_SEGMENTERS = 2
"""Segmenters that stay open in a process for its next task."""
_lock = Lock()
_segmenters: OrderedDict[tuple[str, EngineSpec], "Segmenter"] = OrderedDict()


@dataclass(frozen=True)
class Segmentation:
    """The result for an image.

    Attributes:
        labels: Labels [H, W], uint8; 255 is nodata.
        confidence: 255 x the probability of each label [H, W], uint8.
    """

    labels: LabelArray
    confidence: LabelArray


@dataclass(frozen=True)
class SegmenterArguments(EngineSettings):
    """Arguments of `Segmenter`."""

    model: str | os.PathLike[str] | ModelFile | None = None


class Segmenter:
    """A model that is ready to label arrays.

    Args:
        model: A model file, by its path or already read, or the name of a bundled model; by default the one that the
            environment variable `IIC_MODEL` names.
        device: "auto", "cpu", "openvino", "cuda" or "tensorrt". This and the others are those of `EngineSettings`.
        threads: Number of threads of the engine; by default all cores.
        tile: Side in pixels of the squares that are labelled at once; by default what is fast within `max_memory`.
        batch: Number of squares that are run at once.
        max_memory: Bytes that a run may take; by default 1 GiB, with a GPU 4 GiB apart from its own, but not more than
            half of the machine's memory.

    Example:
        >>> segment = Segmenter("aerial")
        >>> result = segment(image)  # [bands, H, W], in the card's band order and dtype
        >>> result.labels, result.confidence
    """

    @takes(SegmenterArguments, method=True)
    def __init__(self, arguments: SegmenterArguments) -> None:
        self.model = find_model(arguments.model, "segmentation")
        if self.card.task != "segmentation":
            raise ModelError(f"{self.model.path} labels whole images, not pixels; give a segmentation model.")
        self.engine = open_engine(self.model, arguments.part(EngineSettings))

    @classmethod
    def from_spec(cls, model: ModelFile, spec: EngineSpec) -> "Segmenter":
        """Return a segmenter that runs as another one with this spec does."""
        segmenter = cls.__new__(cls)
        segmenter.model, segmenter.engine = model, open_spec(model, spec)
        return segmenter

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model and how it is run; the copy has an engine of its own, on the same kind of device."""
        return Segmenter.from_spec, (self.model, self.spec)

    @property
    def card(self) -> Card:
        """The card of the model."""
        return self.model.card

    @property
    def spec(self) -> EngineSpec:
        """How the model is run."""
        return self.engine.spec

    @property
    def provider(self) -> str:
        """The execution provider in use."""
        return self.engine.provider

    def __call__(
        self,
        image: NDArray[Any],
        valid: Mask | None = None,
        *,
        rescale: Literal["auto", "off"] | None = None,
        reflectance: tuple[float, float] | None = None,
    ) -> Segmentation:
        """Label an image [bands, H, W]; the result does not depend on the tile size.

        Args:
            image: Raw pixels, in the card's band order and dtype; for a model that takes 8 bits also of another
                dtype. Bands that the card calls optional may be left out, all of them together.
            valid: Where there is data, [H, W]. Pixels that are not finite, or masked in any band of a masked array,
                never count as data.
            rescale: "auto" brings each band into the model's range by its own 2nd and 98th percentile over this
                image, which may then be of any dtype; "off" takes the values as they are. By default as the card says.
            reflectance: For models that take reflectance: the scale and offset that turn values into it, value x scale
                + offset. By default what the values of this image look like, or else an estimate over it.

        Raises:
            ModelError: The image is not what the model takes.
            UsageError: `valid` is not a mask, `rescale` is neither, the model does not take reflectance, or `rescale`
                says something else.
        """
        self._check_image(image, valid)
        if rescale not in (None, "auto", "off"):
            raise UsageError(
                f'`rescale` of an array is "auto" or "off", not {rescale!r}; rescale it yourself.'
            )
        if isinstance(image, np.ma.MaskedArray):
            unmasked: Mask = np.asarray(~np.ma.getmaskarray(image).any(axis=0))
            image, valid = (
                np.asarray(image.data),
                unmasked if valid is None else unmasked & valid.astype(bool),
            )
        names = self.card.bands if len(image) == len(self.card.bands) else self.card.required
        image, valid = self._rescale(image, valid, names, rescale, reflectance)
        if image.dtype != self.card.dtype:
            raise ModelError(
                f"The model takes {self.card.dtype}, not {image.dtype}; rescale the array first."
            )
        known = _known_pixels(image, valid)
        optional = self.card.optional_bands(names)
        if known is not None or optional:
            image = mark_missing(image.copy(), optional)
        if known is not None:
            fill_holes(image, known, self.card.fill_for(names))
        return self.label_pixels(Pixels(image, known))

    def label_pixels(self, pixels: Pixels) -> Segmentation:
        """Label pixels as `SceneSource` reads them: all bands, in the model's dtype, with holes filled."""
        image, known = pixels.values, pixels.valid
        _, height, width = image.shape
        whole = Segmentation(np.full((height, width), NODATA, np.uint8), np.zeros((height, width), np.uint8))

        def read(tile: Tile) -> tuple[Tile, Pixels]:
            valid = None if known is None else known[tile.read.slices]
            return tile, Pixels(image[:, *tile.read.slices], valid)

        grid = TileGrid(
            width, height, self.spec.tile, self.card.halo, self.card.stride, uniform=not self.spec.on_cpu
        )
        groups = group_by_shape(map(read, grid), self.spec.batch)
        for results in self.label(groups, len(grid)):
            for tile, result in results:
                whole.labels[tile.core.slices] = result.labels
                whole.confidence[tile.core.slices] = result.confidence
        return whole

    def label(
        self, groups: Iterable[Group], tiles: int, confidence: bool = True
    ) -> Generator[list[tuple[Tile, Segmentation]]]:
        """Yield the labels of groups of tiles, in their order; an empty group has none.

        Args:
            groups: Tiles that all have the same shape and what was read for them, as `group_by_shape` makes them. They
                are taken by the calling thread, some of them before the labels of the first are yielded.
            tiles: About how many tiles there will be.
            confidence: Whether to compute the confidence; without it, it is zero everywhere.
        """
        lanes = self.spec.lanes
        if lanes == 1 or tiles < 2 * lanes * self.spec.batch:
            # A few tiles would leave lanes idle: they are computed one after the other, each by all threads.
            yield from (_label(self.engine, group, confidence) for group in groups)
            return
        engine = self.lane_engine
        pool = ThreadPoolExecutor(lanes)
        try:
            yield from map_ahead(pool, lambda group: _label(engine, group, confidence), groups, 2 * lanes)
        finally:
            pool.shutdown(cancel_futures=True)

    @cached_property
    def lane_engine(self) -> Engine:
        """An engine for as many threads as the spec has lanes, each of which runs batches of its own."""
        return (
            self.engine if self.spec.lanes == 1 or not self.spec.on_cpu else open_lanes(self.model, self.spec)
        )

    def _rescale(
        self,
        image: NDArray[Any],
        valid: Mask | None,
        names: tuple[str, ...],
        rescale: str | None,
        reflectance: Pair | None,
    ) -> tuple[NDArray[Any], Mask | None]:
        """Bring an image of some of the model's bands into the model's range, if the card or the caller says so."""
        if rescale == "off" and reflectance is None:
            return image, valid
        known = _known_pixels(image, valid)

        def read(rect: Rect) -> tuple[NDArray[Any], Mask | None]:
            return image[:, *rect.slices], None if known is None else known[rect.slices]

        def measure(skip_empty: bool) -> NDArray[Any]:
            return sample_values(read, image.shape[2], image.shape[1], skip_empty=skip_empty)

        function = choose_rescale(self.card, Input(names, str(image.dtype), measure), rescale, reflectance)
        return (image, valid) if function is None else (function.apply(image, self.card.dtype), known)

    def _check_image(self, image: NDArray[Any], valid: Mask | None) -> None:
        card = self.card
        if not isinstance(image, np.ndarray) or image.dtype.kind not in "uif":
            kind = image.dtype if isinstance(image, np.ndarray) else type(image).__name__
            raise ModelError(f"The model takes arrays of numbers [{len(card.bands)}, H, W], not {kind}.")
        if image.ndim != 3 or image.shape[0] not in (len(card.bands), len(card.required)):
            without = (
                f" or [{len(card.required)}, H, W] ({', '.join(card.required)})" if card.optional else ""
            )
            raise ModelError(
                f"The model takes [{len(card.bands)}, H, W] ({', '.join(card.bands)}){without}, not shape "
                f"{image.shape}."
            )
        if not image.size:
            raise ModelError(f"The image has the shape {image.shape}, and no pixel to label.")
        if valid is not None:
            _check_mask(valid, image.shape[1:])


class SegmenterPool:
    """The segmenters of many scenes, each of which is opened once.

    Args:
        model: A model as in `Segmenter`, or a Segmenter. If no model is named, each scene gets the bundled one that
            fits it.

    Raises:
        IICError: The model that is named cannot be opened, or none is named and none is bundled.
    """

    def __init__(
        self, model: Model | Segmenter | None = None, settings: EngineSettings | None = None
    ) -> None:
        self._settings = settings or EngineSettings()
        self._segmenters: dict[str, Segmenter] = {}
        self._selector = ModelSelector(model.model if isinstance(model, Segmenter) else model)
        if isinstance(model, Segmenter):
            self._segmenters[model.model.digest] = model
        elif self._selector.named is not None:
            self._open(self._selector.named)

    def for_scene(self, info: SceneInfo) -> Segmenter:
        """Return the segmenter for a scene.

        Raises:
            IICError: No model is named and the scene has no ground resolution, or the model cannot be opened.
        """
        return self._open(self._selector.for_scene(info))

    def _open(self, model: ModelFile) -> Segmenter:
        if model.digest not in self._segmenters:
            self._segmenters[model.digest] = Segmenter(model, **self._settings.values())
        return self._segmenters[model.digest]


def keep_segmenter(segmenter: Segmenter) -> None:
    """Keep a segmenter open for `get_segmenter`."""
    with _lock:
        _keep((segmenter.model.digest, segmenter.spec), segmenter)


def get_segmenter(digest: str, spec: EngineSpec, read: Callable[[], ModelFile]) -> Segmenter:
    """Return the segmenter of a model; the first call in this process opens it.

    Args:
        read: Returns the model file; called only if the segmenter is not open.
    """
    key = (digest, spec)
    with _lock:
        segmenter = _segmenters.get(key)
        if segmenter is None:
            segmenter = Segmenter.from_spec(read(), spec)
        _keep(key, segmenter)
    return segmenter


def _keep(key: tuple[str, EngineSpec], segmenter: Segmenter) -> None:
    _segmenters[key] = segmenter
    _segmenters.move_to_end(key)
    while len(_segmenters) > OPEN_SEGMENTERS:
        _segmenters.popitem(last=False)


def group_by_shape(reads: Iterable[tuple[Tile, Pixels]], batch: int) -> Iterator[Group]:
    """Group consecutive tiles, at most `batch` of them, that have the same shape: what an engine runs at once."""
    group: list[tuple[Tile, Pixels]] = []
    for tile, pixels in reads:
        if group and (len(group) == batch or pixels.values.shape != group[0][1].values.shape):
            yield group
            group = []
        group.append((tile, pixels))
    if group:
        yield group


def _label(engine: Engine, group: Group, confidence: bool) -> list[tuple[Tile, Segmentation]]:
    """Return the labels of the cores of tiles that all have the same shape."""
    if not group:
        return []
    labels, confidences = engine.run([pixels.values for _, pixels in group], confidence)
    if confidences is None:
        confidences = np.broadcast_to(np.uint8(0), labels.shape)
    return [
        (
            tile,
            Segmentation(
                _crop(tile_labels, tile, pixels.valid, NODATA), _crop(tile_confidence, tile, pixels.valid, 0)
            ),
        )
        for (tile, pixels), tile_labels, tile_confidence in zip(group, labels, confidences, strict=True)
    ]


def _check_mask(valid: Mask, shape: tuple[int, ...]) -> None:
    """Refuse a mask whose values could mean something else than data or no data."""
    if not isinstance(valid, np.ndarray) or valid.dtype.kind not in "buif":
        kind = valid.dtype if isinstance(valid, np.ndarray) else type(valid).__name__
        raise UsageError(f"`valid` must be an array of bool, True where there is data, not {kind}.")
    if valid.shape != shape:
        raise ModelError(f"The mask's shape {valid.shape} is not the image's {shape}.")
    if valid.dtype != bool and not np.isin(valid, (0, 1)).all():
        raise UsageError(
            "`valid` must hold True where there is data and False elsewhere, or 1 and 0; compare the mask first, e.g. "
            "`mask > 0`."
        )


def _known_pixels(image: NDArray[Any], valid: Mask | None) -> Mask | None:
    return valid_pixels(image, None, None if valid is None else valid.astype(np.uint8))


def _crop(values: LabelArray, tile: Tile, valid: Mask | None, empty: int) -> LabelArray:
    core = values[tile.crop]
    return core if valid is None else np.where(valid[tile.crop], core, np.uint8(empty))
