"""The files that a run writes: their names, and what is checked about them before any work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iic_geotools.classmap.cog import MAP_SUFFIXES
from iic_geotools.classmap.sidecars import style_path
from iic_geotools.errors import UsageError
from iic_geotools.files import check_absent, check_apart, check_folder, check_name, check_suffix
from iic_geotools.geobox import GeoBox
from iic_geotools.packages import require_vector
from iic_geotools.products.areas import STATS_SUFFIXES, ZONE_SUFFIXES
from iic_geotools.products.cleaning import Cleaning


@dataclass(frozen=True)
class Outputs:
    """The files that a run writes, and how; None for a file that is not asked for.

    Attributes:
        map: The map.
        confidence: The confidence map.
        polygons: The polygons of the map.
        stats: The areas of the classes.
        stats_by: Polygons in each of which the areas are measured; an input.
        preview: A picture of scene and map.
        web: A page that shows scene and map in a browser.
        min_area: The area in square metres of the smallest polygon that is written.
        simplify: By about how many metres the borders of polygons are simplified.
        cleaning: How the map is cleaned.
        creation: Creation options of GDAL's COG driver.
    """

    map: Path
    confidence: Path | None = None
    polygons: Path | None = None
    stats: Path | None = None
    stats_by: Path | None = None
    preview: Path | None = None
    web: Path | None = None
    min_area: float = 0.0
    simplify: float = 0.0
    cleaning: Cleaning = field(default_factory=Cleaning)
    creation: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """All files that are asked for."""
        files = (self.map, self.confidence, self.polygons, self.stats, self.preview, self.web)
        return [file for file in files if file is not None]

    @property
    def style(self) -> Path:
        """The map's legend for QGIS."""
        return style_path(self.map)

    @property
    def parts(self) -> Path:
        """The folder of parts, beside the map."""
        return self.map.with_name(self.map.name + ".parts")

    def check(self, inputs: Sequence[str], grid: GeoBox) -> None:
        """Refuse what cannot be written, before any work.

        Args:
            inputs: The files that the run reads.
            grid: The grid of the map.

        Raises:
            UsageError: A suffix does not say a format, two outputs have one name, an output is an input, or the
                polygons cannot be those of this map.
            OutputError: The folder of an output cannot be written to.
        """
        for asked in self.files:
            check_name(asked)
        for name, file, suffixes in (
            ("out", self.map, MAP_SUFFIXES),
            ("confidence", self.confidence, MAP_SUFFIXES),
            ("polygons", self.polygons, (".gpkg", ".fgb", ".parquet", ".geojson", ".json")),
            ("stats", self.stats, STATS_SUFFIXES if self.stats_by is None else ZONE_SUFFIXES),
            ("preview", self.preview, (".png",)),
            ("web", self.web, (".html", ".htm")),
        ):
            if file is not None:
                check_suffix(file, suffixes, name)
        check_apart(self.files, map(Path, inputs))
        for file in self.files:
            check_folder(file)
        self.cleaning.check(grid)
        if self.polygons is not None:
            require_vector("`polygons`")
            # Imported here because it imports pandas where that is installed.
            from iic_geotools.products.polygons import check_polygons

            check_polygons(self.polygons, grid, self.min_area, self.simplify)
        elif self.min_area or self.simplify:
            name = "min_area" if self.min_area else "simplify"
            raise UsageError(f"`{name}` applies only to `polygons`: give both or neither.")
        if self.stats_by is not None:
            if self.stats is None:
                raise UsageError("`stats_by` applies only to `stats`: give both or neither.")
            # Imported here, as polygons above, because few runs need it and what it imports.
            from iic_geotools.products.zone_files import check_zones

            check_zones(self.stats_by, grid)

    def check_absent(self) -> None:
        """Refuse to replace files.

        Raises:
            OutputError: An output exists.
        """
        check_absent(*self.files, self.style)
