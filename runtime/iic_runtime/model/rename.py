"""Change names and colours of a model's classes, and merge those that are given one name."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from iic_geotools.classmap.classes import MapClass
from iic_geotools.errors import UsageError
from iic_geotools.files import check_name
from iic_geotools.settings import checked
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile, write_model
from iic_runtime.model.onnx_head import merge_classes
from iic_runtime.model.remote.cache import is_cached
from iic_runtime.model.select import find_model, is_bundled


@checked
def rename_model(
    model: str | os.PathLike[str], changes: Sequence[str], out: str | os.PathLike[str] | None = None
) -> Card:
    """Change names and colours of a model's classes; those that are given one name become one class.

    A class that is made of several has the sum of their probabilities, and the colour that was given for it or that of
    the first of them. If no two classes are given one name, graph and weights stay as they are.

    Args:
        model: The model file, its address, or the name of a bundled model.
        changes: `OLD=NEW`, `OLD=NEW:#rrggbb` or `OLD=:#rrggbb`, where OLD is the name of a class or the number of its
            label.
        out: The file that a changed copy is written to; by default the file itself is changed.

    Returns:
        The card that is now in the file.

    Raises:
        UsageError: A change cannot be read, or names no class or several; or the model is bundled or was downloaded and
            must not be changed; or `out` exists; or two classes are given one name and the model is a TensorRT engine.
        ModelError: The classes of the model cannot be merged.
    """
    file = find_model(model)
    target = file.path if out is None else Path(out)
    _check_target(file, target, in_place=out is None)
    card = file.card
    classes = list(card.classes)
    changed: set[int] = set()
    coloured: dict[str, str] = {}
    for change in changes:
        # All changes refer to the names before any change: "a=b" "b=a" exchanges two names.
        label, name, colour = _parse(change, card.classes)
        if label in changed:
            raise UsageError(f"Class {label} is changed twice; give one change per class.")
        changed.add(label)
        old = card.classes[label]
        classes[label] = MapClass(name or old.name, colour or old.colour)
        if colour:
            coloured.setdefault(classes[label].name, colour)
    file = _merge(file, classes, coloured)
    write_model(target, file)
    return file.card


def _merge(file: ModelFile, classes: Sequence[MapClass], coloured: Mapping[str, str]) -> ModelFile:
    """Return the model with these classes, those of one name merged."""
    names = [map_class.name for map_class in classes]
    merged = list(dict.fromkeys(names))
    if len(merged) == len(names):
        return replace(file, card=replace(file.card, classes=tuple(classes)))
    if file.engine is not None:
        raise UsageError(
            f"The classes of {file.path} cannot be merged; merge those of the .onnx file instead."
        )
    kept = tuple(MapClass(name, coloured.get(name, classes[names.index(name)].colour)) for name in merged)
    merge = np.array([[name == other for other in names] for name in merged], np.float32)
    content = merge_classes(file.content, merge, dense=file.card.task == "segmentation")
    return replace(file, content=content, card=replace(file.card, classes=kept))


def _check_target(model: ModelFile, target: Path, in_place: bool) -> None:
    if is_cached(target):
        raise UsageError(f"{target.name} was downloaded and must stay what it is; write a copy, with `out`.")
    if is_bundled(target):
        raise UsageError(
            f"{target.stem} comes with the package and must not be changed; write a copy, with `out`."
        )
    if in_place:
        return
    check_name(target)
    if target.suffix.lower() != model.path.suffix.lower():
        raise UsageError(f"{target} must end in {model.path.suffix}.")
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent} to write {target.name} to; make it first.")
    if target.exists():
        raise UsageError(f"{target} exists; give another name.")


def _parse(change: str, classes: Sequence[MapClass]) -> tuple[int, str, str]:
    """Return label, new name and new colour; a name or colour that stays is empty."""
    old, equals, new = change.partition("=")
    if not equals or not new.strip():
        raise UsageError(f'Write a change as OLD=NEW or OLD=NEW:#rrggbb, not "{change}".')
    name, colon, colour = new.rpartition(":#")
    if not colon:
        return _label(old, classes), new.strip(), ""
    return _label(old, classes), name.strip(), f"#{colour}"


def _label(old: str, classes: Sequence[MapClass]) -> int:
    old = old.strip()
    named = [label for label, map_class in enumerate(classes) if map_class.name == old]
    if len(named) == 1:
        return named[0]
    if named:
        raise UsageError(f"{len(named)} classes are named {old}; give the class by number: {named}.")
    if old.isdecimal() and len(old) < 4 and int(old) < len(classes):
        return int(old)
    raise UsageError(
        f"There is no class {old[:80]}; there are {', '.join(map_class.name for map_class in classes)}."
    )
