"""Scene to map: the function behind `iic-segment-raster`."""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import partial
from html import escape
from pathlib import Path

import rasterio

from iic_geotools.classmap.class_map import FINGERPRINT_TAG, LABELS_TAG, PLACES_TAG, format_places
from iic_geotools.classmap.classes import MapClass
from iic_geotools.classmap.cog import assemble, creation_options
from iic_geotools.classmap.sidecars import map_style, sidecar_path, stac_item, style_path, with_areas
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.files import put_in_place
from iic_geotools.gdal import is_text, network_options
from iic_geotools.geobox import GeoBox
from iic_geotools.products.areas import class_areas, write_stats
from iic_geotools.products.cleaning import Cleaning
from iic_geotools.products.zones import measure_zones
from iic_geotools.scene.composition import apply_mask
from iic_geotools.scene.info import SceneInfo, open_raster
from iic_geotools.scene.likelihood import NOVEL
from iic_geotools.scene.listing import find_scene
from iic_geotools.scene.source_files import identify_sources
from iic_geotools.scene.valuemask import ValueMask
from iic_geotools.settings import PathLike, setting, takes
from iic_geotools.tiling import Part, Rect, Tile
from iic_geotools.work import OnProgress, Progress
from iic_runtime.model.card import Card
from iic_runtime.options import EngineSettings, ProductSettings, SegmentSettings
from iic_runtime.raster.cluster import connect_cluster
from iic_runtime.raster.part_folder import MapParts, PartFolder
from iic_runtime.raster.plan import LAYERS, Outputs, Plan, fingerprint, make_plan, parts_manifest
from iic_runtime.raster.plausibility import check_map
from iic_runtime.raster.stages import Sampler, clean_parts, gdal_options, label_parts, regrid_parts
from iic_runtime.segmenter import Segmenter, SegmenterPool

_LOG = logging.getLogger(__name__)
NOTEBOOK_SIDE = 800
"""The longest side in pixels of the pictures in a notebook, which is saved with them."""
NOTES_TAG = "IIC_READ_AS"
"""The tag of a map that says how the scene was understood, and what was assumed."""


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
        provider: The execution provider that computed the labels.
        pixels: Number of pixels of the map.
        tiles_run: Number of tiles that were run.
        tiles_without_data: Number of tiles that were skipped because they held no data.
        parts_reused: Number of part files taken from an earlier run.
        seconds: How long the run took.
        made_before: Whether an earlier run had written all outputs.
        title: What the scene is called.
        notes: What was understood and assumed about the scene, and what looks wrong in the map, in sentences.
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
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Describe the run in one line."""
        speed = self.pixels / 1e6 / max(self.seconds, 1e-9)
        return f"{self.map}: {self.pixels / 1e6:.2f} Mpx in {self.seconds:.1f} s ({speed:.2f} Mpx/s, {self.provider})"

    def _repr_html_(self) -> str:
        """Show scene and map in a notebook, to zoom and compare; a sentence if one of them is missing."""
        from iic_geotools.products.web.page import WebPage, embed

        try:
            with rasterio.Env(**network_options(self.scene)):
                page = WebPage(
                    self.scene,
                    self.map,
                    self.classes,
                    bidx=self.bidx,
                    region=self.region,
                    note=page_note(self.card, self.title or self.scene),
                    side=NOTEBOOK_SIDE,
                ).html()
        except SceneError as error:
            return f"<p>{escape(self.sentence())}<br>{escape(str(error))}</p>"
        return embed(page)


@dataclass(frozen=True)
class SegmentArguments(SegmentSettings):
    """Arguments of `segment_raster`."""

    scene: PathLike | SceneInfo
    out: PathLike
    model: PathLike | Segmenter | SegmenterPool | None = None
    _: KW_ONLY
    keep: bool = setting(
        False, "Leave outputs as they are if an earlier run of the same work has written them.", option=False
    )


@takes(SegmentArguments)
def segment_raster(arguments: SegmentArguments) -> Summary:
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

    Returns:
        A summary of the run.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No output is written.
    """
    begun, progress = time.monotonic(), arguments.progress
    segmenter, plan = _plan(arguments)
    folder = PartFolder(plan.outputs.parts, plan.layers)
    if arguments.keep and not arguments.overwrite and not folder.has_begun_placement and is_written(plan):
        return _summarise(plan, begun, made_before=True)
    _announce(plan)
    alone = arguments.workers is None and arguments.scheduler is None
    with (
        nullcontext() if alone else connect_cluster(arguments) as cluster,
        rasterio.Env(**gdal_options(plan)),
        folder.claim(
            parts_manifest(plan),
            arguments.resume,
            None if arguments.overwrite else plan.outputs.check_absent,
            resumable=plan.sources is not None,
        ) as reused,
    ):
        parts = plan.parts()
        # On a GPU confidence would be computed for nothing else.
        sampler = Sampler(plan) if cluster is None and plan.engine.on_cpu else None
        label = partial(label_parts, sampler=sampler) if cluster is None else cluster.label_parts
        counts = _label_missing(plan, parts, folder, partial(label, segmenter=segmenter), progress)
        map_parts = regrid_parts(plan, parts, folder, progress)
        _check_sources(plan, folder)
        map_parts = clean_parts(plan, map_parts, folder, progress)
        write_outputs(plan, map_parts, folder, progress)
        folder.remove()
        doubts = check_map(plan, segmenter, None if sampler is None else sampler.sample())
    return _summarise(plan, begun, counts, reused, doubts=doubts)


def _plan(arguments: SegmentArguments) -> tuple[Segmenter, Plan]:
    """Open the model and make the plan: every check, once."""
    outputs = Outputs(
        map=Path(arguments.out),
        products=arguments.part(ProductSettings),
        cleaning=Cleaning.of(arguments.values()) if arguments.sieve or arguments.majority else None,
        creation=creation_options(arguments.co or {}),
    )
    scene = arguments.scene.path if isinstance(arguments.scene, SceneInfo) else os.fspath(arguments.scene)
    named = [scene, arguments.aoi, outputs.zones]
    outputs.check_names([str(file) for file in named if file is not None and not is_text(str(file))])
    if not (arguments.overwrite or arguments.keep or outputs.parts.exists()):
        outputs.check_absent()  # where an earlier run may be resumed, `claim` finds out whether they are its own
    pool = arguments.model
    if not isinstance(pool, SegmenterPool):
        pool = SegmenterPool(pool, arguments.part(EngineSettings))
    info = arguments.scene
    if not isinstance(info, SceneInfo):
        info = find_scene(info, arguments.asset, arguments.mask)
    elif arguments.asset is not None:
        raise UsageError("`asset` is for STAC items, and this scene is described already.")
    elif arguments.mask is not None:
        info = apply_mask(info, ValueMask.of(arguments.mask))
    segmenter = pool.for_scene(info)
    with rasterio.Env(**network_options(info.path)):
        return segmenter, make_plan(info, segmenter, outputs, arguments)


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
    if "novelty" in plan.layers:
        _LOG.info(
            "Novelty: 255 x the probability that a spectrum is unlike those that the model knows, foreign from %d on",
            NOVEL,
        )


def _check_sources(plan: Plan, folder: PartFolder) -> None:
    """Refuse to make a map from parts of two versions of a scene, and remove them."""
    if plan.sources is None:
        return
    present = identify_sources(plan.scene.path, plan.scene.files)
    if present is None:
        raise SceneError(
            f"It cannot be checked whether {plan.scene.title} changed while it was being mapped; make sure that it "
            "can be read, and run the same command again to resume."
        )
    now = {source.name: source for source in present}
    changed = [source.name for source in plan.sources if now.get(source.name) != source]
    if changed:
        folder.remove()
        raise SceneError(
            f"{changed[0]} changed while it was being mapped, so the map would be a mixture of both versions; run the "
            "same command again."
        )


def _label_missing(
    plan: Plan,
    parts: Sequence[Part],
    folder: PartFolder,
    label: Callable[..., None],
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
        label(plan, missing, folder, on_tile=on_tile)
    if len(missing) == len(parts) and not counts[True]:
        _LOG.warning("No pixel of %s in the region holds data: the map will be empty.", plan.scene.title)
    return counts


def _summarise(
    plan: Plan,
    begun: float,
    counts: Mapping[bool, int] | None = None,
    reused: int = 0,
    made_before: bool = False,
    doubts: tuple[str, ...] = (),
) -> Summary:
    counts = counts or {}
    return Summary(
        map=plan.outputs.map,
        scene=plan.scene.path,
        region=plan.region,
        bidx=plan.shown_bands,
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
        notes=plan.reading.notes + doubts,
    )


def is_written(plan: Plan) -> bool:
    """Return whether every output exists, and the map was made for the same plan, from files that are known."""
    if plan.sources is None or not all(file.exists() for file in plan.outputs.files.values()):
        return False
    with open_raster(str(plan.outputs.map)) as dataset:
        return bool(dataset.tags().get(FINGERPRINT_TAG) == fingerprint(plan))


def write_outputs(plan: Plan, parts: MapParts, folder: PartFolder, progress: OnProgress) -> None:
    """Write every output from the parts; the name of the map appears last, when all other outputs are in place."""
    progress(Progress("write", 0, 1))
    outputs, classes, grid = plan.outputs, plan.classes, plan.map_grid
    tags = _provenance(plan)
    moves: list[tuple[Path, Path]] = []

    def temporary(final: Path) -> Path:
        """Return where an output is written before it is put in place."""
        moves.append((folder.path / f"made{len(moves)}{final.suffix.lower()}", final))
        return moves[-1][0]

    map_file = temporary(outputs.map)
    lost = assemble(parts["labels"], map_file, grid, classes=classes, tags=tags, options=outputs.creation)
    if lost or plan.scene.grid.gcps:
        _warn_about_losses(plan, map_file)
    temporary(outputs.style).write_bytes(map_style(classes))
    for layer in plan.layers[1:]:
        file = temporary(outputs.files[layer])
        assemble(parts[layer], file, grid, classes=None, tags=tags, options=outputs.creation)
    _write_products(plan, map_file, temporary, progress)
    folder.begin_placement()
    for source, final in reversed(moves):
        _place(source, final, outputs)
    progress(Progress("write", 1, 1))


def _write_products(
    plan: Plan, map_file: Path, temporary: Callable[[Path], Path], progress: OnProgress
) -> None:
    """Write the products of the map; heavy imports are local, because few runs need them."""
    outputs, classes, files = plan.outputs, plan.classes, plan.outputs.files
    if polygons := files.get("polygons"):
        from iic_geotools.products.polygons import polygonise

        settings, target = outputs.products, temporary(polygons)
        polygonise(map_file, target, classes, settings.min_area, settings.simplify, progress)
    stats = files.get("stats")
    if stats and outputs.zones:
        measure_zones(map_file, outputs.zones, temporary(stats), stats.stem)
        stats = None
    if stac := files.get("stac"):
        assets = {"map" if name == "out" else name: file for name, file in files.items() if name != "stac"}
        software, scene = f"iic-edge {plan.version}", _scene_name(plan.scene.title)
        temporary(stac).write_bytes(stac_item(stac, assets, plan.map_grid, classes, scene, software))
    preview, web = files.get("preview"), files.get("web")
    areas = class_areas(map_file, classes) if stats or preview or web else None
    if areas:
        covered = [(entry.pixels, entry.ha) for entry in areas.classes]
        sidecar_path(map_file).write_bytes(with_areas(sidecar_path(map_file).read_bytes(), covered))
    if stats and areas:
        write_stats(temporary(stats), areas)
    bidx, region = plan.shown_bands, plan.region
    if preview:
        from iic_geotools.products.preview import preview as draw_preview

        file = temporary(preview)
        draw_preview(plan.scene.path, map_file, file, classes, bidx=bidx, region=region, areas=areas)
    if web:
        from iic_geotools.products.web.page import WebPage

        WebPage(
            plan.scene.path,
            map_file,
            classes,
            bidx=bidx,
            region=region,
            areas=areas,
            title=outputs.map.name,
            note=page_note(plan.card, plan.scene.title),
        ).write(temporary(web))


def _warn_about_losses(plan: Plan, map_file: Path) -> None:
    """Say which parts of the scene's georeference a GeoTIFF and its sidecar could not hold."""
    with open_raster(str(map_file)) as dataset:
        losses = plan.scene.grid.crop(plan.region).differences(GeoBox.of(dataset))
    if losses:
        _LOG.warning("The map could not keep the %s of %s.", " and ".join(losses), plan.scene.title)


def _place(source: Path, final: Path, outputs: Outputs) -> None:
    """Put a file and its sidecar in place, and remove the sidecars of a file that it replaces."""
    if sidecar_path(source).exists():
        put_in_place(sidecar_path(source), sidecar_path(final))
    else:
        sidecar_path(final).unlink(missing_ok=True)
    if final in map(outputs.files.get, LAYERS) and final.exists():
        style_path(final).unlink(missing_ok=True)
    put_in_place(source, final)


def page_note(card: Card, scene: str) -> str:
    """Return the sentence below the legend of a page that shows a map."""
    return f"Scene: {_scene_name(scene)}. Model: {card.name}. Made with iic-edge."


def _scene_name(path: str) -> str:
    """Return the name of a scene without its folder or server; the query of a URL may hold a token."""
    return Path(path.partition("?")[0]).name


def _provenance(plan: Plan) -> dict[str, str]:
    origin = plan.card.origin
    seen = {
        LABELS_TAG: origin.labels,
        PLACES_TAG: format_places(origin.places) if origin.places else "",
        NOTES_TAG: " ".join(plan.reading.notes),
    }
    return {
        "IIC_MODEL": plan.card.name,
        "IIC_MODEL_SHA256": plan.model_digest,
        "IIC_RUN": origin.run,
        "IIC_ENGINE": plan.provider,
        "TIFFTAG_SOFTWARE": f"iic-edge {plan.version}",
        "IIC_SCENE": _scene_name(plan.scene.title),
        FINGERPRINT_TAG: fingerprint(plan),
        **{tag: text for tag, text in seen.items() if text},
        **(plan.outputs.cleaning.tags if plan.outputs.cleaning else {}),
    }
