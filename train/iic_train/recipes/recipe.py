"""What a recipe is: settings that change a config, by name, and the files of the data folder that it reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iic_geotools.errors import DataError


@dataclass(frozen=True)
class Recipe:
    """Settings that change those of a preset, or those that fit a set of scenes.

    Attributes:
        name: Name of the recipe, which the run folder starts with.
        summary: What it trains, in a sentence.
        changes: The settings that it changes, by name.
        preset: The preset that it starts from; empty for a recipe on scenes.
        scenes: Patterns of the scenes under the data folder.
        classes: Number of clusters to find in scenes.
        labels: Pattern of the label rasters under the data folder, one per scene, for evaluation only.
        label_class: Classes of the label rasters as NAME=VALUE,VALUE....
    """

    name: str
    summary: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    scenes: tuple[str, ...] = ()
    classes: int = 0
    labels: str = ""
    label_class: tuple[str, ...] = ()


def find_files(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    """Return the files under a folder that match any of the patterns, in order; absolute paths stay as they are."""
    files: list[str] = []
    for pattern in patterns:
        if Path(pattern).is_absolute():  # a file that comes with this package
            files.append(pattern)
            continue
        matches = sorted(str(path) for path in folder.glob(pattern))
        if not matches:
            raise DataError(f"There is no {pattern} in {folder}: name another folder with `data`.")
        files += matches
    return files
