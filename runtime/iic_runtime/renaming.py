"""Names and colours of a model's classes, changed in its card: graph and weights stay as they are."""

import os
from collections.abc import Sequence
from dataclasses import replace

from iic_geotools.colours import MapClass
from iic_geotools.errors import UsageError
from iic_runtime.card import Card
from iic_runtime.modelfile import ModelFile, write_card


def rename(model: str | os.PathLike[str], changes: Sequence[str]) -> Card:
    """Change names and colours of a model file's classes.

    Args:
        model: The model file.
        changes: `OLD=NEW`, `OLD=NEW:#rrggbb` or `OLD=:#rrggbb`, where OLD is a class's name or its label's number.

    Returns:
        The card that now stands in the file.

    Raises:
        UsageError: A change cannot be read, or names no class or several.
    """
    card = ModelFile.read(model).card
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
    write_card(model, card)
    return card


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
