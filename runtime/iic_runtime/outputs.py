"""The files a run is asked for: checked before any work, made from the finished map, put in place together."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iic_geotools.errors import OutputError, UsageError
from iic_geotools.qgis_style import style_path

MAP_SUFFIXES = (".tif", ".tiff")


@dataclass(frozen=True)
class Outputs:
    """Where everything goes; None for what is not wanted."""

    map: Path
    confidence: Path | None = None
    polygons: Path | None = None
    stats: Path | None = None
    preview: Path | None = None

    @property
    def files(self) -> list[Path]:
        """All that is wanted."""
        every = (self.map, self.confidence, self.polygons, self.stats, self.preview)
        return [file for file in every if file is not None]

    @property
    def style(self) -> Path:
        """The map's legend for QGIS."""
        return style_path(self.map)

    @property
    def parts(self) -> Path:
        """The folder of parts, beside the map."""
        return self.map.with_name(self.map.name + ".parts")

    def check(self, inputs: Sequence[str], overwrite: bool) -> None:
        """Refuse what cannot be written, before hours of work.

        Raises:
            UsageError: a suffix that says nothing, one name for two files, or an input as an output.
            OutputError: a file is there already, or its folder cannot be written to.
        """
        for what, file, suffixes in (
            ("the map", self.map, MAP_SUFFIXES),
            ("--confidence", self.confidence, MAP_SUFFIXES),
            ("--polygons", self.polygons, (".gpkg", ".fgb", ".geojson", ".json")),
            ("--stats", self.stats, (".json", ".csv")),
            ("--preview", self.preview, (".png",)),
        ):
            if file is not None and file.suffix.lower() not in suffixes:
                raise UsageError(f"{what} must end in {' or '.join(suffixes)}, not {file.name}.")
        resolved = [file.resolve() for file in self.files]
        if len(set(resolved)) < len(resolved):
            raise UsageError("Two outputs have the same name; give each a name of its own.")
        self.check_inputs(inputs)
        for file in self.files:
            _check_folder(file)
        if not overwrite:
            self.check_absent()

    def check_inputs(self, inputs: Sequence[str]) -> None:
        """Refuse to write over what is read.

        Raises:
            UsageError: an input as an output.
        """
        sources = {Path(name).resolve() for name in inputs}
        for file in self.files:
            if file.resolve() in sources:
                raise UsageError(f"{file} is an input of this run; give the output another name.")

    def check_absent(self) -> None:
        """Refuse to replace what is there.

        Raises:
            OutputError: a file is there already.
        """
        for file in (*self.files, self.style):
            if file.exists():
                raise OutputError(f"{file} exists; give another name, or --overwrite to replace it.")


def _check_folder(file: Path) -> None:
    folder = file.parent
    if not folder.is_dir():
        raise OutputError(f"There is no folder {folder}; make it first.")
    if file.is_dir():
        raise OutputError(f"{file} is a folder; give the name of a file.")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise OutputError(
            f"The folder {folder} cannot be written to; choose another or change its permissions."
        )


def parse_creation_options(pairs: Sequence[str]) -> Mapping[str, str]:
    """Read KEY=VALUE pairs."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f'--co takes KEY=VALUE, e.g. --co COMPRESS=ZSTD, not "{pair}".')
        options[key.strip().upper()] = value.strip()
    return options


def parse_size(text: str) -> int:
    """Read a number of bytes such as 800M or 1.5G."""
    units = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if not match:
        raise UsageError(f'--max-memory takes a size such as 800M or 2G, not "{text}".')
    return int(float(match[1]) * units[match[2]])
