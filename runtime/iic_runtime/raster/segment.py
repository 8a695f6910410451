"""Scene to map: the function behind `iic-segment-raster`."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import rasterio

from iic_geotools.classmap.classes import MapClass
from iic_geotools.classmap.cog import creation_options
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.gdal import network_options
from iic_geotools.products.cleaning import Cleaning
from iic_geotools.progress import OnProgress, Progress, silent
from iic_geotools.scene.composition import apply_mask
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.listing import AssetArgument, find_scene
from iic_geotools.scene.region import Bounds
from iic_geotools.scene.valuemask import MaskArgument, ValueMask
from iic_geotools.tiling import Part, Rect, Tile
from iic_runtime.adapters.dask import Cluster, connect_cluster
from iic_runtime.engine.base import Device
from iic_runtime.model.card import Card
from iic_runtime.raster.arguments import PathLike
from iic_runtime.raster.clean_parts import clean_parts
from iic_runtime.raster.label_parts import LabelParts, label_parts
from iic_runtime.raster.outputs import Outputs
from iic_runtime.raster.part_folder import PartFolder
from iic_runtime.raster.plan import Plan, make_plan
from iic_runtime.raster.regrid_parts import regrid_parts
from iic_runtime.raster.write_outputs import MapParts, is_written, page_note, shown_bands, write_outputs
from iic_runtime.segmenter import Segmenter, SegmenterPool

_LOG = logging.getLogger(__name__)
NOTEBOOK_SIDE = 800
"""The longest side in pixels of the pictures in a notebook, which is saved with them."""


@dataclass(frozen=True)
class Summary:
    """What a run did.

    Attributes:
        map: The map.
        scene: The scene: its path or address, or the text of a virtual raster.
        region: The pixels of the scene that the map covers.
        bidx: The scene's bands that pictures show as red, green and blue, counted from 1.
        card: The card of the model that labelled it.
        classes: The classes of the map, in the order of its values.
        provider: What computed the labels, in the engine's own words.
        pixels: Number of pixels of the map.
        tiles_run: Number of tiles that were run.
        tiles_without_data: Number of tiles that were skipped because they held no data.
        parts_reused: Number of part files taken from an earlier run.
        seconds: How long the run took.
        made_before: Whether an earlier run had written all outputs.
        title: What the scene is called.
    """

    map: Path
    scene: str
    region: Rect
    bidx: tuple[int, int, int]
    card: Card
    classes: tuple[MapClass, ...]
    provider: str
    pixels: int
    tiles_run: int
    tiles_without_data: int
    parts_reused: int
    seconds: float
    made_before: bool = False
    title: str = ""

    def sentence(self) -> str:
        """Describe the run in one line."""
        speed = self.pixels / 1e6 / max(self.seconds, 1e-9)
        return f"{self.map}: {self.pixels / 1e6:.2f} Mpx in {self.seconds:.1f} s ({speed:.2f} Mpx/s, {self.provider})"

    def _repr_html_(self) -> str:
        """Show scene and map in a notebook, where one can zoom and compare them; a sentence says so if one is gone."""
        from iic_geotools.products.web.page import embed, web_page

        try:
            with rasterio.Env(**network_options(self.scene)):
                page = web_page(
                    self.scene,
                    self.map,
                    self.classes,
                    bidx=self.bidx,
                    region=self.region,
                    note=page_note(self.card, self.title or self.scene),
                    side=NOTEBOOK_SIDE,
                )
        except SceneError as error:
            return f"<p>{escape(self.sentence())}<br>{escape(str(error))}</p>"
        return embed(page)


def segment_raster(
    scene: PathLike | SceneInfo,
    out: PathLike,
    model: PathLike | Segmenter | SegmenterPool | None = None,
    *,
    asset: AssetArgument | None = None,
    mask: MaskArgument | None = None,
    bands: Sequence[str | int] | None = None,
    device: Device = "auto",
    tile: int | None = None,
    batch: int | None = None,
    threads: int | None = None,
    max_memory: int | None = None,
    rescale: str | None = None,
    reflectance: tuple[float, float] | None = None,
    match_gsd: bool | None = None,
    bounds: Bounds | None = None,
    aoi: PathLike | None = None,
    nodata: float | None = None,
    co: Mapping[str, str] | None = None,
    min_confidence: float = 0.0,
    unsure_class: bool = False,
    majority: int = 0,
    sieve: float = 0.0,
    overwrite: bool = False,
    resume: bool = True,
    keep: bool = False,
    confidence: PathLike | None = None,
    polygons: PathLike | None = None,
    min_area: float = 0.0,
    simplify: float = 0.0,
    stats: PathLike | None = None,
    stats_by: PathLike | None = None,
    preview: PathLike | None = None,
    web: PathLike | None = None,
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    progress: OnProgress = silent,
) -> Summary:
    """Map a scene of any size: read it in tiles, label them, write one Cloud-Optimised GeoTIFF.

    The map has the grid of the scene; 255 is nodata. `tile` and `batch` decide how much memory a run takes, not the
    size of the scene. A run that was killed resumes when it is called again with the same arguments.

    Args:
        scene: The scene, anything that GDAL opens, or a STAC item, a file or an address; or its description, if more
            is known about it than the file says.
        out: The map, .tif. The file appears under this name only when it is complete.
        model: A model file or the name of a bundled model; by default the one that the environment variable
            `IIC_MODEL` names, or else the bundled one made for the scene's ground resolution. Give a Segmenter or a
            SegmenterPool to open a model once for many scenes; `device`, `tile`, `batch`, `threads` and `max_memory`
            are then ignored.
        asset: The asset of a STAC item that is the scene, or several that are its bands, by name or by the common
            names of bands; bands of different resolution are brought onto the finest grid. By default the only asset
            with the role "data".
        mask: A raster and those of its values at which the scene holds no data, e.g. `("scl.tif", [3, 8, 9, 10])` for
            the clouds and shadows of Sentinel-2; of a STAC item also the name of an asset. It may have another
            resolution or CRS, but must cover the scene.
        bands: The scene's bands for those of the model, in the model's order, by name or number; by default they are
            matched by name.
        device: "auto", "cpu", "openvino", "cuda" or "tensorrt".
        tile: Side in pixels of the squares that are labelled at once.
        batch: Number of tiles that are run at once.
        threads: Number of threads of the engine.
        max_memory: Bytes that a run may take; tile and batch are chosen to stay below.
        rescale: Which values of the scene become the ends of the model's range: "MIN,MAX", or "auto" for each band's
            own 2nd and 98th percentile. "off" takes the values as they are. By default as the model's card says.
        reflectance: For models that take reflectance: the scale and offset that turn the scene's values into it, value
            x scale + offset. By default as the scene says, or what its values look like, or else an estimate over the
            whole scene; the log says which.
        match_gsd: Whether to run at the model's ground sample distance and map back onto the scene's grid; by default
            where the scene is finer than what the model is made for.
        bounds: Left, bottom, right and top of the region to map, in the scene's CRS.
        aoi: A vector file; only the inside of its polygons is mapped.
        nodata: The scene's nodata value; by default the one in the file.
        co: Creation options of GDAL's COG driver.
        min_confidence: Pixels whose label has a lower probability than this, 0 to 1, become nodata in the map.
        unsure_class: Whether they become a class "unsure" instead, the last one of the legend.
        majority: Each pixel takes the most common class of the square that reaches this many pixels in each direction.
        sieve: The area in square metres of the smallest patch that stays in the map; a smaller one takes the class that
            it has the longest border with. Polygons, areas and preview are those of the clean map; the confidence
            stays that of the labels before cleaning.
        overwrite: Whether to replace outputs that exist.
        resume: Whether to use the parts of an earlier run of the same work.
        keep: Whether to leave outputs as they are if an earlier run of the same work has written them.
        confidence: Also write 255 x the probability of each label (254 at most) to this file, .tif.
        polygons: Also write polygons to this file, .gpkg, .fgb, .parquet or .geojson.
        min_area: The area in square metres of the smallest polygon that is written; smaller patches are merged into
            their neighbours as with `sieve`, in the polygons only.
        simplify: By about how many metres the borders of polygons are simplified; neighbours keep sharing them.
        stats: Also write the area of each class to this file, .json or .csv.
        stats_by: Polygons in a vector file: `stats`, .csv or .gpkg, then has a row per polygon with the hectares of
            each class in it. Pixels on the border of a polygon count by the share that lies inside.
        preview: Also write a picture of scene and map to this file, .png.
        web: Also write a page that shows scene and map in a browser to this file, .html.
        workers: Number of processes to start for labelling, each on its share of the cores. `max_memory` then applies
            to each of them.
        scheduler: The address of a Dask scheduler whose workers label; scene and map must be on a disk that they
            share. Or a Cluster that is already connected.
        progress: Called with reports of how far the run is.

    Returns:
        A summary of the run.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No output is written.
    """
    begun = time.monotonic()
    if not isinstance(model, SegmenterPool):
        model = SegmenterPool(
            model, device=device, threads=threads, tile=tile, batch=batch, max_memory=max_memory
        )
    outputs = Outputs(
        map=Path(out),
        confidence=_path(confidence),
        polygons=_path(polygons),
        stats=_path(stats),
        stats_by=_path(stats_by),
        preview=_path(preview),
        web=_path(web),
        min_area=min_area,
        simplify=simplify,
        cleaning=Cleaning(sieve, majority),
        creation=creation_options(co or {}),
    )
    info = _describe(scene, asset, mask)
    segmenter = model.for_scene(info)
    with rasterio.Env(**network_options(info.path)):
        plan = make_plan(
            info,
            segmenter,
            outputs,
            bands=bands,
            nodata=nodata,
            rescale=rescale,
            reflectance=reflectance,
            match_gsd=match_gsd,
            bounds=bounds,
            aoi=_path(aoi),
            min_confidence=min_confidence,
            unsure_class=unsure_class,
        )
    folder = PartFolder(outputs.parts, plan.layers)
    if keep and not overwrite and not folder.has_begun_placement and is_written(plan):
        return _summarise(plan, begun, made_before=True)
    _announce(plan)

    def check_outputs() -> None:
        if not overwrite:
            outputs.check_absent()

    with (
        connect_cluster(workers, scheduler, threads) as cluster,
        rasterio.Env(**plan.gdal_options),
        folder.claim(plan.manifest(), resume, check_outputs, resumable=plan.sources is not None) as reused,
    ):
        parts = plan.parts()
        label = label_parts if cluster is None else cluster.label_parts
        counts = _label_missing(plan, parts, folder, segmenter, label, progress)
        map_parts = _place_parts(plan, parts, folder, progress)
        _check_sources(plan, folder)
        map_parts = clean_parts(plan, map_parts, folder, progress)
        progress(Progress("write", 0, 1))
        write_outputs(plan, map_parts, folder)
        progress(Progress("write", 1, 1))
        folder.remove()
    return _summarise(plan, begun, counts, reused)


def _describe(
    scene: PathLike | SceneInfo, asset: AssetArgument | None, mask: MaskArgument | None
) -> SceneInfo:
    if not isinstance(scene, SceneInfo):
        return find_scene(scene, asset, mask)
    if asset is not None:
        raise UsageError("`asset` is for STAC items, and this scene is described already.")
    return scene if mask is None else apply_mask(scene, ValueMask.of(mask))


def _path(name: PathLike | None) -> Path | None:
    return None if name is None else Path(name)


def _announce(plan: Plan) -> None:
    grid = plan.scene.grid
    if grid.crs is None and not grid.gcps:
        _LOG.warning("%s has no CRS: the map will have none either, and no areas.", plan.scene.title)
    _LOG.info(
        "%s on %s, tiles of %d px, %d at once",
        plan.card.name,
        plan.provider,
        plan.engine.tile,
        plan.engine.batch * plan.engine.lanes,
    )


def _check_sources(plan: Plan, folder: PartFolder) -> None:
    """Refuse to make a map from parts of two versions of a scene, and remove them."""
    changed = plan.changed_source()
    if changed is not None:
        folder.remove()
        raise SceneError(
            f"{changed} changed while it was being mapped, so the map would be a mixture of both versions; run the "
            "same command again."
        )


def _label_missing(
    plan: Plan,
    parts: Sequence[Part],
    folder: PartFolder,
    segmenter: Segmenter,
    label: LabelParts,
    progress: OnProgress,
) -> Counter[bool]:
    """Write the parts that are missing; count the tiles that were run (True) and those without data (False)."""
    missing = [part for part in parts if not folder.has(part.index)]
    total = sum(part.rect.area for part in parts)
    done = total - sum(part.rect.area for part in missing)
    counts: Counter[bool] = Counter()
    if done:
        _LOG.info("Resuming with %d of %d parts done", len(parts) - len(missing), len(parts))

    def on_tile(tile: Tile, held_data: bool) -> None:
        nonlocal done
        done += tile.core.area
        counts[held_data] += 1
        progress(Progress("segment", done, total, unit="px"))

    progress(Progress("segment", done, total, unit="px"))
    if missing:
        label(plan, missing, folder, segmenter, on_tile)
    if len(missing) == len(parts) and not counts[True]:
        _LOG.warning("No pixel of %s in the region holds data: the map will be empty.", plan.scene.title)
    return counts


def _place_parts(plan: Plan, parts: Sequence[Part], folder: PartFolder, progress: OnProgress) -> MapParts:
    """Return the files of each layer and where they lie on the map's grid, after regridding them if needed."""
    region = plan.tiles.area
    if plan.reading.grid is not None:
        parts, folder = regrid_parts(plan, parts, folder, progress)
        region = plan.region
    folder.check(parts)
    with_data = [part for part in parts if folder.holds_data(part.index)]
    return {
        name: [(folder.file(layer, part.index), part.rect.relative_to(region)) for part in with_data]
        for name, layer in zip(plan.layers, folder.layers, strict=True)
    }


def _summarise(
    plan: Plan,
    begun: float,
    counts: Mapping[bool, int] | None = None,
    reused: int = 0,
    made_before: bool = False,
) -> Summary:
    counts = counts or {}
    return Summary(
        map=plan.outputs.map,
        scene=plan.scene.path,
        region=plan.region,
        bidx=shown_bands(plan),
        card=plan.card,
        classes=plan.classes,
        provider=plan.provider,
        pixels=plan.region.area,
        tiles_run=counts.get(True, 0),
        tiles_without_data=counts.get(False, 0),
        parts_reused=reused,
        seconds=time.monotonic() - begun,
        made_before=made_before,
        title=plan.scene.title,
    )
