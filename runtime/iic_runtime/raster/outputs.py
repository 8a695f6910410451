"""The files that a run writes: their names, and what is checked about them before any work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from iic_geotools.classmap.sidecars import style_path
from iic_geotools.errors import UsageError
from iic_geotools.files import MAP_SUFFIXES, check_absent, check_apart, check_folder, check_name, check_suffix
from iic_geotools.geobox import GeoBox
from iic_geotools.packages import require_vector
from iic_geotools.products.areas import ZONE_SUFFIXES
from iic_geotools.products.cleaning import Cleaning
from iic_geotools.products.zones import check_zones
from iic_geotools.settings import describe
from iic_runtime.options import ProductSettings


@dataclass(frozen=True)
class Outputs:
    """The files that a run writes, and how.

    Attributes:
        map: The map.
        products: The other files.
        cleaning: How the map is cleaned.
        creation: Creation options of GDAL's COG driver.
    """

    map: Path
    products: ProductSettings = field(default_factory=ProductSettings)
    cleaning: Cleaning = field(default_factory=Cleaning)
    creation: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def files(self) -> dict[str, Path]:
        """All files that are asked for, by the argument that names them."""
        named = {
            entry.name: getattr(self.products, entry.name)
            for entry in describe(ProductSettings)
            if entry.about.writes
        }
        return {"out": self.map, **{name: Path(file) for name, file in named.items() if file is not None}}

    @cached_property
    def zones(self) -> Path | None:
        """The polygons in each of which areas are measured; an input."""
        return None if self.products.stats_by is None else Path(self.products.stats_by)

    @property
    def style(self) -> Path:
        """The map's legend for QGIS."""
        return style_path(self.map)

    @property
    def parts(self) -> Path:
        """The folder of parts, next to the map."""
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
        for file in self.files.values():
            check_name(file)
        suffixes = {entry.name: entry.about.writes for entry in describe(ProductSettings)}
        suffixes |= {"out": MAP_SUFFIXES}
        if self.zones is not None:
            suffixes["stats"] = ZONE_SUFFIXES
        for name, file in self.files.items():
            check_suffix(file, suffixes[name], name)
        check_apart(list(self.files.values()), map(Path, inputs))
        for file in self.files.values():
            check_folder(file)
        self.cleaning.check(grid)
        self._check_polygons(grid)
        self._check_zones(grid)

    def _check_polygons(self, grid: GeoBox) -> None:
        products = self.products
        if "polygons" in self.files:
            require_vector("`polygons`")
            # Imported here because it imports pandas where that is installed.
            from iic_geotools.products.polygons import check_polygons

            check_polygons(self.files["polygons"], grid, products.min_area, products.simplify)
        elif products.min_area or products.simplify:
            name = "min_area" if products.min_area else "simplify"
            raise UsageError(f"`{name}` applies only to `polygons`: give both or neither.")

    def _check_zones(self, grid: GeoBox) -> None:
        if self.zones is None:
            return
        if "stats" not in self.files:
            raise UsageError("`stats_by` applies only to `stats`: give both or neither.")
        check_zones(self.zones, grid)

    def check_absent(self) -> None:
        """Refuse to replace files.

        Raises:
            OutputError: An output exists.
        """
        check_absent(*self.files.values(), self.style)
