"""Scene to map: the one function behind `iic-segment-raster`."""

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio

from iic_geotools.classmap import creation_options
from iic_geotools.errors import UsageError
from iic_geotools.grid import Grid, Part, Tile
from iic_geotools.parts import PartFolder
from iic_geotools.regions import Bounds
from iic_geotools.scene import describe
from iic_runtime.card import Card
from iic_runtime.choosing import Models
from iic_runtime.cluster import Cluster, connected
from iic_runtime.engines import Device
from iic_runtime.finish import Placed, finish, made_before
from iic_runtime.job import Job
from iic_runtime.outputs import Outputs
from iic_runtime.pipeline import WriteParts, layers, write_parts
from iic_runtime.planning import Target, plan_target
from iic_runtime.progress import OnProgress, Progress, silent
from iic_runtime.regrid import regrid_parts
from iic_runtime.segmenter import Segmenter

_LOG = logging.getLogger(__name__)
PathLike = str | os.PathLike[str]
CACHE_LIMITS = (64 << 20, 256 << 20)
# GDAL keeps up to 450 files of a mosaic open, each with buffers of its own.
OPEN_SOURCES = 24


@dataclass(frozen=True)
class Summary:
    """What a run did, with the model of that card; `made_before` if an earlier run had done it all."""

    map: Path
    card: Card
    provider: str
    pixels: int
    tiles_run: int
    tiles_without_data: int
    parts_reused: int
    seconds: float
    made_before: bool = False

    def sentence(self) -> str:
        """The run in a line."""
        speed = self.pixels / 1e6 / max(self.seconds, 1e-9)
        return f"{self.map}: {self.pixels / 1e6:.2f} Mpx in {self.seconds:.1f} s ({speed:.2f} Mpx/s, {self.provider})"


def segment_raster(
    scene: PathLike,
    out: PathLike,
    model: PathLike | Segmenter | Models | None = None,
    *,
    bands: Sequence[str] | None = None,
    device: Device = "auto",
    tile: int | None = None,
    batch: int | None = None,
    threads: int | None = None,
    max_memory: int | None = None,
    rescale: str | None = None,
    match_gsd: bool = False,
    bounds: Bounds | None = None,
    aoi: PathLike | None = None,
    nodata: float | None = None,
    co: Mapping[str, str] | None = None,
    overwrite: bool = False,
    resume: bool = True,
    keep: bool = False,
    confidence: PathLike | None = None,
    polygons: PathLike | None = None,
    min_area: float = 0.0,
    stats: PathLike | None = None,
    preview: PathLike | None = None,
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    progress: OnProgress = silent,
) -> Summary:
    """Map a scene of any size: read it in tiles, label them, write one Cloud-Optimised GeoTIFF.

    The map lies on the scene's grid; 255 is nodata. Memory is set by `tile` and `batch`, not by the scene. A run
    that was killed goes on where it was when it is called again with the same arguments.

    Args:
        scene: anything GDAL opens.
        out: the map, .tif; nothing stands under this name before the map is whole.
        model: a model file or the name of a bundled model; by default the one in the environment's `IIC_MODEL`, else
            the bundled one made for the scene's ground resolution. Or a Segmenter or Models, to open a model once for
            many scenes; they have their own device, tile, batch, threads and max_memory.
        bands: the scene's bands for the model's, in the model's order, by name or number; by default matched by name.
        device: "auto", "cpu", "cuda" or "tensorrt".
        tile: side in pixels of what is labelled at once.
        batch: tiles run at once.
        threads: of the engine.
        max_memory: bytes; tile and batch are chosen to stay below.
        rescale: "MIN,MAX" or "auto", each band's own 2nd and 98th percentile: the scene's values that become the ends
            of the model's range; "off": values as they are; by default as the model's card says.
        match_gsd: run at the model's ground sample distance and map back onto the scene's grid.
        bounds: left, bottom, right, top in the scene's CRS: map only these.
        aoi: vector file: map only inside its polygons.
        nodata: the scene's value for "no data", over what the file says.
        co: creation options of GDAL's COG driver.
        overwrite: replace outputs that exist.
        resume: take up the parts of an earlier run of the same work.
        keep: leave outputs that an earlier run of the same work made as they are, and be done.
        confidence: also write 255 x the probability of each label (254 at most), .tif.
        polygons: also write polygons, .gpkg, .fgb or .geojson.
        min_area: leave out polygons smaller than this many square metres.
        stats: also write the area of each class, .json or .csv.
        preview: also write a picture of scene and map, .png.
        workers: label with so many processes, started here, each on its share of the cores; `max_memory` is for each.
        scheduler: address of a Dask scheduler whose workers label, with scene and map on a disk that they share; or a
            Cluster that is connected already.
        progress: told how far the work is.

    Raises:
        IICError: something is wrong; the message says what, and what to do. No output was written.
    """
    begun = time.monotonic()
    scene = os.fspath(scene)
    outputs = Outputs(Path(out), *map(_path, (confidence, polygons, stats, preview)))
    folder = PartFolder(outputs.parts, layers(confidence is not None))
    outputs.check([scene, *([] if aoi is None else [os.fspath(aoi)])], overwrite or keep or folder.placing)
    options = creation_options(co or {})
    if min_area and polygons is None:
        raise UsageError("--min-area is about --polygons; give both or neither.")
    if not isinstance(model, Models):
        model = Models(model, device=device, threads=threads, tile=tile, batch=batch, max_memory=max_memory)
    info = describe(scene)
    segmenter = model.fitting(info)
    target = plan_target(
        info,
        segmenter.card,
        bands=bands,
        nodata=nodata,
        rescale=rescale,
        match_gsd=match_gsd,
        bounds=bounds,
        aoi=_path(aoi),
    )
    outputs.check_inputs(target.info.files)
    if outputs.polygons is not None:
        from iic_geotools.vectors import check_polygons  # brings pandas along where that is installed

        check_polygons(outputs.polygons, target.map_grid, min_area)
    job = _job(target, segmenter, confidence is not None)
    work = job.work(target.manifest(), dict(options), min_area)
    if keep and not overwrite and not folder.placing and made_before(outputs, work):
        return _summary(outputs, segmenter, target, Counter(), 0, begun, made_before=True)
    _announce(target, segmenter)
    with (
        connected(workers, scheduler, threads) as cluster,
        rasterio.Env(GDAL_CACHEMAX=_cache_size(job, target)),
        folder.claimed(job.manifest() | target.manifest(), resume) as reused,
    ):
        if not (overwrite or folder.placing):
            outputs.check_absent()
        parts = job.parts()
        write = write_parts if cluster is None else cluster.write_parts
        counts = _write_missing(job, parts, folder, segmenter, write, progress)
        placed = _map_parts(job, parts, target, folder, progress)
        progress(Progress("write", 0, 1))
        finish(outputs, target, folder, placed, segmenter, options, min_area, work)
        progress(Progress("write", 1, 1))
        folder.remove()
    return _summary(outputs, segmenter, target, counts, reused, begun)


def _summary(
    outputs: Outputs,
    segmenter: Segmenter,
    target: Target,
    counts: Counter[bool],
    reused: int,
    begun: float,
    made_before: bool = False,
) -> Summary:
    return Summary(
        map=outputs.map,
        card=segmenter.card,
        provider=segmenter.provider,
        pixels=target.region.area,
        tiles_run=counts[True],
        tiles_without_data=counts[False],
        parts_reused=reused,
        seconds=time.monotonic() - begun,
        made_before=made_before,
    )


def _path(name: PathLike | None) -> Path | None:
    return None if name is None else Path(name)


def _job(target: Target, segmenter: Segmenter, confidence: bool) -> Job:
    card = segmenter.card
    read = target.source.grid or target.info.grid
    grid = Grid(read.width, read.height, segmenter.sizing.tile, card.halo, card.stride, target.working_region)
    return Job(
        source=target.source,
        files=target.info.files,
        grid=grid,
        # An area is cut out at the scene's own resolution.
        area=target.area if target.source.grid is None else None,
        model_digest=segmenter.model.digest,
        provider=segmenter.provider,
        confidence=confidence,
    )


def _announce(target: Target, segmenter: Segmenter) -> None:
    if target.info.grid.crs is None and not target.info.grid.gcps:
        _LOG.warning("%s has no CRS: the map will have none either, and no areas.", target.info.path)
    sizing = segmenter.sizing
    _LOG.info(
        "%s on %s, tiles of %d px, batches of %d",
        segmenter.card.name,
        segmenter.provider,
        sizing.tile,
        sizing.batch,
    )


def _cache_size(job: Job, target: Target) -> int:
    """Bytes of GDAL's block cache: a row of tiles reads the same strips again and again, but few tiled blocks."""
    info = target.info
    smallest, largest = CACHE_LIMITS
    if info.block[1] < info.grid.width:
        return smallest
    rows = job.grid.read_side * info.grid.height / job.grid.height + info.block[0]
    pixel = sum(np.dtype(dtype).itemsize for dtype in info.dtypes)
    return int(min(max(info.grid.width * rows * pixel, smallest), largest))


def _write_missing(
    job: Job,
    parts: Sequence[Part],
    folder: PartFolder,
    segmenter: Segmenter,
    write: WriteParts,
    progress: OnProgress,
) -> Counter[bool]:
    """Make the parts that are not there yet; count the tiles that were run and those without data."""
    missing = [part for part in parts if not folder.done(part.index)]
    total = sum(part.rect.area for part in parts)
    done = total - sum(part.rect.area for part in missing)
    counts: Counter[bool] = Counter()
    if done:
        _LOG.info("Going on with %d of %d parts done", len(parts) - len(missing), len(parts))

    def on_tile(tile: Tile, held_data: bool) -> None:
        nonlocal done
        done += tile.core.area
        counts[held_data] += 1
        progress(Progress("segment", done, total))

    progress(Progress("segment", done, total))
    if missing:
        write(job, missing, folder, segmenter, on_tile)
    if len(missing) == len(parts) and not counts[True]:
        _LOG.warning(
            "No pixel of %s that is to be mapped holds data: the map will be empty.", job.source.path
        )
    return counts


def _map_parts(
    job: Job, parts: Sequence[Part], target: Target, folder: PartFolder, progress: OnProgress
) -> Placed:
    """The parts of each layer and where they lie on the map's grid, regridded first if they lie on another."""
    region = job.grid.area
    if job.source.grid is not None:
        folder, parts = regrid_parts(job, parts, target, folder, progress)
        region = target.region
    return {
        name: [(folder.file(layer, part.index), part.rect.relative_to(region)) for part in parts]
        for name, layer in zip(layers(job.confidence), folder.layers, strict=True)
    }
