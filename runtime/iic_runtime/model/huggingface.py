"""The card of a model as a Hugging Face model card: Markdown with metadata in front."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from iic_geotools.settings import checked
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import format_resolution, resolution_range

# Licences that the Hub knows by these names; it wants any other as "other" with a name.
_LICENCES = {
    *("mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "gpl-3.0", "agpl-3.0", "lgpl-3.0", "mpl-2.0"),
    *("unlicense", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "etalab-2.0"),
    *("odbl", "pddl"),
}
_ALIASES = {"cc0": "cc0-1.0", "cc-by": "cc-by-4.0", "cc-by-sa": "cc-by-sa-4.0", "public-domain": "cc0-1.0"}
_TASKS = {"segmentation": "image-segmentation", "clustering": "image-classification"}
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~&!$])")


@checked
def huggingface_card(model: ModelFile) -> str:
    """Return a model's card as the text of a README.md for the Hugging Face Hub.

    Everything in it is in the model's own card. Its texts are quoted, so that they stay text whatever they hold.
    """
    metadata = "\n".join(_yaml(_metadata(model)))
    return f"---\n{metadata}\n---\n\n{_body(model)}"


def _metadata(model: ModelFile) -> dict[str, Any]:
    card = model.card
    licence = re.sub(r"[\s_]+", "-", card.origin.licence.strip().lower())
    licence = _ALIASES.get(licence, licence)
    metadata: dict[str, Any] = {}
    if licence:
        known = licence in _LICENCES
        metadata |= (
            {"license": licence} if known else {"license": "other", "license_name": card.origin.licence}
        )
    metadata |= {
        "library_name": "iic-edge",
        "pipeline_tag": _TASKS[card.task],
        "tags": ["onnx", "remote-sensing", "land-cover", "iic-edge"],
    }
    results = [
        {
            "task": {"type": _TASKS[card.task]},
            "dataset": {"type": place, "name": place},
            "metrics": [{"type": name, "value": value} for name, value in _numbers(figures).items()],
        }
        for place, figures in card.accuracy.items()
        if _numbers(figures)
    ]
    if results:
        metadata["model-index"] = [{"name": card.name, "results": results}]
    return metadata


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Write mappings, lists and scalars as YAML. Scalars are written as JSON, which YAML contains."""
    items = [("-", item) for item in value] if isinstance(value, list) else list(value.items())
    for key, item in items:
        head = f"{indent}-" if key == "-" else f"{indent}{key}:"
        if isinstance(item, dict | list):
            yield head
            yield from _yaml(item, indent + "  ")
        else:
            yield f"{head} {json.dumps(item, ensure_ascii=False)}"


def _body(model: ModelFile) -> str:
    card, origin = model.card, model.card.origin
    known = resolution_range(card)
    ranges = [
        f"{name} {low:g} to {high:g}" for name, (low, high) in zip(card.bands, card.value_range, strict=True)
    ]
    rows = {
        "bands": ", ".join(card.bands),
        "pixels": f"{card.dtype} ({', '.join(ranges)})",
        "values": "reflectance" if card.values else f"rescaled: {card.rescale}" if card.rescale else "",
        "ground resolution": "" if known is None else format_resolution(known),
        "halo, stride": f"{card.halo} px, {card.stride} px",
        "precision": card.precision,
        "training imagery": origin.data,
        "labels seen": origin.labels or "none",
        "licence": origin.licence,
        "file": f"{len(model.content)} bytes, sha256 {model.digest}",
    }
    table = "\n".join(f"| {key} | {_text(value)} |" for key, value in rows.items() if value)
    classes = "\n".join(
        f"| {value} | {_text(entry.name)} | {_text(entry.colour)} |"
        for value, entry in enumerate(card.classes)
    )
    accuracy = "".join(
        f"- {_text(place)}: {_text(', '.join(f'{name} {value:g}' for name, value in _numbers(figures).items()))}\n"
        for place, figures in card.accuracy.items()
        if _numbers(figures)
    )
    measured = (
        f"\n## Measured\n\n{accuracy}" if accuracy else "\n## Measured\n\nThe card holds no accuracy.\n"
    )
    purpose = "Labels the pixels of" if card.task == "segmentation" else "Labels"
    return (
        f"# {_text(card.name)}\n\n{purpose} remote-sensing images with {len(card.classes)} classes. "
        "One ONNX file for [iic-edge](https://github.com/iic-edge/iic-edge), which maps scenes of any size with it:\n\n"
        "    iic-segment-raster scene.tif map.tif --model model.onnx\n\n"
        f"| | |\n|---|---|\n{table}\n\n## Classes\n\n| value | name | colour |\n|---|---|---|\n{classes}\n{measured}"
    )


def _text(text: str) -> str:
    """Return a text in which nothing is markup."""
    return _MARKS.sub(r"\\\1", text)
