"""Parts to files: the map, and what else was asked for, made beside the parts and then put in place together."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from iic_geotools import __version__
from iic_geotools.areas import class_areas, write_stats
from iic_geotools.classmap import assemble
from iic_geotools.files import put_in_place
from iic_geotools.grid import Rect
from iic_geotools.pam import sidecar_path
from iic_geotools.parts import PartFolder
from iic_geotools.preview import preview
from iic_geotools.vectors import polygonise
from iic_runtime.outputs import Outputs
from iic_runtime.planning import Target
from iic_runtime.segmenter import Segmenter

Placed = Mapping[str, Sequence[tuple[Path, Rect]]]


def finish(
    outputs: Outputs,
    target: Target,
    folder: PartFolder,
    placed: Placed,
    segmenter: Segmenter,
    options: Mapping[str, str],
    min_area: float,
) -> None:
    """Make every output from the parts; the map's own name appears last, when all the rest is there."""
    classes, grid = segmenter.card.classes, target.map_grid
    tags = _provenance(target, segmenter)
    made: list[tuple[Path, Path]] = []

    def making(target_file: Path) -> Path:
        made.append((folder.path / f"made{len(made)}{target_file.suffix.lower()}", target_file))
        return made[-1][0]

    whole = making(outputs.map)
    assemble(placed["labels"], whole, grid, classes=classes, tags=tags, options=options)
    if outputs.confidence:
        file = making(outputs.confidence)
        assemble(placed["confidence"], file, grid, classes=None, tags=tags, options=options)
    if outputs.polygons:
        polygonise(whole, making(outputs.polygons), classes, min_area)
    if outputs.stats:
        write_stats(making(outputs.stats), class_areas(whole, classes))
    if outputs.preview:
        preview(target.info.path, whole, making(outputs.preview), classes, bidx=target.source.bidx[:3])
    folder.begin_placing()
    for source, final in reversed(made):
        if sidecar_path(source).exists():
            put_in_place(sidecar_path(source), sidecar_path(final))
        put_in_place(source, final)


def _provenance(target: Target, segmenter: Segmenter) -> dict[str, str]:
    return {
        "IIC_MODEL": segmenter.card.name,
        "IIC_MODEL_SHA256": segmenter.model.digest,
        "IIC_RUN": segmenter.card.origin.run,
        "IIC_ENGINE": segmenter.provider,
        "TIFFTAG_SOFTWARE": f"iic-edge {__version__}",
        "IIC_SCENE": Path(target.info.path).name,
    }
