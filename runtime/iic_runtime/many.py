"""Many scenes to as many maps, with models that are opened once."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iic_geotools.errors import IICError, OutputError, UsageError
from iic_geotools.mosaic import check_mosaic, write_mosaic
from iic_runtime.choosing import Models
from iic_runtime.cluster import Cluster, connected
from iic_runtime.engines import Device
from iic_runtime.outputs import MAP_SUFFIXES
from iic_runtime.progress import OnProgress, Progress, silent
from iic_runtime.scenelist import ListedScene, list_scenes
from iic_runtime.segment import PathLike, Summary, segment_raster
from iic_runtime.segmenter import Segmenter

NAME = "{name}"


@dataclass(frozen=True)
class Outcome:
    """What became of a scene: a summary, or the error that it failed with."""

    scene: str
    map: Path
    summary: Summary | None = None
    error: IICError | None = None


def segment_rasters(
    scenes: Sequence[PathLike],
    folder: PathLike,
    model: PathLike | Segmenter | None = None,
    *,
    asset: str | None = None,
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
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    progress: OnProgress = silent,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    **options: Any,
) -> list[Outcome]:
    """Map each scene to `folder/NAME.tif`. A scene that fails does not stop the others.

    Called again after an interruption it goes on: maps that the same work has made are left as they are.

    Args:
        scenes: scenes, text files that list them, STAC items or item collections.
        folder: where the maps go; it is made if it is not there.
        model: as in `segment_raster`; without one each scene gets the bundled one that fits it.
        asset: which asset of a STAC item is the scene; by default the only one with the role "data".
        mosaic: also write a virtual raster (.vrt) over all maps.
        device: as in `segment_raster`, and so are tile, batch, threads, max_memory.
        tile: as in `segment_raster`.
        batch: as in `segment_raster`.
        threads: as in `segment_raster`.
        max_memory: as in `segment_raster`.
        overwrite: replace outputs that exist.
        resume: take up what an earlier run of the same work has done.
        confidence: with `{name}` where the name of the scene goes, e.g. "out/{name}-confidence.tif".
        polygons: with `{name}` in it.
        stats: with `{name}` in it.
        preview: with `{name}` in it.
        workers: as in `segment_raster`; one cluster for all scenes.
        scheduler: as in `segment_raster`.
        progress: told how far each scene is, and with the stage "scenes" how many are done.
        on_outcome: told what became of a scene as soon as that is known.
        options: the others of `segment_raster`, for every scene alike.

    Returns:
        One outcome a scene, in order; look at their `error`.

    Raises:
        IICError: nothing can be done at all: no model, no scene, no folder.
    """
    listed = list_scenes([os.fspath(scene) for scene in scenes], asset)
    extras = {"confidence": confidence, "polygons": polygons, "stats": stats, "preview": preview}
    named = [_outputs(scene, extras) for scene in listed]
    if Path(folder).suffix.lower() in MAP_SUFFIXES or (Path(folder).exists() and not Path(folder).is_dir()):
        raise UsageError(f"Several scenes need a folder to put their maps into, and {folder} is none.")
    models = Models(model, device=device, tile=tile, batch=batch, threads=threads, max_memory=max_memory)
    folder = _make(Path(folder))
    if mosaic is not None:
        check_mosaic(Path(mosaic), overwrite)
    outcomes: list[Outcome] = []
    with connected(workers, scheduler, threads) as cluster:
        shared = options | {"overwrite": overwrite, "resume": resume, "keep": resume, "scheduler": cluster}
        for scene, files in zip(listed, named, strict=True):
            progress(Progress("scenes", len(outcomes), len(listed)))
            out = folder / f"{scene.name}.tif"
            try:
                summary = segment_raster(scene.path, out, models, **shared, **files, progress=progress)
                outcome = Outcome(scene.path, out, summary)
            except IICError as error:
                outcome = Outcome(scene.path, out, error=error)
            outcomes.append(outcome)
            on_outcome(outcome)
    progress(Progress("scenes", len(outcomes), len(listed)))
    if mosaic is not None:
        _write_mosaic([outcome.summary for outcome in outcomes if outcome.summary], Path(mosaic))
    return outcomes


def _write_mosaic(made: Sequence[Summary], mosaic: Path) -> None:
    if not made:
        return
    names = sorted({summary.card.name for summary in made})
    if len(names) > 1:
        raise OutputError(
            f"--mosaic needs maps of one model, and these are of {' and '.join(names)}; name one with --model."
        )
    write_mosaic([summary.map for summary in made], mosaic, made[0].card.classes)


def _outputs(scene: ListedScene, templates: dict[str, PathLike | None]) -> dict[str, Any]:
    """The other files that are made of a scene."""
    files: dict[str, Any] = {}
    for option, template in templates.items():
        if template is None:
            continue
        text = os.fspath(template)
        if NAME not in text:
            raise UsageError(
                f"--{option} needs {NAME} in it, where the names of the scenes go, e.g. out/{NAME}{Path(text).suffix}."
            )
        files[option] = text.replace(NAME, scene.name)
    return files


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"Cannot make the folder {folder} ({error.strerror}); choose another.") from error
    return folder
