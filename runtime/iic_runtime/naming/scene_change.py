"""How probable it is that the ground has changed between two dates, without labels: behind `iic-scenes change`.

On unchanged ground each date informs about the other; changed ground is seen as if the dates had been drawn apart. The
logarithm of the ratio of the two probabilities is a sum over canonical variates, if features are normally distributed;
its mean over a scene is the information that IIC maximises. A scene is taken as a mixture of both kinds of ground,
whose shares expectation maximisation finds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from iic_geotools.classmap.class_map import Bytes
from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.map_writer import place_files, write_windows
from iic_geotools.errors import SceneError
from iic_geotools.files import MAP_SUFFIXES, check_writable, scratch_folder
from iic_geotools.products.areas import PixelAreas
from iic_geotools.scene.listing import find_scene
from iic_geotools.settings import PathLike, takes
from iic_geotools.tiling import Rect, TileGrid
from iic_geotools.work import OnProgress, Progress
from iic_runtime.model.card import FeatureGroup
from iic_runtime.naming.dates import Canonical, Dates, common_data, open_dates
from iic_runtime.naming.regression import Doubles, Floats
from iic_runtime.naming.suggestions import scene_files
from iic_runtime.options import ReadingSettings, SceneChangeSettings

SAMPLE = 30_000
"""Places that the mixture is fitted to."""
FEWEST = 200
"""Places below which it cannot be fitted."""
STEPS, START, LEAST = 200, 0.1, 1e-4
"""Steps of expectation maximisation, the share of changed ground that it starts at, and the least one."""
STEEPEST = 50.0
"""Logarithms of ratios are cut off here."""
TILE = 512
"""Side in pixels of what is scored at once."""
TOP = 254
"""Value that stands for a probability of 1."""


@dataclass(frozen=True)
class SceneChange:
    """The probability of change between two dates, as it was written.

    Attributes:
        path: The raster, 255 x the probability.
        share: Share of the ground that has changed, in a sample.
        hectares: Area of the ground that is more probably changed than not; None without a unit of area.
    """

    path: Path
    share: float
    hectares: float | None

    def sentence(self) -> str:
        """Describe the result in one line."""
        area = "" if self.hectares is None else f"; {self.hectares:,.1f} ha more probably than not"
        return f"{self.path}: an estimated {100 * self.share:.1f} % of the ground has changed{area}"


@dataclass(frozen=True)
class SceneChangeArguments(SceneChangeSettings):
    """Arguments of `change_probability`."""

    before: PathLike
    after: PathLike
    out: PathLike


@takes(SceneChangeArguments)
def change_probability(arguments: SceneChangeArguments) -> SceneChange:
    """Write how probable it is that the ground has changed between two dates of a place.

    What differs because of light, season or sensor is no change as far as one date predicts the other. Scores
    are fitted to a sample; the scenes are read tile by tile.

    Args:
        before: The earlier scene, as `segment_raster` takes it.
        after: The later one, with the same bands on the same grid; extents may differ.
        out: The probability, .tif, of the ground that both show: 255 x the probability, at most 254.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    out, progress = Path(arguments.out), arguments.progress
    scenes = (arguments.before, arguments.after)
    infos = [find_scene(scene, arguments.asset, arguments.mask) for scene in scenes]
    inputs = [file for info in infos for file in scene_files(info)]
    check_writable([(out, MAP_SUFFIXES, "out")], inputs, overwrite=arguments.overwrite)
    reading = arguments.part(ReadingSettings).values()
    dates = open_dates(infos, device=arguments.device, threads=arguments.threads, **reading)
    samples = dates.sample(SAMPLE, np.random.default_rng(arguments.seed), progress)
    mixture = Mixture.of(samples, dates.stack.card.features)
    changed = _Changed(dates, mixture)
    with scratch_folder(out) as folder:
        tags = {"IIC_CHANGE_BEFORE": infos[0].title, "IIC_CHANGE_AFTER": infos[1].title}
        place_files(
            write_windows(out, folder, dates.grid, changed.windows(progress), classes=None, tags=tags)
        )
    return SceneChange(out, mixture.share, changed.hectares)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Ground that two dates see alike, and ground that has changed.

    Attributes:
        canonical: What the dates have in common.
        share: Share of changed ground.
    """

    canonical: Canonical
    share: float

    @classmethod
    def of(cls, samples: Sequence[Doubles], groups: Sequence[FeatureGroup]) -> "Mixture":
        """Fit to features `[N, F]` of the same places on two dates."""
        if len(np.unique(samples[0], axis=0)) < FEWEST:
            raise SceneError(
                f"The dates have fewer than {FEWEST} different pixels in common, too few to see what has changed."
            )
        mixture = cls(Canonical.of(samples, groups), START)
        ratios = mixture.log_ratios(samples)
        for _ in range(STEPS):
            share = max(LEAST, float(_posterior(ratios, mixture.share).mean()))
            mixture = replace(mixture, share=min(share, 1 - LEAST))
        return mixture

    def log_ratios(self, features: Sequence[Doubles | Floats]) -> Doubles:
        """Return log p(a) p(b) / p(a, b) of what is seen on both dates `[N]`: positive where they do not fit."""
        u, v = (self.canonical.variates(part, date) for date, part in enumerate(features))
        rho = self.canonical.correlations
        terms = (rho**2 * (u**2 + v**2) - 2 * rho * u * v) / (1 - rho**2) + np.log1p(-(rho**2))
        return np.asarray(terms.sum(1) / 2)

    def probability(self, features: Sequence[Doubles | Floats]) -> Doubles:
        """Return the probability of change at features `[N, F]` of two dates."""
        return _posterior(self.log_ratios(features), self.share)


def _posterior(log_ratios: Doubles, share: float) -> Doubles:
    odds = share / (1 - share) * np.exp(np.clip(log_ratios, -STEEPEST, STEEPEST))
    return np.asarray(odds / (1 + odds))


class _Changed:
    """The probability of change, window by window, and the area that is more probably changed than not."""

    def __init__(self, dates: Dates, mixture: Mixture) -> None:
        self._dates, self._mixture = dates, mixture
        known = dates.grid.area_method != "none"
        self.hectares: float | None = 0.0 if known else None
        self._areas = PixelAreas(dates.grid) if known else None

    def windows(self, progress: OnProgress) -> Iterator[tuple[Rect, Bytes]]:
        """Yield rectangles of the grid and 255 x the probability there."""
        tiles = TileGrid(self._dates.grid.width, self._dates.grid.height, TILE, 0, 1)
        for done, tile in enumerate(tiles):
            progress(Progress("change", done, len(tiles)))
            views = self._dates.look(tile.core)
            valid = common_data(views)
            values = np.full(valid.shape, NODATA, np.uint8)
            if valid.any():
                probability = self._mixture.probability([view.features[:, valid].T for view in views])
                values[valid] = np.minimum(np.rint(255 * probability), TOP).astype(np.uint8)
            if self._areas is not None and self.hectares is not None:
                areas = np.broadcast_to(self._areas.of(tile.core), valid.shape)
                self.hectares += float(areas[valid & (values >= 128)].sum()) / 10_000
            yield tile.core, values
        progress(Progress("change", len(tiles), len(tiles)))
