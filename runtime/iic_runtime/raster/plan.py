"""The plan of a run: everything that decides its maps, made once, checked once, and handed on."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from affine import Affine

from iic_geotools import __version__
from iic_geotools.classmap.classes import MapClass
from iic_geotools.errors import SceneError
from iic_geotools.gdal import is_text, network_options
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.region import Area, Bounds, choose_region
from iic_geotools.scene.rescaling import Pair
from iic_geotools.scene.scene import SceneSource
from iic_geotools.scene.source_files import SourceFile, identify_sources
from iic_geotools.tiling import Part, Rect, TileGrid
from iic_runtime.engine.base import EngineSpec
from iic_runtime.engine.sizing import check_machine, check_work
from iic_runtime.model.card import Card
from iic_runtime.raster.model_input import choose_reading
from iic_runtime.raster.outputs import Outputs
from iic_runtime.raster.unsure import Unsure, choose_unsure
from iic_runtime.segmenter import Segmenter

# A part is held in memory until it is written, and a run that is killed loses at most the parts in progress.
PART_PIXELS = 4 << 20
# Limits of GDAL's block cache in bytes.
CACHE_LIMITS = (64 << 20, 256 << 20)
# GDAL keeps up to 450 files of a mosaic open by default, each with buffers of its own.
OPEN_SOURCES = 24


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
        provider: What computes the labels, in the engine's own words.
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

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers of the map that are computed."""
        return ("labels",) if self.outputs.confidence is None else ("labels", "confidence")

    @property
    def classes(self) -> tuple[MapClass, ...]:
        """The classes of the map, in the order of its values."""
        return self.card.classes + (() if self.unsure is None else self.unsure.extra_classes)

    @property
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

    @property
    def tiles(self) -> TileGrid:
        """The tiles of the region, on the grid that the scene is read on."""
        grid, card = self.read_grid, self.card
        return TileGrid(
            grid.width, grid.height, self.engine.tile, card.halo, card.stride, self._read_region()
        )

    @property
    def tile_area(self) -> Area | None:
        """The polygons that tiles are cut to; parts on another grid are cut only when they are regridded."""
        return self.area if self.reading.grid is None else None

    @property
    def gdal_options(self) -> dict[str, int | str]:
        """GDAL's configuration options for reading the scene."""
        memory = {"GDAL_CACHEMAX": self._cache_bytes(), "GDAL_MAX_DATASET_POOL_SIZE": OPEN_SOURCES}
        return memory | network_options(self.scene.path)

    def parts(self) -> list[Part]:
        """Return the parts that may hold data."""
        return list_parts(self.tiles, self.reading, self.tile_area)

    def manifest(self) -> dict[str, Any]:
        """Return what parts must have been made from, so that a run may resume with them."""
        return self._labels_manifest() | self._cut_manifest()

    def fingerprint(self) -> str:
        """Return a hash of what decides the content of the outputs, which does not depend on the tiling."""
        labels = self._labels_manifest()
        del labels["confidence"], labels["grid"]["tile"]
        # The files are identified by their full names: how the scene's name is written does not matter. The text of a
        # virtual raster does: it says which bands of them are read, and under which mask.
        if not is_text(self.reading.path):
            del labels["source"]["path"]
        outputs = self.outputs
        products = [outputs.min_area, outputs.simplify, asdict(outputs.cleaning)]
        writing: list[Any] = [self._cut_manifest(), dict(outputs.creation), products]
        if outputs.stats_by is not None:
            # Imported here because few runs need it and what it imports.
            from iic_geotools.products.zone_files import zones_digest

            writing.append(zones_digest(outputs.stats_by))
        return sha256(json.dumps([labels, writing], sort_keys=True).encode()).hexdigest()

    def changed_source(self) -> str | None:
        """Return the name of a file of the scene that is not as it was when the run began; None if there is none.

        Raises:
            SceneError: It cannot be found out, e.g. because a server does not answer.
        """
        if self.sources is None:
            return None
        present = identify_sources(self.scene.path, self.scene.files)
        if present is None:
            raise SceneError(
                f"It cannot be checked whether {self.scene.title} changed while it was being mapped; make sure that it "
                "can be read, and run the same command again to resume."
            )
        now = {source.name: source for source in present}
        return next((source.name for source in self.sources if now.get(source.name) != source), None)

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

    def _read_region(self) -> Rect:
        """Return the region in pixels of the grid that the scene is read on."""
        if self.reading.grid is None:
            return self.region
        read, own, region = self.reading.grid, self.scene.grid, self.region
        x, y = read.width / own.width, read.height / own.height
        col, row = math.floor(region.col * x), math.floor(region.row * y)
        right, bottom = math.ceil(region.right * x), math.ceil(region.bottom * y)
        return Rect(col, row, right - col, bottom - row).intersection(Rect(0, 0, read.width, read.height))

    def _cache_bytes(self) -> int:
        """Return the size of GDAL's block cache: a row of tiles reads the same strips repeatedly, but few blocks."""
        smallest, largest = CACHE_LIMITS
        block_height, block_width = self.scene.block
        grid, tiles = self.scene.grid, self.tiles
        if block_width < grid.width:
            return smallest
        rows = tiles.read_side * grid.height / tiles.height + block_height
        pixel = sum(np.dtype(dtype).itemsize for dtype in self.scene.dtypes)
        return int(min(max(grid.width * rows * pixel, smallest), largest))

    def _labels_manifest(self) -> dict[str, Any]:
        """Return what decides the labels on the grid that the scene is read on."""
        reading = self.reading
        return {
            "package": self.version,
            "files": self.sources and [[source.name, *source.version] for source in self.sources],
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
            "grid": asdict(self.tiles),
            "area": self.tile_area and self.tile_area.digest,
            "model": self.model_digest,
            "provider": self.provider,
            "unsure": self.unsure and asdict(self.unsure),
            "confidence": self.outputs.confidence is not None,
        }

    def _cut_manifest(self) -> dict[str, Any]:
        """Return what the map is cut to, on the scene's own grid."""
        return {"region": asdict(self.region), "area": self.area and self.area.digest}


def make_plan(
    scene: SceneInfo,
    segmenter: Segmenter,
    outputs: Outputs,
    *,
    bands: Sequence[str | int] | None = None,
    nodata: float | None = None,
    rescale: str | None = None,
    reflectance: Pair | None = None,
    match_gsd: bool | None = None,
    bounds: Bounds | None = None,
    aoi: Path | None = None,
    min_confidence: float = 0.0,
    unsure_class: bool = False,
) -> Plan:
    """Make the plan of a run, and check all that can be wrong with it before the first pixel is labelled.

    Args:
        scene: What is known about the scene.
        segmenter: The model.
        outputs: The files that are written.
        bands: As in `segment_raster`.
        nodata: As in `segment_raster`.
        rescale: As in `segment_raster`.
        reflectance: As in `segment_raster`.
        match_gsd: As in `segment_raster`.
        bounds: As in `segment_raster`.
        aoi: As in `segment_raster`.
        min_confidence: As in `segment_raster`.
        unsure_class: As in `segment_raster`.

    Raises:
        IICError: The run cannot succeed.
    """
    sources = identify_sources(scene.path, scene.files)
    region, area = choose_region(scene.grid, bounds, aoi)
    named = [] if is_text(scene.path) else [scene.path]
    inputs = [*named, *scene.files, *(str(file) for file in (aoi, outputs.stats_by) if file is not None)]
    inputs += [source.name for source in sources or ()]
    outputs.check(inputs, scene.grid.crop(region))
    check_work(region.area, scene.grid)
    plan = Plan(
        scene=scene,
        reading=choose_reading(
            scene,
            segmenter.card,
            bands=bands,
            nodata=nodata,
            rescale=rescale,
            reflectance=reflectance,
            match_gsd=match_gsd,
        ),
        region=region,
        area=area,
        card=segmenter.card,
        model_digest=segmenter.model.digest,
        provider=segmenter.provider,
        engine=segmenter.spec,
        outputs=outputs,
        sources=sources,
        unsure=choose_unsure(segmenter.card, min_confidence, unsure_class),
    )
    check_work(plan.tiles.area.area, plan.read_grid)
    longest = max(plan.read_grid.width, plan.read_grid.height)
    check_machine(plan.card, plan.engine, longest)
    return plan


def list_parts(tiles: TileGrid, reading: SceneSource, area: Area | None) -> list[Part]:
    """Return the parts of a tile grid, except those of which the scene itself says that they hold no data.

    Args:
        tiles: The tile grid.
        reading: How the scene is read on this grid.
        area: Polygons outside of which there are no parts, in pixels of the grid.
    """
    with reading.open() as scene:
        return [
            part
            for part in tiles.parts(max(1, PART_PIXELS // tiles.tile**2))
            if scene.may_hold_data(part.rect) and (area is None or area.touches(part.rect))
        ]
