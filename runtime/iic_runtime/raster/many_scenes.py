"""Many scenes to as many maps, with models that are opened once."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from iic_geotools.classmap.cog import MAP_SUFFIXES
from iic_geotools.classmap.mosaic import check_mosaic, write_mosaic
from iic_geotools.errors import IICError, OutputError, UnexpectedError, UsageError
from iic_geotools.progress import OnProgress, Progress, silent
from iic_geotools.scene.listing import NAME, AssetArgument, ListedScene, list_scenes
from iic_geotools.scene.valuemask import MaskArgument
from iic_runtime.adapters.dask import Cluster, connect_cluster
from iic_runtime.engine.base import Device
from iic_runtime.raster.arguments import PathLike, ProductArguments, ReadingArguments
from iic_runtime.raster.segment import Summary, segment_raster
from iic_runtime.segmenter import Segmenter, SegmenterPool

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What became of a scene.

    Attributes:
        scene: The scene.
        map: Its map.
        summary: The summary of the run, if it succeeded.
        error: The error that it failed with, if it failed.
    """

    scene: str
    map: Path
    summary: Summary | None = None
    error: IICError | None = None


def segment_rasters(
    scenes: Sequence[PathLike],
    folder: PathLike,
    model: PathLike | Segmenter | None = None,
    *,
    asset: AssetArgument | None = None,
    mask: MaskArgument | None = None,
    mosaic: PathLike | None = None,
    device: Device = "auto",
    tile: int | None = None,
    batch: int | None = None,
    threads: int | None = None,
    max_memory: int | None = None,
    overwrite: bool = False,
    resume: bool = True,
    confidence: PathLike | None = None,
    polygons: PathLike | None = None,
    stats: PathLike | None = None,
    preview: PathLike | None = None,
    web: PathLike | None = None,
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    progress: OnProgress = silent,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    **arguments: Unpack[ReadingArguments],
) -> list[Outcome]:
    """Map each scene to `folder/NAME.tif`. A scene that fails does not stop the others.

    Called again after an interruption, it resumes: maps that the same work has made are left as they are.

    Args:
        scenes: Scenes, text files that list one scene per line, STAC items or item collections, files or addresses.
        folder: The folder of the maps, which is made if it does not exist.
        model: As in `segment_raster`. If no model is named, each scene gets the bundled one that fits it.
        asset: As in `segment_raster`.
        mask: As in `segment_raster`, with `{name}` for the name of the scene: "clouds/{name}.tif".
        mosaic: Also write a virtual raster over all maps to this file, .vrt.
        device: As in `segment_raster`.
        tile: As in `segment_raster`.
        batch: As in `segment_raster`.
        threads: As in `segment_raster`.
        max_memory: As in `segment_raster`.
        overwrite: Whether to replace outputs that exist.
        resume: Whether to use what an earlier run of the same work has done.
        confidence: As in `segment_raster`, with `{name}` for the name of the scene: "out/{name}-confidence.tif".
        polygons: As in `segment_raster`, with `{name}` for the name of the scene.
        stats: As in `segment_raster`, with `{name}` for the name of the scene.
        preview: As in `segment_raster`, with `{name}` for the name of the scene.
        web: As in `segment_raster`, with `{name}` for the name of the scene.
        workers: As in `segment_raster`, with one cluster for all scenes.
        scheduler: As in `segment_raster`.
        progress: Called with reports of how far each scene is; the stage "scenes" counts those that are done.
        on_outcome: Called with the outcome of each scene as soon as it is known.
        arguments: The other arguments of `segment_raster`, which apply to every scene.

    Returns:
        One outcome per scene, in the order of the scenes.

    Raises:
        IICError: No scene can be mapped at all, e.g. because there is no model or no folder.
    """
    listed = list_scenes([os.fspath(scene) for scene in scenes], asset, mask)
    templates = ProductArguments(
        confidence=confidence, polygons=polygons, stats=stats, preview=preview, web=web
    )
    products = [_fill_in(templates, scene) for scene in listed]
    if Path(folder).suffix.lower() in MAP_SUFFIXES or (Path(folder).exists() and not Path(folder).is_dir()):
        raise UsageError(f"Several scenes need a folder for their maps, and {folder} is not one.")
    pool = SegmenterPool(model, device=device, tile=tile, batch=batch, threads=threads, max_memory=max_memory)
    folder = _make_folder(Path(folder))
    if mosaic is not None:
        check_mosaic(Path(mosaic), overwrite)
    outcomes: list[Outcome] = []
    with connect_cluster(workers, scheduler, threads) as cluster:
        for scene, files in zip(listed, products, strict=True):
            progress(Progress("scenes", len(outcomes), len(listed)))
            out = folder / f"{scene.name}.tif"
            try:
                summary = segment_raster(
                    scene.describe(),
                    out,
                    pool,
                    overwrite=overwrite,
                    resume=resume,
                    keep=resume,
                    scheduler=cluster,
                    progress=progress,
                    **files,
                    **arguments,
                )
                outcome = Outcome(scene.path, out, summary)
            except IICError as error:
                outcome = Outcome(scene.path, out, error=error)
            except Exception as error:
                # One scene must not stop the others, whatever is wrong with it; the log keeps where it went wrong.
                _LOG.debug("%s", scene.path, exc_info=True)
                outcome = Outcome(scene.path, out, error=UnexpectedError.of(error))
            outcomes.append(outcome)
            on_outcome(outcome)
    progress(Progress("scenes", len(outcomes), len(listed)))
    if mosaic is not None:
        _write_mosaic([outcome.summary for outcome in outcomes if outcome.summary], Path(mosaic))
    return outcomes


def _fill_in(templates: ProductArguments, scene: ListedScene) -> ProductArguments:
    """Put the name of a scene into the names of its other outputs."""
    return ProductArguments(
        confidence=_fill_in_name("confidence", templates["confidence"], scene),
        polygons=_fill_in_name("polygons", templates["polygons"], scene),
        stats=_fill_in_name("stats", templates["stats"], scene),
        preview=_fill_in_name("preview", templates["preview"], scene),
        web=_fill_in_name("web", templates["web"], scene),
    )


def _fill_in_name(argument: str, template: PathLike | None, scene: ListedScene) -> str | None:
    if template is None:
        return None
    text = os.fspath(template)
    if NAME not in text:
        raise UsageError(
            f"`{argument}` needs {NAME} in it, for the name of each scene, e.g. out/{NAME}{Path(text).suffix}."
        )
    return text.replace(NAME, scene.name)


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"Cannot make the folder {folder} ({error.strerror}); choose another.") from error
    return folder


def _write_mosaic(summaries: Sequence[Summary], mosaic: Path) -> None:
    if not summaries:
        return
    names = sorted({summary.card.name for summary in summaries})
    if len(names) > 1:
        raise OutputError(
            f"A `mosaic` needs maps of one model, and these are of {' and '.join(names)}; name one with `model`."
        )
    write_mosaic([summary.map for summary in summaries], mosaic, summaries[0].classes)
