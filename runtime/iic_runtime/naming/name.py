"""Clicks name a model's classes: the function behind `iic-model name`."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from iic_geotools.classmap.class_map import NAMED_BY
from iic_geotools.classmap.classes import MapClass, class_colours
from iic_geotools.errors import UsageError
from iic_geotools.files import check_apart, check_writable, replacement
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.points import clicked_places
from iic_geotools.scene.scene import SceneSource
from iic_geotools.settings import PathLike, takes
from iic_runtime.model.card import MAX_PLACES, Card
from iic_runtime.model.file import ModelFile, put_card
from iic_runtime.model.onnx_head import (
    has_features,
    merge_classes,
    replace_head,
    smooth_probabilities,
    smoothing_reach,
)
from iic_runtime.model.select import MODEL_VARIABLE, find_model, ground_resolution
from iic_runtime.naming import MOST_SMOOTHING, default_smoothing
from iic_runtime.naming.clicks import Observations, Observer, read_clicks
from iic_runtime.naming.clusters import name_by_majority
from iic_runtime.naming.fitting import Judgement, advise, fit_head, unstandardised
from iic_runtime.naming.stack import make_stack, open_outputs, prove
from iic_runtime.naming.suggestions import check_places, find_unsure_places, scene_files, write_places
from iic_runtime.options import DeviceSettings, NameSettings, ReadingSettings
from iic_runtime.raster.model_input import choose_reading
from iic_runtime.segmenter import Segmenter

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedModel:
    """A model whose classes were named by labels.

    Attributes:
        path: The model file.
        card: Its card.
        counts: Number of labelled pixels per class, in the order of the card's classes.
        accuracy: Share of them that are recognised by a model that saw none of the same place; None if every class
            was labelled in one place only.
        balanced_accuracy: Mean of that share over classes.
        advice: Which classes need more labels, one sentence each.
        suggestions: The file of places to click next, if one was asked for.
    """

    path: Path
    card: Card
    counts: tuple[int, ...]
    accuracy: float | None
    balanced_accuracy: float | None
    advice: tuple[str, ...]
    suggestions: Path | None = None

    def sentence(self) -> str:
        """Describe the result in one line."""
        return (
            f"{self.path}: {len(self.card.classes)} classes by {_describe(sum(self.counts), self.accuracy)}"
        )


@dataclass(frozen=True)
class NameArguments(NameSettings):
    """Arguments of `name_model`."""

    model: PathLike | None
    labels: PathLike
    scene: PathLike
    out: PathLike


@takes(NameArguments)
def name_model(arguments: NameArguments) -> NamedModel:
    """Name the classes of a model by labels on a scene: a few points per class are enough.

    A small classifier is fitted to what the model sees at the labels, and takes the place of the model's clusters in a
    copy of the file. If the model outputs no features, each cluster takes the class of most labels on it.

    Args:
        model: A model file, or the name of a bundled model; its features are what is fitted. None fits all that can be
            computed without training: multi-scale features of the scene, and next to them features and probabilities
            of the bundled model that suits it, if one does.
        labels: Points or polygons with a class field, or a raster of classes, in any CRS.
        scene: The scene under the labels.
        out: The named model, .onnx.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    out, labels, scene = Path(arguments.out), arguments.labels, arguments.scene
    places = None if arguments.suggestions is None else Path(arguments.suggestions)
    progress = arguments.progress
    info = describe(os.fspath(scene))
    _check_outputs(out, places, [Path(labels), *scene_files(info)], arguments.overwrite)
    if arguments.smoothing is not None and not 0 <= arguments.smoothing <= MOST_SMOOTHING:
        raise UsageError(f"`smoothing` must be 0 to {MOST_SMOOTHING} pixels, not {arguments.smoothing}.")
    file, reading = choose_features(info, arguments.model, **arguments.part(ReadingSettings).values())
    check_apart([out] if places is None else [out, places], [file.path])
    card = file.card
    grid = reading.grid or info.grid
    clicks = read_clicks(labels, grid, arguments.label_field)
    observer = Observer(open_outputs(file, arguments.device, arguments.threads), reading, grid, card)
    observations = observer.observe(clicks, progress)
    content, classes, judgement = (_fit if has_features(file.content) else _vote)(file, observations)
    usual = default_smoothing(ground_resolution(grid), judgement.accuracy)
    smoothing = usual if arguments.smoothing is None else arguments.smoothing
    content = smooth_probabilities(content, smoothing)
    card = replace(
        card,
        classes=classes,
        halo=card.halo - smoothing_reach(file.content) + smoothing,
        origin=replace(
            card.origin,
            labels=_origin(card, observations, judgement, labels, scene),
            places=clicked_places(labels, arguments.label_field, grid.crs, MAX_PLACES),
        ),
        # What was measured of the classes before does not hold for these.
        parity={},
        accuracy=_figures(judgement, labels),
        reliability={},
    )
    named = ModelFile(out, put_card(content, card), card)
    if arguments.model is None:
        prove(out, named.content)
    with replacement(out) as temporary:
        temporary.write_bytes(named.content)
        if places is not None:
            segmenter = Segmenter(named, tile=256, **arguments.part(DeviceSettings).values())
            unsure = find_unsure_places(segmenter, reading, grid, progress=progress)
            write_places(places, unsure, grid)
    counts = observations.clicks.counts
    return NamedModel(
        path=out,
        card=card,
        counts=tuple(int(counts[observations.clicks.names.index(entry.name)]) for entry in classes),
        accuracy=judgement.accuracy,
        balanced_accuracy=judgement.balanced_accuracy,
        advice=advise(judgement, observations.clicks.names),
        suggestions=places,
    )


def choose_features(info: SceneInfo, model: PathLike | None, **reading: Any) -> tuple[ModelFile, SceneSource]:
    """Return the model whose features are fitted on a scene, and how the scene is read for it.

    Args:
        reading: `bands`, `nodata`, `rescale`, `reflectance` and `match_gsd` as in `segment_raster`.

    Raises:
        IICError: The model cannot be read or does not label pixels, or the scene does not suit it.
    """
    if model is None and not os.environ.get(MODEL_VARIABLE):
        return make_stack(info, **reading)
    file = find_model(model)
    if file.engine is not None or file.card.task != "segmentation":
        raise UsageError(f"{file.path} is not an .onnx model that labels pixels; give one.")
    return file, choose_reading(info, file.card, **reading)


def _check_outputs(out: Path, suggestions: Path | None, inputs: Sequence[Path], overwrite: bool) -> None:
    """Check outputs before any work."""
    check_writable([(out, (".onnx",), "out")], inputs, overwrite=overwrite)
    if suggestions is not None:
        check_places(suggestions, [out, *inputs], overwrite, "suggestions")


def _fit(file: ModelFile, observations: Observations) -> tuple[bytes, tuple[MapClass, ...], Judgement]:
    """Replace the head by one that is fitted to the features at the labels."""
    head, judgement = fit_head(observations.samples, observations.standardised_scene)
    content = replace_head(file.content, unstandardised(head, observations.mean, observations.factor))
    names = observations.clicks.names
    return content, _classes(file, observations, range(len(names))), judgement


def _vote(file: ModelFile, observations: Observations) -> tuple[bytes, tuple[MapClass, ...], Judgement]:
    """Merge the clusters that take the same class."""
    clicks = observations.clicks
    _LOG.info("%s outputs no features, so that labels name its clusters as they are.", file.path)
    merge, judgement = name_by_majority(
        observations.own,
        clicks.labels,
        clicks.places,
        observations.samples.side,
        len(clicks.names),
        observations.scene,
    )
    kept = np.flatnonzero(merge.any(1))
    for index in np.flatnonzero(~merge.any(1)):
        _LOG.warning(
            "No cluster is mostly %s: the model cannot distinguish it from the others.", clicks.names[index]
        )
    return merge_classes(file.content, merge[kept]), _classes(file, observations, kept.tolist()), judgement


def _classes(file: ModelFile, observations: Observations, kept: Sequence[int]) -> tuple[MapClass, ...]:
    """Return names and colours: those of the label file, else of the model's own classes, else usual ones."""
    clicks = observations.clicks
    known = {entry.name: entry.colour for entry in file.card.classes}
    names = [clicks.names[index] for index in kept]
    colours = [clicks.colours[index] or known.get(clicks.names[index]) for index in kept]
    return tuple(map(MapClass, names, class_colours(names, colours)))


def _origin(
    card: Card, observations: Observations, judgement: Judgement, labels: PathLike, scene: PathLike
) -> str:
    """Say which labels named the model, after those that it has learnt from."""
    count = len(observations.clicks.labels)
    learnt_from = card.origin.labels.partition(NAMED_BY)[0].removesuffix("; ")
    named = f"{NAMED_BY}{_describe(count, judgement.accuracy)} ({Path(labels).name} on {Path(scene).name})"
    return "; ".join(filter(None, (learnt_from, named)))


def _figures(judgement: Judgement, labels: PathLike) -> dict[str, dict[str, float]]:
    accuracy, balanced = judgement.accuracy, judgement.balanced_accuracy
    if accuracy is None or balanced is None:
        return {}
    figures = {"accuracy": round(accuracy, 4), "balanced_accuracy": round(balanced, 4)}
    return {f"{Path(labels).name}, places left out in turn": figures}


def _describe(count: int, accuracy: float | None) -> str:
    measured = (
        "not cross-validated: every class needs clicks in two places"
        if accuracy is None
        else f"{accuracy:.1%} of them recognised by a model that saw none of the same place"
    )
    return f"{count} labelled pixels; {measured}"
