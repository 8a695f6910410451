"""Metadata and statistics of rasters, read before training starts.

`survey_scenes` looks at the files once per command: which bands to read, as what type, at which ground resolutions,
in which range of values. Its result goes to the settings (scaling constants), to the loader (windows), to evaluation
(chips) and to the record of the run (fingerprint).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError, UsageError
from iic_geotools.scene.bands import canonical, match_bands
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.radiometry import Pair, Rescale, robust_ranges, spread_windows
from iic_geotools.scene.reflectance import reflectance_of
from iic_geotools.scene.scene import SceneSource, value_sample
from iic_geotools.tiling import Rect
from iic_train.config import DataConfig
from iic_train.data.scene_reader import SceneReader, Scenes
from iic_train.finetune.settings import Rescaling

KEPT_DTYPES = ("uint8", "uint16", "int16")
"""Types of pixels that a network takes as they are; scenes of other types are read as float32."""
RESCALED: dict[Rescaling, tuple[str, Pair]] = {
    "auto": ("uint8", (0.0, 255.0)),
    "reflectance": ("int16", (0.0, 1e4)),
}
"""Type of rescaled scenes, and the values of the percentiles of a band or of reflectance 0 and 1."""
SIMILAR = 1.25
"""Ground resolutions that differ by less than this factor count as equal."""
ROUNDING = 1.01
"""Factor by which a ground resolution may miss the end of a range."""
SAMPLE = 20_000
"""Number of pixels that are taken from each window when constants are sampled."""
PERCENTILES = (0.5, 99.5)
"""Percentiles of each band that become 0 and 1."""


@dataclass(frozen=True)
class Resolution:
    """Ground resolutions at which scenes are read; their own by default.

    Attributes:
        reduce: Number of pixels, on each axis, that are averaged into one.
        gsd: Range of metres, instead of `reduce`: each scene is read at every ground resolution in this range that
            whole numbers of its pixels make.
        pixel_size: Side of a pixel in metres, for scenes that do not say it, such as those without a CRS.
    """

    reduce: int = 1
    gsd: tuple[float, float] | None = None
    pixel_size: float | None = None

    def __post_init__(self) -> None:
        if self.gsd is not None and not 0 < self.gsd[0] <= self.gsd[1]:
            raise UsageError(f"`gsd` must be two numbers MIN,MAX of metres, not {self.gsd}.")
        if self.gsd is not None and self.reduce != 1:
            raise UsageError("`gsd` and `reduce` both choose the resolution: give one of them.")

    def of(self, info: SceneInfo) -> float | None:
        """Return the side of a scene's pixel on the ground in metres, or None if it is unknown."""
        grid = info.grid
        side = grid.pixel_side
        return self.pixel_size if side is None else side

    def factors(self, info: SceneInfo) -> list[int]:
        """Return for each resolution of a scene how many pixels, on each axis, are averaged into one."""
        if self.gsd is None:
            return [self.reduce]
        own = self.of(info)
        if own is None:
            raise DataError(
                f"{info.path} does not say how large its pixels are: give `pixel_size` in metres, or leave out `gsd`."
            )
        low, high = self.gsd[0] / ROUNDING, self.gsd[1] * ROUNDING
        factors = [times for times in range(1, int(high / own) + 1) if low <= own * times <= high]
        if not factors:
            raise DataError(
                f"{info.path} has pixels of {own:.3g} m, which cannot be averaged to {self.gsd[0]:g} to "
                f"{self.gsd[1]:g} m: change `gsd` or leave the scene out."
            )
        return factors


@dataclass(frozen=True)
class Survey:
    """Metadata and statistics of the training scenes.

    Attributes:
        scenes: How they are read.
        offset: Value of each band that becomes 0.
        scale: Factor that brings each band to about 0..1 after `offset` is subtracted.
        valid_shares: Share of the pixels of each level that hold data.
        fingerprint: Short hash of what the scenes hold.
    """

    scenes: Scenes
    offset: tuple[float, ...]
    scale: tuple[float, ...]
    valid_shares: tuple[float, ...]
    fingerprint: str


def survey_scenes(data: DataConfig, channels: Sequence[str] = (), fill: Sequence[float] = ()) -> Survey:
    """Describe the scenes of a config, sample their values and take their fingerprint.

    Args:
        channels: Names of the bands that the network takes; by default as `describe_scenes` chooses them.
        fill: Values in the place of pixels without data; by default the sampled offset.

    Raises:
        SceneError: A file cannot be read or lacks a band.
        DataError: The files do not go together, or none of them holds data.
    """
    scenes = describe_scenes(data, channels)
    offset, scale, valid_shares = sample_constants(scenes)
    scenes = scenes.with_fill(fill or offset)
    return Survey(scenes, offset, scale, valid_shares, fingerprint(scenes))


def describe_scenes(data: DataConfig, channels: Sequence[str] = (), paths: Sequence[str] = ()) -> Scenes:
    """Open rasters once and decide how they are read.

    Args:
        channels: Names of the bands in order. By default they are chosen by `data.bands` or, without it, are all
            bands of the first scene that are not alpha.

    Raises:
        SceneError: A file cannot be read or lacks a band.
        DataError: The files do not go together.
    """
    paths = paths or data.scenes
    if not paths:
        raise UsageError("Name at least one raster to train on.")
    if data.rescale not in (None, *RESCALED):
        raise UsageError(f'`rescale` must be "auto", "reflectance" or left out, not "{data.rescale}".')
    resolution = Resolution(data.reduce, data.gsd, data.pixel_size)
    infos = [describe(path) for path in paths]
    bands: Sequence[str] = data.bands
    if not channels:
        channels, bands = choose_channels(infos[0], bands)
    indexes = [match_bands(channels, info.descriptions, info.bands.certain, bands or None) for info in infos]
    dtype = _common_dtype(infos, indexes) if data.rescale is None else RESCALED[data.rescale][0]
    sources = [_source(info, bidx, channels, dtype, data) for info, bidx in zip(infos, indexes, strict=True)]
    levels = [(file, times) for file, info in enumerate(infos) for times in resolution.factors(info)]
    return Scenes(
        sources=tuple(sources[file] for file, _ in levels),
        shapes=tuple(
            (infos[file].grid.height // times, infos[file].grid.width // times) for file, times in levels
        ),
        times=tuple(times for _, times in levels),
        files=tuple(file for file, _ in levels),
        channels=tuple(channels),
        bands=tuple(bands),
        dtype=dtype,
        gsd=_middle_gsd(infos, resolution),
    )


def choose_channels(info: SceneInfo, bands: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the channels to train on, and the bands they are read from if names do not suffice.

    Without `bands` all bands of the scene are taken that are not alpha. Bands without a name are called after their
    number.
    """
    names = [
        canonical(text or kind) for text, kind in zip(info.descriptions, info.interpretations, strict=True)
    ]
    names = [name if name != "undefined" else f"band{index}" for index, name in enumerate(names, 1)]
    chosen = list(bands) or [str(index) for index, name in enumerate(names, 1) if name != "alpha"]
    channels, unnamed = [], False
    for band in chosen:
        if not band.isdigit():
            channels.append(canonical(band))
        elif not 1 <= int(band) <= len(names):
            raise UsageError(f"There is no band {band} in {info.path}, which has {len(names)} bands.")
        else:
            channels.append(names[int(band) - 1])
            unnamed = unnamed or channels[-1] == f"band{band}"
    channels = ["grey" if name == "gray" else name for name in channels]
    if len(set(channels)) < len(channels):
        raise UsageError(
            f"Two bands of {info.path} have the same name ({', '.join(channels)}): choose bands with `bands`."
        )
    return tuple(channels), tuple(chosen) if bands or unnamed else ()


def _source(
    info: SceneInfo, bidx: tuple[int, ...], channels: Sequence[str], dtype: str, data: DataConfig
) -> SceneSource:
    source = SceneSource.of(info, bidx, dtype, data.nodata)
    if data.rescale is None:
        return source
    return replace(source, rescale=scene_rescale(source, info, channels, data.rescale))


def scene_rescale(
    source: SceneSource,
    info: SceneInfo,
    channels: Sequence[str],
    rescale: Rescaling,
    reflectance: Pair | None = None,
) -> Rescale:
    """Return the function that brings the values of a scene to the range of all scenes.

    Args:
        source: How the scene is read, before it is rescaled.
        channels: Names of the bands that are read.
        rescale: By the percentiles of each band, or to reflectance.
        reflectance: Scale and offset that turn values into reflectance; by default as the scene says.
    """
    targets = (RESCALED[rescale][1],) * len(channels)
    if rescale == "auto":
        return Rescale(robust_ranges(value_sample(source, info)), targets)

    def measure() -> NDArray[Any]:
        return value_sample(source, info, skip_empty=True)

    return reflectance_of(info, source.bidx, channels, measure, reflectance).rescale(targets)


def _common_dtype(infos: Sequence[SceneInfo], indexes: Sequence[Sequence[int]]) -> str:
    dtypes = {info.dtypes[band - 1] for info, bidx in zip(infos, indexes, strict=True) for band in bidx}
    if len(dtypes) > 1:
        raise DataError(
            f"The scenes hold values of different types ({', '.join(sorted(dtypes))}): convert them to one, "
            "with the same meaning, or let `rescale` bring each scene to one range."
        )
    dtype = dtypes.pop()
    return dtype if dtype in KEPT_DTYPES else "float32"


def _middle_gsd(infos: Sequence[SceneInfo], resolution: Resolution) -> float | None:
    """Return the ground resolution of all scenes, which must be similar, or the middle of the range asked for."""
    if resolution.gsd is not None:
        return float(np.sqrt(resolution.gsd[0] * resolution.gsd[1]))
    sides = [side for side in map(resolution.of, infos) if side is not None]
    if not sides:
        return None
    if max(sides) > SIMILAR * min(sides):
        raise DataError(
            f"The scenes have pixels of {min(sides):.3g} to {max(sides):.3g} m: train at several resolutions with "
            f"`gsd` {min(sides):.2g},{max(sides):.2g}, or bring the scenes to one resolution."
        )
    return float(np.median(sides)) * resolution.reduce


def sample_constants(scenes: Scenes) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return offset and scale that bring each band to about 0..1, and the share of each level that holds data.

    A low and a high percentile of the valid pixels of all scenes become 0 and 1. Scenes that are rescaled as they
    are read already have their range.
    """
    rng = np.random.default_rng(0)
    reader = SceneReader(scenes)
    samples, shares = [], []
    for level, (height, width) in enumerate(scenes.shapes):
        valid_pixels = all_pixels = 0
        for rect in spread_windows(width, height):
            pixels = reader.read(level, rect)
            values = pixels.values.reshape(len(scenes.channels), -1)
            if pixels.valid is not None:
                values = values[:, pixels.valid.ravel()]
            valid_pixels += values.shape[1]
            all_pixels += rect.area
            count = min(SAMPLE, values.shape[1])
            samples.append(values[:, rng.integers(0, values.shape[1], count)] if count else values)
        shares.append(valid_pixels / max(1, all_pixels))
    reader.close()
    if not any(values.size for values in samples):
        raise DataError("None of the scenes holds a pixel with data: check `nodata` and `reduce`.")
    sample = np.concatenate(samples, axis=1)
    rescale = scenes.sources[0].rescale
    if rescale is not None:
        low, high = np.array(rescale.targets).T
    else:
        low, high = np.percentile(sample.astype(np.float64), PERCENTILES, axis=1)
        high = np.where(high > low, high, low + 1.0)
    return tuple(low.tolist()), tuple((1.0 / (high - low)).tolist()), tuple(shares)


def fingerprint(scenes: Scenes) -> str:
    """Return a short hash of the shapes of the scenes and of a window from the middle of each."""
    digest = hashlib.sha256(repr((scenes.shapes, scenes.channels, scenes.dtype, scenes.times)).encode())
    digest.update("".join(repr(source.rescale) for source in scenes.sources if source.rescale).encode())
    reader = SceneReader(scenes)
    for level, (height, width) in enumerate(scenes.shapes):
        side = min(64, height, width)
        rect = Rect((width - side) // 2, (height - side) // 2, side, side)
        digest.update(reader.read(level, rect).values.tobytes())
    reader.close()
    return digest.hexdigest()[:16]
