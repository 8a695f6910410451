"""The card as a STAC item with the machine-learning model extension."""

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pystac
from pystac.extensions.classification import Classification
from pystac.extensions.mlm import (
    AssetGeneralMLMExtension,
    Hyperparameters,
    InputStructure,
    MLMExtension,
    ModelInput,
    ModelOutput,
    ResultStructure,
    TaskType,
)
from pystac.extensions.raster import DataType
from pystac.validation.stac_validator import JsonSchemaSTACValidator
from rasterio.transform import array_bounds
from rasterio.warp import transform_bounds

from iic_export.trained_head import TrainedHead
from iic_geotools.classmap.classes import MapClass
from iic_geotools.errors import IICError, OutputError
from iic_geotools.files import write_atomically
from iic_geotools.scene.info import describe
from iic_runtime.model.card import Card

MEDIA_TYPES = {
    ".onnx": "application/octet-stream; application=onnx",
    ".engine": "application/octet-stream; application=tensorrt",
}
CLASSIFICATION = "https://stac-extensions.github.io/classification/v2.0.0/schema.json"


def write_stac(path: Path, model: Path, card: Card, head: TrainedHead) -> None:
    """Write a STAC item that describes a model file."""
    item = make_item(path, model, card, head)
    problem = validation_error(item)
    if problem:
        raise OutputError(f"The STAC item {path} would not be valid ({problem}); nothing was written to it.")
    write_atomically(path, json.dumps(item, indent=1, ensure_ascii=False).encode())


def make_item(path: Path, model: Path, card: Card, head: TrainedHead) -> dict[str, Any]:
    """Make the item as JSON."""
    bounds = _bounds(head)
    item = pystac.Item(
        id=re.sub(r"[^\w.-]+", "-", card.name),
        geometry=None if bounds is None else _polygon(bounds),
        bbox=None if bounds is None else list(bounds),
        datetime=datetime.now(UTC),
        properties=_properties(card),
        stac_extensions=[CLASSIFICATION],
    )
    task = TaskType.SEMANTIC_SEGMENTATION if card.task == "segmentation" else TaskType.CLASSIFICATION
    MLMExtension.ext(item, add_if_missing=True).apply(
        name=card.name,
        architecture=f"IIC {head.network.config.name}",
        tasks=[task],
        input=[_input(card)],
        output=_outputs(card, task),
        framework="ONNX" if model.suffix == ".onnx" else "TensorRT",
        framework_version=card.packages.get("onnx"),
        memory_size=model.stat().st_size,
        total_parameters=sum(weights.numel() for weights in head.network.parameters()),
        pretrained=True,
        pretrained_source=card.origin.data or None,
        hyperparameters=Hyperparameters(_hyperparameters(card)),
    )
    asset = pystac.Asset(
        href=Path(os.path.relpath(model, path.parent)).as_posix(),
        title=card.name,
        media_type=MEDIA_TYPES[model.suffix],
        roles=["mlm:model", "data"],
    )
    item.add_asset("model", asset)
    AssetGeneralMLMExtension.ext(asset).apply(artifact_type=model.suffix[1:])
    return dict(item.to_dict(include_self_link=False, transform_hrefs=False))


def validation_error(item: Mapping[str, Any]) -> str | None:
    """Check an item against STAC's core schema, which pystac brings along; those of extensions need a network."""
    try:
        JsonSchemaSTACValidator().validate_core(dict(item), pystac.STACObjectType.ITEM, item["stac_version"])
    except pystac.STACValidationError as error:
        return str(error).splitlines()[0]
    return None


def _input(card: Card) -> Any:
    return ModelInput.create(
        name="image",
        bands=list(card.bands),
        input=InputStructure.create(
            [-1, len(card.bands), -1, -1], ["batch", "bands", "height", "width"], DataType(card.dtype)
        ),
        description="Raw pixel values: the graph scales them itself, so value_scaling is null.",
        value_scaling=None,
    )


def _outputs(card: Card, task: Any) -> list[Any]:
    dims = ["batch", "height", "width"] if card.task == "segmentation" else ["batch"]
    result = ResultStructure.create([-1] * len(dims), dims, DataType.UINT8)
    classes = [
        Classification.create(
            value=label,
            name=_slug(map_class, label),
            description=map_class.name,
            color_hint=map_class.colour[1:].upper(),
        )
        for label, map_class in enumerate(card.classes)
    ]
    return [
        ModelOutput.create(
            "labels", [task], result, description="The class of each pixel or image.", classes=classes
        ),
        ModelOutput.create(
            "confidence", [task], result, description="255 times the probability of the class.", classes=[]
        ),
    ]


def _slug(map_class: MapClass, label: int) -> str:
    """Spell a class in the letters that the classification extension allows, made distinct by its label."""
    return f"{re.sub(r'[^0-9A-Za-z_-]+', '-', map_class.name).strip('-') or 'class'}-{label}"


def _properties(card: Card) -> dict[str, Any]:
    licence = card.origin.licence
    kind = "land-cover classes" if card.origin.labels else "unsupervised land-cover classes"
    properties: dict[str, Any] = {
        "description": f"{card.name}: {kind} from {', '.join(card.bands)}.",
        "license": licence if re.fullmatch(r"[\w.+-]+", licence) else "other",
    }
    if card.gsd is not None:
        properties["gsd"] = card.gsd
    return properties


def _hyperparameters(card: Card) -> dict[str, Any]:
    """What another runtime needs from the card to serve the model correctly."""
    return {
        "halo": card.halo,
        "stride": card.stride,
        "memory_per_pixel": card.memory_per_pixel,
        "precision": card.precision,
        "offset": list(card.offset),
        "scale": list(card.scale),
        "rescale": card.rescale,
        "values": card.values,
        "run": card.origin.run,
        "subhead": card.origin.subhead,
        "chosen_by": card.origin.chosen_by,
        "loss": card.origin.loss,
        "labels": card.origin.labels,
        "parity": dict(card.parity),
    }


Bounds = tuple[float, float, float, float]


def _bounds(head: TrainedHead) -> Bounds | None:
    """Longitudes and latitudes that the training scenes cover; None if no scene is georeferenced."""
    boxes = []
    for scene in head.config.data.scenes:
        try:
            grid = describe(scene).grid
        except IICError:
            continue
        if grid.crs is not None:
            box = array_bounds(grid.height, grid.width, grid.transform)
            boxes.append(transform_bounds(grid.crs, "EPSG:4326", *box))
    if not boxes:
        return None
    west, south, east, north = zip(*boxes, strict=True)
    return min(west), min(south), max(east), max(north)


def _polygon(bounds: Bounds) -> dict[str, Any]:
    west, south, east, north = bounds
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"type": "Polygon", "coordinates": [ring]}
