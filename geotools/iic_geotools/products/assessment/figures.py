"""What an assessment says, as data."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iic_geotools.geobox import AreaMethod
from iic_geotools.options import Design
from iic_geotools.products.assessment.accuracy import Estimate

"""How samples were drawn: by the classes of the map, or anywhere with the same chance."""


@dataclass(frozen=True)
class ClassFigures:
    """What samples say about one class; None for what they do not tell.

    Attributes:
        name: Name of the class.
        colour: Its colour, "#rrggbb".
        samples: Number of samples that the map calls by this class.
        mapped_ha: Its area on the map in hectares; None if areas cannot be measured.
        users: User's accuracy: of what the map calls by this class, the share that is.
        producers: Producer's accuracy: of what is of this class, the share that the map calls so.
        f1: Harmonic mean of both.
        iou: Intersection over union.
        share: Share of the ground that is of this class.
        area_ha: The same in hectares; None if areas cannot be measured.
    """

    name: str
    colour: str
    samples: int
    mapped_ha: float | None
    users: Estimate | None
    producers: Estimate | None
    f1: float | None
    iou: float | None
    share: Estimate
    area_ha: Estimate | None


@dataclass(frozen=True, eq=False)
class Assessment:
    """How good a map is, as far as samples tell.

    Attributes:
        map: The map.
        samples: The file of samples.
        design: How the samples were drawn.
        method: How areas were measured.
        total_ha: The area that the estimates are about, in hectares; None if areas cannot be measured.
        matrix: Number of samples `[class of the map, class of the sample]`.
        proportions: Estimated shares of the ground `[class of the map, class on the ground]`.
        classes: Figures of the classes that occur, in the order of the legend.
        overall: Overall accuracy.
        kappa: Cohen's kappa.
        mean_iou: Mean intersection over union.
        remarks: What a reader should know, in sentences.
    """

    map: Path
    samples: Path
    design: Design
    method: AreaMethod
    total_ha: float | None
    matrix: NDArray[np.int64]
    proportions: NDArray[np.float64]
    classes: tuple[ClassFigures, ...]
    overall: Estimate
    kappa: float | None
    mean_iou: float | None
    remarks: tuple[str, ...]

    def sentence(self) -> str:
        """Say the result in one line."""
        margin = "" if self.overall.margin is None else f" ± {100 * self.overall.margin:.1f}"
        return (
            f"{self.map}: {100 * self.overall.value:.1f}{margin} % of the ground have their right class (95 % "
            f"confidence, {int(self.matrix.sum())} samples)"
        )
