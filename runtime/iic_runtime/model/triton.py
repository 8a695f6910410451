"""A model as the repository of a Triton inference server: a folder that its `--model-repository` names.

    models/
        aerial/
            config.pbtxt
            1/
                model.onnx

The server does not tile: clients read images with the halo and stride that are among the
parameters in `config.pbtxt`.
"""

import json
import shutil
from pathlib import Path

from iic_geotools.errors import ModelError, OutputError
from iic_geotools.files import check_folder, check_name, scratch_folder
from iic_runtime.engine.base import OUTPUTS
from iic_runtime.engine.onnx import OnnxEngine
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile
from iic_runtime.model.onnx_graph import only_outputs
from iic_runtime.model.onnx_head import PROBABILITIES
from iic_runtime.options import EngineSettings

_TYPES = {"uint8": "TYPE_UINT8", "uint16": "TYPE_UINT16", "int16": "TYPE_INT16", "float32": "TYPE_FP32"}


def check_repository(file: ModelFile, out: Path, *, overwrite: bool) -> None:
    """Refuse a folder in which the model cannot be written.

    Raises:
        OutputError: The repository holds a model of this name, or cannot be written to.
        ModelError: The name of the model cannot be that of a folder.
    """
    check_name(out)
    name = file.card.name
    if Path(name).name != name or name.startswith("."):
        raise ModelError(
            f"The model is called {name}, which cannot be the name of a folder; export it under another."
        )
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file; give the name of a folder.")
    check_folder(out / "config.pbtxt" if out.is_dir() else out)
    if (out / name).exists() and not overwrite:
        raise OutputError(f"{out / name} exists; give another folder, or `overwrite` to replace it.")


def write_repository(file: ModelFile, out: Path, batch: int) -> None:
    """Write a model repository, or add the model to one.

    Args:
        batch: Largest number of images that the server runs at once.
    """
    target = out / file.card.name
    with scratch_folder(out) as scratch:
        folder = scratch / file.card.name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(triton_config(file, batch), encoding="utf-8")
        (folder / "1" / "model.onnx").write_bytes(only_outputs(file.content, _outputs(file.card)))
        out.mkdir(exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        folder.replace(target)


def triton_config(file: ModelFile, batch: int) -> str:
    """Return the configuration of a model for the server, in the text format of protocol buffers."""
    card = file.card
    dense = card.task == "segmentation"
    height, width = (-1, -1) if dense else _image_size(file)
    image = f"dims: [ {len(card.bands)}, {height}, {width} ]"
    # Triton has no tensors without dimensions: one number per image is an array of one, which the graph does not have.
    label = "dims: [ -1, -1 ]" if dense else "dims: [ 1 ]\n    reshape { shape: [ ] }"
    outputs = [_tensor(name, "TYPE_UINT8", label) for name in OUTPUTS]
    if PROBABILITIES in _outputs(card):
        outputs.append(_tensor(PROBABILITIES, "TYPE_FP32", f"dims: [ {len(card.classes)} ]"))
    parameters = {
        "halo": str(card.halo),
        "stride": str(card.stride),
        "bands": ",".join(card.bands),
        "classes": ",".join(entry.name for entry in card.classes),
    }
    return (
        f"name: {_text(card.name)}\n"
        'backend: "onnxruntime"\n'
        f"max_batch_size: {batch}\n"
        f"input [\n{_tensor('image', _TYPES[card.dtype], image)}\n]\n"
        "output [\n" + ",\n".join(outputs) + "\n]\n"
        "dynamic_batching { }\n"
        + "".join(
            f"parameters {{\n  key: {_text(key)}\n  value {{ string_value: {_text(value)} }}\n}}\n"
            for key, value in parameters.items()
        )
    )


def _outputs(card: Card) -> tuple[str, ...]:
    return OUTPUTS if card.task == "segmentation" else (*OUTPUTS, PROBABILITIES)


def _tensor(name: str, kind: str, dims: str) -> str:
    return f"  {{\n    name: {_text(name)}\n    data_type: {kind}\n    {dims}\n  }}"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _image_size(file: ModelFile) -> tuple[int, int]:
    """Return height and width of the images that a classifier takes; -1 where it takes any."""
    engine = open_engine(file, EngineSettings(device="cpu"))
    if not isinstance(engine, OnnxEngine):
        raise ModelError(f"{file.path} is not an .onnx model; give that.")
    height, width = engine.image_size
    return height or -1, width or -1
