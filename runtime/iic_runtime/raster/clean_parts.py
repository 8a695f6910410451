"""Parts of a map to parts of a clean map."""

from dataclasses import dataclass
from pathlib import Path

from iic_geotools.products.cleaning import TileStore, as_level, clean_tiles
from iic_geotools.progress import OnProgress
from iic_runtime.engine.base import LabelArray
from iic_runtime.raster.part_folder import MapParts, PartFolder
from iic_runtime.raster.plan import Plan


@dataclass(frozen=True)
class _Tiles:
    """Tiles of a clean map among the parts of a run, so that a run which was interrupted need not make them again."""

    folder: PartFolder

    def has(self, index: int) -> bool:
        return self.folder.has(index)

    def write(self, index: int, pixels: LabelArray) -> None:
        self.folder.write(index, {self.folder.layers[0]: pixels})

    def file(self, index: int) -> Path:
        return self.folder.file(self.folder.layers[0], index)


def clean_parts(plan: Plan, parts: MapParts, folder: PartFolder, progress: OnProgress) -> MapParts:
    """Clean the labels of a map, if the plan says so; confidence stays that of the labels before cleaning.

    Args:
        plan: The plan of the run.
        parts: The parts of the map.
        folder: The folder of parts, which the new ones are written to, too.
        progress: Called with the pixels done so far.

    Returns:
        The parts of the clean map.
    """
    cleaning = plan.outputs.cleaning
    if not cleaning:
        return parts
    grid = plan.map_grid

    def store(step: str) -> TileStore:
        # The name says how the map is cleaned: tiles of another cleaning are not taken for these.
        return _Tiles(PartFolder(folder.path, [f"{step}_{cleaning.digest}"]))

    level = as_level(list(parts["labels"]), grid, folder.path / "raw.vrt")
    return {**parts, "labels": clean_tiles(level, grid, cleaning, store, folder.path, progress)}
