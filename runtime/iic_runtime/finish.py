"""Parts to files: the map, and what else was asked for, made beside the parts and then put in place together."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from iic_geotools import __version__
from iic_geotools.areas import class_areas, write_stats
from iic_geotools.bands import canonical
from iic_geotools.classmap import assemble
from iic_geotools.files import put_in_place
from iic_geotools.grid import Rect
from iic_geotools.pam import sidecar_path
from iic_geotools.parts import PartFolder
from iic_geotools.preview import preview
from iic_geotools.qgis_style import map_style, style_path
from iic_geotools.scene import open_raster
from iic_runtime.card import Card
from iic_runtime.outputs import Outputs
from iic_runtime.planning import Target
from iic_runtime.segmenter import Segmenter

# Ties a map to the work it was made for, so that a list of scenes can be gone on with.
WORK_TAG = "IIC_WORK"
Placed = Mapping[str, Sequence[tuple[Path, Rect]]]


def finish(
    outputs: Outputs,
    target: Target,
    folder: PartFolder,
    placed: Placed,
    segmenter: Segmenter,
    options: Mapping[str, str],
    min_area: float,
    work: str,
) -> None:
    """Make every output from the parts; the map's own name appears last, when all the rest is there."""
    classes, grid = segmenter.card.classes, target.map_grid
    tags = _provenance(target, segmenter) | {WORK_TAG: work}
    made: list[tuple[Path, Path]] = []

    def making(target_file: Path) -> Path:
        made.append((folder.path / f"made{len(made)}{target_file.suffix.lower()}", target_file))
        return made[-1][0]

    whole = making(outputs.map)
    assemble(placed["labels"], whole, grid, classes=classes, tags=tags, options=options)
    making(outputs.style).write_bytes(map_style(classes))
    if outputs.confidence:
        file = making(outputs.confidence)
        assemble(placed["confidence"], file, grid, classes=None, tags=tags, options=options)
    if outputs.polygons:
        from iic_geotools.vectors import polygonise  # brings pandas along where that is installed

        polygonise(whole, making(outputs.polygons), classes, min_area)
    areas = class_areas(whole, classes) if outputs.stats or outputs.preview else None
    if outputs.stats and areas:
        write_stats(making(outputs.stats), areas)
    if outputs.preview:
        bidx = _picture_bands(segmenter.card, target.source.bidx)
        preview(target.info.path, whole, making(outputs.preview), classes, bidx=bidx, areas=areas)
    folder.begin_placing()
    for source, final in reversed(made):
        if sidecar_path(source).exists():
            put_in_place(sidecar_path(source), sidecar_path(final))
        else:
            sidecar_path(final).unlink(missing_ok=True)  # that of a file which is being replaced
        if final == outputs.confidence and final.exists():
            style_path(final).unlink(missing_ok=True)
        put_in_place(source, final)


def _picture_bands(card: Card, bidx: tuple[int, ...]) -> tuple[int, int, int]:
    """The scene's bands to draw: true colours where the model reads them, else what it reads first."""
    known = dict(zip(map(canonical, card.bands), bidx, strict=True))
    red, green, blue = (known.get(name, 0) for name in ("red", "green", "blue"))
    if red and green and blue:
        return red, green, blue
    return (bidx[0], bidx[1], bidx[2]) if len(bidx) > 2 else (bidx[0],) * 3


def made_before(outputs: Outputs, work: str) -> bool:
    """Whether every output is there, and the map says that it was made for this very work."""
    if not all(file.exists() for file in outputs.files):
        return False
    with open_raster(str(outputs.map)) as dataset:
        return bool(dataset.tags().get(WORK_TAG) == work)


def _provenance(target: Target, segmenter: Segmenter) -> dict[str, str]:
    return {
        "IIC_MODEL": segmenter.card.name,
        "IIC_MODEL_SHA256": segmenter.model.digest,
        "IIC_RUN": segmenter.card.origin.run,
        "IIC_ENGINE": segmenter.provider,
        "TIFFTAG_SOFTWARE": f"iic-edge {__version__}",
        "IIC_SCENE": Path(target.info.path.partition("?")[0]).name,  # a URL's query may hold a token
    }
