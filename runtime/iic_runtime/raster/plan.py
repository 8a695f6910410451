"""The plan of a run: everything that decides its maps, made once, checked once, and handed on."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from affine import Affine

from iic_geotools import __version__
from iic_geotools.classmap.classes import MAX_CLASSES, NODATA, UNSURE_NAME, MapClass, least_confidence
from iic_geotools.classmap.sidecars import style_path
from iic_geotools.errors import UsageError
from iic_geotools.files import MAP_SUFFIXES, check_absent, check_apart, check_writable
from iic_geotools.gdal import is_text
from iic_geotools.geobox import GeoBox
from iic_geotools.packages import require_vector
from iic_geotools.products.areas import ZONE_SUFFIXES
from iic_geotools.products.cleaning import Cleaning
from iic_geotools.products.zones import check_zones, zones_digest
from iic_geotools.scene.bands import canonical
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.region import Area, choose_region
from iic_geotools.scene.scene import SceneSource
from iic_geotools.scene.source_files import SourceFile, identify_sources
from iic_geotools.settings import describe
from iic_geotools.tiling import Part, Rect, TileGrid
from iic_runtime.engine.base import EngineSpec, LabelArray
from iic_runtime.engine.open_engine import check_machine, check_work
from iic_runtime.model.card import Card
from iic_runtime.options import ProductSettings, ReadingSettings, SegmentSettings, UnsureSettings
from iic_runtime.raster.model_input import choose_reading, read_bands
from iic_runtime.raster.novelty import check_novelty
from iic_runtime.segmenter import Segmentation, Segmenter

UNSURE = MapClass(UNSURE_NAME, "#808080")
"""The class of unsure pixels, the last one of a map that has it."""
LAYERS = ("confidence", "novelty")
"""Layers of a map in addition to the labels; each is a file of its own."""
# A part is held in memory until it is written, and a run that is killed loses at most the parts in progress.
PART_PIXELS = 4 << 20


@dataclass(frozen=True)
class Unsure:
    """What becomes of unsure pixels.

    Attributes:
        min_confidence: The probability below which a pixel is unsure.
        label: The value of unsure pixels in the map.
    """

    min_confidence: float
    label: int

    @property
    def extra_classes(self) -> tuple[MapClass, ...]:
        """The classes that a map has in addition to the model's."""
        return () if self.label == NODATA else (UNSURE,)

    def mark(self, result: Segmentation) -> LabelArray:
        """The labels of a result, with unsure pixels marked; pixels without data stay so."""
        unsure = (result.confidence < least_confidence(self.min_confidence)) & (result.labels != NODATA)
        return np.where(unsure, np.uint8(self.label), result.labels)


def choose_unsure(card: Card, settings: UnsureSettings) -> Unsure | None:
    """Choose what becomes of unsure pixels; None if every pixel keeps its label."""
    min_confidence, unsure_class = settings.min_confidence, settings.unsure_class
    if not 0 <= min_confidence <= 1:
        raise UsageError(f"`min_confidence` must be between 0 and 1, not {min_confidence:g}.")
    if min_confidence == 0:
        if unsure_class:
            raise UsageError("`unsure_class` applies only to `min_confidence`: give both or neither.")
        return None
    if not unsure_class:
        return Unsure(min_confidence, NODATA)
    if len(card.classes) >= MAX_CLASSES or UNSURE.name in {map_class.name for map_class in card.classes}:
        raise UsageError(
            f"{card.name} has {len(card.classes)} classes, and there is no room for another or one is called "
            f"{UNSURE.name} already; leave out `unsure_class`, so that unsure pixels become nodata."
        )
    return Unsure(min_confidence, len(card.classes))


@dataclass(frozen=True)
class Outputs:
    """The files that a run writes, and how.

    Attributes:
        map: The map.
        products: The other files.
        cleaning: How the map is cleaned, if it is.
        creation: Creation options of GDAL's COG driver.
    """

    map: Path
    products: ProductSettings = field(default_factory=ProductSettings)
    cleaning: Cleaning | None = None
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

    def check_names(self, inputs: Sequence[str]) -> None:
        """Refuse names that cannot be written to, before the scene and the model are opened.

        Raises:
            UsageError: A suffix does not say a format, two outputs have one name, or an output is an input.
            OutputError: The folder of an output cannot be written to.
        """
        suffixes = {entry.name: entry.about.writes for entry in describe(ProductSettings)}
        suffixes |= {"out": MAP_SUFFIXES}
        if self.zones is not None:
            suffixes["stats"] = ZONE_SUFFIXES
        outputs = [(file, suffixes[name], name) for name, file in self.files.items()]
        check_writable(outputs, map(Path, inputs), overwrite=True)

    def check(self, inputs: Sequence[str], grid: GeoBox) -> None:
        """Refuse what cannot be written, before any work.

        Raises:
            UsageError: An output is an input, or the polygons cannot be those of this map.
        """
        check_apart(list(self.files.values()), map(Path, inputs))
        if self.cleaning is not None:
            self.cleaning.check(grid)
        if "polygons" in self.files or self.products.min_area or self.products.simplify:
            self._check_polygons(grid)
        if self.zones is not None:
            if "stats" not in self.files:
                raise UsageError("`stats_by` applies only to `stats`: give both or neither.")
            check_zones(self.zones, grid)

    def _check_polygons(self, grid: GeoBox) -> None:
        products = self.products
        if "polygons" in self.files:
            require_vector("`polygons`")
            # Imported here because it imports pandas where that is installed.
            from iic_geotools.products.polygons import check_polygons

            check_polygons(self.files["polygons"], grid, products.min_area, products.simplify)
        else:
            name = "min_area" if products.min_area else "simplify"
            raise UsageError(f"`{name}` applies only to `polygons`: give both or neither.")

    def check_absent(self) -> None:
        """Refuse to replace files."""
        check_absent(*self.files.values(), self.style)


@dataclass(frozen=True)
class Plan:
    """What a run is. Plain data, so that workers get the plan itself.

    Attributes:
        scene: What is known about the scene.
        reading: How the scene is read.
        region: The pixels of the scene that are mapped.
        area: The polygons inside which they are mapped, if any.
        card: The card of the model.
        model_digest: The digest of the model file.
        provider: The execution provider that computes the labels.
        engine: How the model is run.
        outputs: The files that are written.
        sources: Every file that the scene is made of, as it was before the first pixel was read; None if they cannot
            all be identified.
        unsure: What becomes of pixels with low confidence; None if they keep their labels.
        version: The version of this package.
    """

    scene: SceneInfo
    reading: SceneSource
    region: Rect
    area: Area | None
    card: Card
    model_digest: str
    provider: str
    engine: EngineSpec
    outputs: Outputs
    sources: tuple[SourceFile, ...] | None
    unsure: Unsure | None = None
    version: str = __version__

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The layers of the map that are computed."""
        return ("labels", *(layer for layer in LAYERS if layer in self.outputs.files))

    @cached_property
    def classes(self) -> tuple[MapClass, ...]:
        """The classes of the map, in the order of its values."""
        return self.card.classes + (() if self.unsure is None else self.unsure.extra_classes)

    @cached_property
    def shown_bands(self) -> tuple[int, int, int]:
        """The scene's bands to draw: true colours if the model reads them, else the first bands that it reads."""
        bidx = self.reading.bidx
        known = {canonical(name): band for name, band in read_bands(self.card, self.reading).items()}
        red, green, blue = (known.get(name, 0) for name in ("red", "green", "blue"))
        if red and green and blue:
            return red, green, blue
        return (bidx[0], bidx[1], bidx[2]) if len(bidx) > 2 else (bidx[0],) * 3

    @cached_property
    def map_grid(self) -> GeoBox:
        """The grid of the map: that of the scene, cut to the region."""
        grid = self.scene.grid.crop(self.region)
        # A GeoTIFF holds either a transform and its CRS or ground control points and theirs.
        if grid.gcps and grid.crs is not None:
            placed = grid.transform != Affine.identity()
            return replace(grid, gcps=(), gcps_crs=None) if placed else replace(grid, crs=None)
        return grid

    @property
    def read_grid(self) -> GeoBox:
        """The grid that the scene is read on, which is not its own if it is read at the model's resolution."""
        return self.reading.grid or self.scene.grid

    @cached_property
    def tiles(self) -> TileGrid:
        """The tiles of the region, on the grid that the scene is read on."""
        grid, card = self.read_grid, self.card
        return TileGrid(
            grid.width,
            grid.height,
            self.engine.tile,
            card.halo,
            card.stride,
            self.region if self.reading.grid is None else self._read_region(self.reading.grid),
            uniform=not self.engine.on_cpu,
        )

    @property
    def tile_area(self) -> Area | None:
        """The polygons that tiles are cut to; parts on another grid are cut only when they are regridded."""
        return self.area if self.reading.grid is None else None

    def parts(self) -> list[Part]:
        """Return the parts that may hold data."""
        return list_parts(self.tiles, self.reading, self.tile_area)

    def for_workers(self, threads: int | None) -> "Plan":
        """Return the plan for processes in other folders, whose engines have `threads` threads."""
        path = self.reading.path
        local = not is_text(path) and Path(path).exists()
        return replace(
            self,
            reading=replace(self.reading, path=str(Path(path).resolve()) if local else path),
            outputs=replace(self.outputs, map=self.outputs.map.resolve()),
            engine=self.engine.with_threads(threads),
        )

    def _read_region(self, read: GeoBox) -> Rect:
        """Return the region in pixels of another grid, that the scene is read on."""
        own, region = self.scene.grid, self.region
        x, y = read.width / own.width, read.height / own.height
        col, row = math.floor(region.col * x), math.floor(region.row * y)
        right, bottom = math.ceil(region.right * x), math.ceil(region.bottom * y)
        return Rect(col, row, right - col, bottom - row).intersection(Rect(0, 0, read.width, read.height))


def make_plan(scene: SceneInfo, segmenter: Segmenter, outputs: Outputs, settings: SegmentSettings) -> Plan:
    """Make the plan of a run, and check everything that can be wrong with it before the first pixel is labelled."""
    card, aoi = segmenter.card, None if settings.aoi is None else Path(settings.aoi)
    sources = identify_sources(scene.path, scene.files)
    region, area = Rect(0, 0, scene.grid.width, scene.grid.height), None
    if settings.bounds is not None or aoi is not None:
        region, area = choose_region(scene.grid, settings.bounds, aoi)
    named = [] if is_text(scene.path) else [scene.path]
    inputs = [*named, *scene.files, *(str(file) for file in (aoi, outputs.zones) if file is not None)]
    inputs += [source.name for source in sources or ()]
    outputs.check(inputs, scene.grid.crop(region))
    check_work(region.area, scene.grid)
    plan = Plan(
        scene=scene,
        reading=choose_reading(scene, card, **settings.part(ReadingSettings).values()),
        region=region,
        area=area,
        card=card,
        model_digest=segmenter.model.digest,
        provider=segmenter.provider,
        engine=segmenter.spec,
        outputs=outputs,
        sources=sources,
        unsure=choose_unsure(card, settings),
    )
    if "novelty" in plan.layers:
        check_novelty(scene.title, card, plan.reading)
    if plan.reading.grid is not None:
        check_work(plan.tiles.area.area, plan.read_grid)
    check_machine(card, plan.engine, max(plan.read_grid.width, plan.read_grid.height))
    return plan


def list_parts(tiles: TileGrid, reading: SceneSource, area: Area | None) -> list[Part]:
    """Return the parts of a tile grid, except those of which the scene itself says that they hold no data.

    Args:
        area: Polygons outside of which there are no parts, in pixels of the grid.
    """
    with reading.open() as scene:
        return [
            part
            for part in tiles.parts(max(1, PART_PIXELS // tiles.tile**2))
            if scene.may_hold_data(part.rect) and (area is None or area.touches(part.rect))
        ]


def parts_manifest(plan: Plan) -> dict[str, Any]:
    """Return what parts must have been made from, so that a run may resume with them."""
    return _labels(plan) | _cut(plan)


def fingerprint(plan: Plan) -> str:
    """Return a hash of what decides the content of the outputs, which does not depend on the tiling."""
    labels = _labels(plan)
    del labels["layers"], labels["grid"]["tile"]
    # The files are identified by their full names: how the scene's name is written does not matter. The text of a
    # virtual raster does: it says which bands of them are read, and under which mask.
    if not is_text(plan.reading.path):
        del labels["source"]["path"]
    outputs = plan.outputs
    products = [outputs.products.min_area, outputs.products.simplify, asdict(outputs.cleaning or Cleaning())]
    writing: list[Any] = [_cut(plan), dict(outputs.creation), products]
    if outputs.zones is not None:
        writing.append(zones_digest(outputs.zones))
    return sha256(json.dumps([labels, writing], sort_keys=True).encode()).hexdigest()


def _labels(plan: Plan) -> dict[str, Any]:
    """Return what decides the labels on the grid that the scene is read on."""
    reading, tiles = plan.reading, asdict(plan.tiles)
    del tiles["uniform"]
    return {
        "package": plan.version,
        "files": plan.sources and [[source.name, *source.version] for source in plan.sources],
        "source": {
            "path": reading.path,
            "bidx": reading.bidx,
            "dtype": reading.dtype,
            "nodata": repr(reading.nodata),
            "masked": reading.masked,
            "fill": reading.fill,
            "optional": [asdict(band) for band in reading.optional],
            "rescale": reading.rescale and asdict(reading.rescale),
            "grid": reading.grid and [reading.grid.width, reading.grid.height, *reading.grid.transform],
        },
        "grid": tiles,
        "area": plan.tile_area and plan.tile_area.digest,
        "model": plan.model_digest,
        "provider": plan.provider,
        "unsure": plan.unsure and asdict(plan.unsure),
        "layers": plan.layers,
    }


def _cut(plan: Plan) -> dict[str, Any]:
    """Return the region and the area of the map, on the scene's own grid."""
    return {"region": asdict(plan.region), "area": plan.area and plan.area.digest}
