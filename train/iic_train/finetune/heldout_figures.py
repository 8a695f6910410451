"""The figures of the places left out, as a run folder keeps them. Nothing here needs PyTorch."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from iic_geotools.errors import DataError

if TYPE_CHECKING:
    from iic_train.runs import Run

HELD_OUT = "heldout.json"
"""Figures of the places left out, in the folder of a run that learnt from labels."""


def held_out_figures(run: "Run") -> dict[str, Any] | None:
    """Return the figures of the places left out, or None if there are none."""
    file = run.path / HELD_OUT
    if not file.is_file():
        return None
    figures: dict[str, Any] = json.loads(file.read_bytes())
    return figures


def read_held_out(run: "Run") -> dict[str, Any]:
    """Return the figures of the places left out.

    Raises:
        DataError: Nothing was left out, so nothing was measured.
    """
    figures = held_out_figures(run)
    if figures is None:
        raise DataError(
            f"The run {run.id} learnt from all of its labels and left no place out, so its quality was not measured: "
            "train it again with `folds` above 1 and labels in places apart from each other."
        )
    return figures


def describe_choice(figures: Mapping[str, Any]) -> str:
    """Return in a sentence which mode was chosen, why, and how good it is on places left out."""
    names = {
        "head": "a linear head on the features learnt without labels",
        "network": "the whole network trained on the labels",
    }
    scores = [
        f"{names[mode]}: {result['accuracy']:.1%} right, mean IoU {result['mean_iou']:.1%}"
        for mode, result in figures["modes"].items()
    ]
    chosen = f"; chosen: {names[figures['mode']]}" if len(scores) > 1 else ""
    return f"On places left out in turn ({figures['folds']} parts): {'; '.join(scores)}{chosen}."
