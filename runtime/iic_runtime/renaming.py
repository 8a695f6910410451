"""Names and colours of a model's classes, changed in its card: graph and weights stay as they are."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from iic_geotools.colours import MapClass
from iic_geotools.errors import UsageError
from iic_runtime.bundled import find_model, is_bundled
from iic_runtime.card import Card
from iic_runtime.modelfile import ModelFile, write_model


def rename(
    model: str | os.PathLike[str], changes: Sequence[str], out: str | os.PathLike[str] | None = None
) -> Card:
    """Change names and colours of a model's classes.

    Args:
        model: The model file, or the name of a bundled model.
        changes: `OLD=NEW`, `OLD=NEW:#rrggbb` or `OLD=:#rrggbb`, where OLD is a class's name or its label's number.
        out: Where a changed copy is written; by default the file itself is changed.

    Returns:
        The card that now stands in the file.

    Raises:
        UsageError: A change cannot be read, or names no class or several; or the model is a bundled one and stays
            as it is; or `out` exists.
    """
    found = find_model(model)
    target = found.path if out is None else Path(out)
    _check_target(found, target, in_place=out is None)
    card = found.card
    classes = list(card.classes)
    changed: set[int] = set()
    for change in changes:
        # all are about the card as it stands: "a=b" "b=a" exchanges two names
        label, name, colour = _parse(change, card.classes)
        if label in changed:
            raise UsageError(f"Class {label} is changed twice; say once what it is to be.")
        changed.add(label)
        old = card.classes[label]
        classes[label] = MapClass(name or old.name, colour or old.colour)
    card = replace(card, classes=tuple(classes))
    write_model(target, replace(found, card=card))
    return card


def _check_target(model: ModelFile, target: Path, in_place: bool) -> None:
    if is_bundled(target):
        raise UsageError(
            f"{target.stem} comes with the package and stays as it is; write a copy with -o FILE."
        )
    if in_place:
        return
    if target.suffix.lower() != model.path.suffix.lower():
        raise UsageError(f"{target} must end in {model.path.suffix}.")
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent} to write {target.name} to; make it first.")
    if target.exists():
        raise UsageError(f"There is a file {target} already; give another name.")


def _parse(change: str, classes: Sequence[MapClass]) -> tuple[int, str, str]:
    """Label, new name and new colour, empty where they stay."""
    old, equals, new = change.partition("=")
    if not equals or not new.strip():
        raise UsageError(f'Write a change as OLD=NEW or OLD=NEW:#rrggbb, not "{change}".')
    name, colon, colour = new.rpartition(":#")
    if not colon:
        return _label(old, classes), new.strip(), ""
    return _label(old, classes), name.strip(), f"#{colour}"


def _label(old: str, classes: Sequence[MapClass]) -> int:
    old = old.strip()
    named = [label for label, each in enumerate(classes) if each.name == old]
    if len(named) == 1:
        return named[0]
    if named:
        raise UsageError(f"{len(named)} classes are named {old}; say which by number: {named}.")
    if old.isdecimal() and int(old) < len(classes):
        return int(old)
    raise UsageError(f"There is no class {old}; there are {', '.join(each.name for each in classes)}.")
