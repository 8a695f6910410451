"""Arrays to labels: one model, opened once, used from as many threads as one likes."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap import NODATA
from iic_geotools.errors import ModelError
from iic_geotools.grid import Grid, Rect, Tile
from iic_geotools.rescale import Rescale, robust_ranges
from iic_geotools.scene import Pixels, fill_holes, valid_pixels
from iic_runtime.bundled import find_model
from iic_runtime.card import Card
from iic_runtime.engines import Device, Labels, Largest, open_engine
from iic_runtime.modelfile import ModelFile
from iic_runtime.sizing import Sizing, choose_sizing

T = TypeVar("T")


@dataclass(frozen=True)
class Segmentation:
    """Labels and confidence [H, W], uint8; 255 in `labels` is nodata, `confidence` is 255 x probability."""

    labels: Labels
    confidence: Labels


class Segmenter:
    """A model ready to label arrays.

    Args:
        model: a model file, by its path or read before, or the name of a bundled model; by default the one in the
            environment's `IIC_MODEL`.
        device: "auto", "cpu", "cuda" or "tensorrt".
        threads: threads of the engine; by default all cores.
        tile: side of the square run at once; by default as large as `max_memory` allows.
        batch: how many squares are run at once.
        max_memory: bytes that the work may take.

    Example:
        >>> segment = Segmenter("aerial")
        >>> result = segment(image)  # [bands, H, W], in the card's band order and dtype
        >>> result.labels, result.confidence
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | ModelFile | None = None,
        *,
        device: Device = "auto",
        threads: int | None = None,
        tile: int | None = None,
        batch: int | None = None,
        max_memory: int | None = None,
    ) -> None:
        self.model = find_model(model)
        if self.card.task != "segmentation":
            raise ModelError(f"{self.model.path} labels whole images, not pixels; give a segmentation model.")
        if self.model.engine is not None:
            tile, batch = self.model.engine.fit(tile, batch)
        self.sizing: Sizing
        if device == "tensorrt":  # builds engines for a size, so that comes first
            self.sizing = choose_sizing(self.card, device, tile, batch, max_memory)
            side = Grid(1 << 30, 1 << 30, self.sizing.tile, self.card.halo, self.card.stride).read_side
            self.engine = open_engine(self.model, device, threads, Largest(self.sizing.batch, side))
        else:
            self.engine = open_engine(self.model, device, threads)
            self.sizing = choose_sizing(self.card, self.engine.device, tile, batch, max_memory)

    @property
    def card(self) -> Card:
        """What the model takes and gives."""
        return self.model.card

    @property
    def provider(self) -> str:
        """What really computes."""
        return self.engine.provider

    def __call__(
        self,
        image: NDArray[Any],
        valid: NDArray[np.bool_] | None = None,
        *,
        rescale: Literal["auto", "off"] | None = None,
    ) -> Segmentation:
        """Label an image [bands, H, W]; the result does not depend on the tile size.

        Args:
            image: raw pixels, in the card's band order and dtype.
            valid: [H, W], False where there is no data; pixels that are not finite never hold data.
            rescale: "auto" brings each band into the model's range by its own 2nd and 98th percentile over this image,
                which may then be of any type; "off" takes values as they are. By default as the card says.
        """
        if (rescale or self.card.rescale) == "auto" and image.ndim == 3:
            image, valid = self._rescaled(image, valid)
        self._check(image, valid)
        _, height, width = image.shape
        known = valid_pixels(image, None, None if valid is None else valid.astype(np.uint8))
        if known is not None:
            image = image.copy()
            fill_holes(image, known, self.card.offset)
        whole = Segmentation(np.full((height, width), NODATA, np.uint8), np.zeros((height, width), np.uint8))

        def look(tile: Tile) -> Pixels:
            return Pixels(image[:, *tile.read.slices], None if known is None else known[tile.read.slices])

        grid = Grid(width, height, self.sizing.tile, self.card.halo, self.card.stride)
        for tiles in alike(grid, lambda tile: tile.read, self.sizing.batch):
            for tile, result in zip(tiles, self.run(tiles, [look(tile) for tile in tiles]), strict=True):
                whole.labels[tile.core.slices] = result.labels
                whole.confidence[tile.core.slices] = result.confidence
        return whole

    def run(
        self, tiles: Sequence[Tile], pixels: Sequence[Pixels], confidence: bool = True
    ) -> list[Segmentation]:
        """Label the cores of tiles of one shape; where `confidence` is not asked for it is all zero."""
        values = [each.values for each in pixels]
        batch = values[0][None] if len(values) == 1 else np.stack(values)
        labels, sureness = self.engine.run(batch, confidence)
        if sureness is None:
            sureness = np.zeros_like(labels)
        return [
            Segmentation(*(_core(whole, tile, each.valid, empty) for whole, empty in ((a, NODATA), (b, 0))))
            for tile, each, a, b in zip(tiles, pixels, labels, sureness, strict=True)
        ]

    def _rescaled(
        self, image: NDArray[Any], valid: NDArray[np.bool_] | None
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        known = valid_pixels(image, None, None if valid is None else valid.astype(np.uint8))

        def look(rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
            return image[:, *rect.slices], None if known is None else known[rect.slices]

        found = robust_ranges(look, image.shape[2], image.shape[1])
        return Rescale(found, self.card.value_range).apply(image, self.card.dtype), known

    def _check(self, image: NDArray[Any], valid: NDArray[np.bool_] | None) -> None:
        card = self.card
        if image.ndim != 3 or image.shape[0] != len(card.bands):
            raise ModelError(
                f"The model takes [{len(card.bands)}, H, W] ({', '.join(card.bands)}), not shape {image.shape}."
            )
        if image.dtype != card.dtype:
            raise ModelError(f"The model takes {card.dtype}, not {image.dtype}; rescale the array first.")
        if valid is not None and valid.shape != image.shape[1:]:
            raise ModelError(f"The mask's shape {valid.shape} is not the image's {image.shape[1:]}.")


def alike(items: Iterable[T], rect: Callable[[T], Rect], most: int) -> Iterator[list[T]]:
    """Runs of at most `most` consecutive items whose rectangles have one shape: what an engine runs at once."""
    run: list[T] = []
    for item in items:
        if run and (len(run) == most or _shape(rect(item)) != _shape(rect(run[0]))):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def _shape(rect: Rect) -> tuple[int, int]:
    return rect.height, rect.width


def _core(whole: Labels, tile: Tile, valid: NDArray[np.bool_] | None, empty: int) -> Labels:
    core = whole[tile.crop]
    return core if valid is None else np.where(valid[tile.crop], core, np.uint8(empty))
