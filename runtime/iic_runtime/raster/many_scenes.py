"""Many scenes to as many maps, with models that are opened once."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from iic_geotools.classmap.vrt import check_mosaic, write_mosaic
from iic_geotools.errors import IICError, OutputError, UnexpectedError, UsageError
from iic_geotools.files import MAP_SUFFIXES
from iic_geotools.scene.listing import NAME, ListedScene, list_scenes
from iic_geotools.settings import PathLike, describe, setting, takes
from iic_geotools.work import Progress
from iic_runtime.options import EngineSettings, SegmentSettings
from iic_runtime.raster.cluster import connect_cluster
from iic_runtime.raster.segment import Summary, segment_raster
from iic_runtime.segmenter import Segmenter, SegmenterPool

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The result of one scene.

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


@dataclass(frozen=True)
class SegmentManyArguments(SegmentSettings):
    """Arguments of `segment_rasters`."""

    scenes: Sequence[PathLike]
    folder: PathLike
    model: PathLike | Segmenter | None = None
    _: KW_ONLY
    mosaic: PathLike | None = setting(
        None, "Several scenes: also write a virtual mosaic of the maps as .vrt.", option=False
    )
    on_outcome: Callable[[Outcome], None] = setting(
        lambda outcome: None,
        "Called with the outcome of each scene as soon as it is known.",
        option=False,
    )


@takes(SegmentManyArguments)
def segment_rasters(arguments: SegmentManyArguments) -> list[Outcome]:
    """Map each scene to `folder/NAME.tif`. A scene that fails does not stop the others.

    Called again after an interruption, it resumes: maps that the same work has made are left as they are. Names of
    other outputs, and that of a mask, contain `{name}` for the name of the scene: "out/{name}-confidence.tif".

    Args:
        scenes: Scenes, text files that list one scene per line, STAC items or item collections, files or addresses.
        folder: The folder of the maps, which is made if it does not exist.
        model: As in `segment_raster`. If no model is named, each scene gets the bundled one that fits it.

    Returns:
        One outcome per scene, in the order of the scenes.

    Raises:
        IICError: No scene can be mapped at all, e.g. because there is no model or no folder.
    """
    folder, mosaic, progress = Path(arguments.folder), arguments.mosaic, arguments.progress
    listed = list_scenes([os.fspath(scene) for scene in arguments.scenes], arguments.asset, arguments.mask)
    each = [_settings_for(arguments, scene) for scene in listed]
    if folder.suffix.lower() in MAP_SUFFIXES or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"Several scenes need a folder for their maps, and {folder} is not one.")
    pool = SegmenterPool(arguments.model, arguments.part(EngineSettings))
    _make_folder(folder)
    if mosaic is not None:
        check_mosaic(Path(mosaic), arguments.overwrite)
    outcomes: list[Outcome] = []
    with connect_cluster(arguments) as cluster:
        for scene, settings in zip(listed, each, strict=True):
            progress(Progress("scenes", len(outcomes), len(listed)))
            out = folder / f"{scene.name}.tif"
            outcome = _map_scene(scene, out, pool, replace(settings, scheduler=cluster))
            outcomes.append(outcome)
            arguments.on_outcome(outcome)
    progress(Progress("scenes", len(outcomes), len(listed)))
    if mosaic is not None:
        _write_mosaic([outcome.summary for outcome in outcomes if outcome.summary], Path(mosaic))
    return outcomes


def _map_scene(scene: ListedScene, out: Path, pool: SegmenterPool, settings: SegmentSettings) -> Outcome:
    try:
        summary = segment_raster(scene.describe(), out, pool, keep=settings.resume, **settings.values())
        return Outcome(scene.path, out, summary)
    except IICError as error:
        return Outcome(scene.path, out, error=error)
    except Exception as error:
        # One scene must not stop the others, whatever is wrong with it; the log keeps where it went wrong.
        _LOG.debug("%s", scene.path, exc_info=True)
        return Outcome(scene.path, out, error=UnexpectedError.of(error))


def _settings_for(arguments: SegmentSettings, scene: ListedScene) -> SegmentSettings:
    """Return the settings of one scene: its name in the names of its outputs; asset and mask are in its description."""
    settings = arguments.part(SegmentSettings)
    files: dict[str, Any] = {
        entry.name: _fill_in_name(entry.name, getattr(settings, entry.name), scene)
        for entry in describe(SegmentSettings)
        if entry.about.writes
    }
    return replace(settings, asset=None, mask=None, workers=None, **files)


def _fill_in_name(argument: str, template: PathLike | None, scene: ListedScene) -> str | None:
    if template is None:
        return None
    text = os.fspath(template)
    if NAME not in text:
        raise UsageError(
            f"`{argument}` needs {NAME} in it, for the name of each scene, e.g. out/{NAME}{Path(text).suffix}."
        )
    return text.replace(NAME, scene.name)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"Cannot make the folder {folder} ({error.strerror}); choose another.") from error


def _write_mosaic(summaries: Sequence[Summary], mosaic: Path) -> None:
    if not summaries:
        return
    names = sorted({summary.card.name for summary in summaries})
    if len(names) > 1:
        raise OutputError(
            f"A `mosaic` needs maps of one model, and these are of {' and '.join(names)}; name one with `model`."
        )
    write_mosaic([summary.map for summary in summaries], mosaic, summaries[0].classes)
