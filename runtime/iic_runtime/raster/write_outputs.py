"""Parts to files: the map and its products are written next to the parts, and then put in place together."""

import logging
from collections.abc import Callable
from pathlib import Path

from iic_geotools.classmap.cog import assemble
from iic_geotools.classmap.provenance import FINGERPRINT_TAG, LABELS_TAG, PLACES_TAG, format_places
from iic_geotools.classmap.sidecars import map_style, sidecar_path, style_path
from iic_geotools.files import put_in_place
from iic_geotools.geobox import GeoBox
from iic_geotools.products.areas import class_areas, write_stats
from iic_geotools.progress import OnProgress, Progress
from iic_geotools.scene.bands import canonical
from iic_geotools.scene.info import open_raster
from iic_runtime.model.card import Card
from iic_runtime.raster.manifest import fingerprint
from iic_runtime.raster.outputs import Outputs
from iic_runtime.raster.part_folder import MapParts, PartFolder
from iic_runtime.raster.plan import Plan

NOTES_TAG = "IIC_READ_AS"
"""The tag of a map that says how the scene was understood, and what was assumed."""
_LOG = logging.getLogger(__name__)


def is_written(plan: Plan) -> bool:
    """Return whether every output exists, and the map was made for the same plan, from files that are known."""
    if plan.sources is None or not all(file.exists() for file in plan.outputs.files.values()):
        return False
    with open_raster(str(plan.outputs.map)) as dataset:
        return bool(dataset.tags().get(FINGERPRINT_TAG) == fingerprint(plan))


def write_outputs(plan: Plan, parts: MapParts, folder: PartFolder, progress: OnProgress) -> None:
    """Write every output from the parts; the name of the map appears last, when all other outputs are in place.

    Args:
        plan: The plan of the run.
        parts: The parts of the map.
        folder: The folder of parts, where the outputs are written first.
        progress: Called at the beginning and the end.
    """
    progress(Progress("write", 0, 1))
    outputs, classes, grid = plan.outputs, plan.classes, plan.map_grid
    tags = _provenance(plan)
    moves: list[tuple[Path, Path]] = []

    def temporary(final: Path) -> Path:
        """Return where an output is written before it is put in place."""
        moves.append((folder.path / f"made{len(moves)}{final.suffix.lower()}", final))
        return moves[-1][0]

    map_file = temporary(outputs.map)
    assemble(parts["labels"], map_file, grid, classes=classes, tags=tags, options=outputs.creation)
    _warn_about_losses(plan, map_file)
    temporary(outputs.style).write_bytes(map_style(classes))
    if confidence := outputs.files.get("confidence"):
        file = temporary(confidence)
        assemble(parts["confidence"], file, grid, classes=None, tags=tags, options=outputs.creation)
    _write_products(plan, map_file, temporary)
    folder.begin_placement()
    for source, final in reversed(moves):
        _place(source, final, outputs)
    progress(Progress("write", 1, 1))


def _write_products(plan: Plan, map_file: Path, temporary: Callable[[Path], Path]) -> None:
    """Write what is made from the map. Imports are in here because few runs need them and what they import."""
    outputs, classes, files = plan.outputs, plan.classes, plan.outputs.files
    if polygons := files.get("polygons"):
        from iic_geotools.products.polygons import polygonise

        settings = outputs.products
        polygonise(map_file, temporary(polygons), classes, settings.min_area, settings.simplify)
    stats = files.get("stats")
    if stats and outputs.zones:
        from iic_geotools.products.zones import measure_zones

        measure_zones(map_file, outputs.zones, temporary(stats), stats.stem)
        stats = None
    preview, web = files.get("preview"), files.get("web")
    areas = class_areas(map_file, classes) if stats or preview or web else None
    if stats and areas:
        write_stats(temporary(stats), areas)
    bidx, region = shown_bands(plan), plan.region
    if preview:
        from iic_geotools.products.preview import preview as draw_preview

        file = temporary(preview)
        draw_preview(plan.scene.path, map_file, file, classes, bidx=bidx, region=region, areas=areas)
    if web:
        from iic_geotools.products.web.page import write_web_page

        write_web_page(
            plan.scene.path,
            map_file,
            temporary(web),
            classes,
            bidx=bidx,
            region=region,
            areas=areas,
            title=outputs.map.name,
            note=page_note(plan.card, plan.scene.title),
        )


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
    if final == outputs.files.get("confidence") and final.exists():
        style_path(final).unlink(missing_ok=True)
    put_in_place(source, final)


def page_note(card: Card, scene: str) -> str:
    """Return the sentence below the legend of a page that shows a map."""
    return f"Scene: {_scene_name(scene)}. Model: {card.name}. Made with iic-edge."


def _scene_name(path: str) -> str:
    """Return the name of a scene without its folder or server; the query of a URL may hold a token."""
    return Path(path.partition("?")[0]).name


def shown_bands(plan: Plan) -> tuple[int, int, int]:
    """Return the scene's bands to draw: true colours if the model reads them, else the first bands that it reads."""
    bidx = plan.reading.bidx
    names = [canonical(plan.card.bands[position]) for position in plan.reading.positions]
    known = dict(zip(names, bidx, strict=True))
    red, green, blue = (known.get(name, 0) for name in ("red", "green", "blue"))
    if red and green and blue:
        return red, green, blue
    return (bidx[0], bidx[1], bidx[2]) if len(bidx) > 2 else (bidx[0],) * 3


def _provenance(plan: Plan) -> dict[str, str]:
    origin = plan.card.origin
    seen = {LABELS_TAG: origin.labels, PLACES_TAG: format_places(origin.places)}
    return {
        "IIC_MODEL": plan.card.name,
        "IIC_MODEL_SHA256": plan.model_digest,
        "IIC_RUN": origin.run,
        "IIC_ENGINE": plan.provider,
        "TIFFTAG_SOFTWARE": f"iic-edge {plan.version}",
        "IIC_SCENE": _scene_name(plan.scene.title),
        FINGERPRINT_TAG: fingerprint(plan),
        **{tag: text for tag, text in seen.items() if text},
        **({NOTES_TAG: " ".join(plan.reading.notes)} if plan.reading.notes else {}),
        **plan.outputs.cleaning.tags,
    }
