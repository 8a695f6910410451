"""Conversion of a model file to half precision without PyTorch, e.g. on a Jetson board."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import ModelError, UsageError
from iic_geotools.files import check_writable, write_atomically
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.parity import as_function, trial_image
from iic_runtime.model.file import ModelFile, put_card
from iic_runtime.model.onnx_graph import FLOAT, FLOAT16, Node, OnnxGraph
from iic_runtime.model.select import Model, find_model
from iic_runtime.model.validate import validate_model
from iic_runtime.options import EngineSettings

MIN_AGREEMENT = 0.99
"""Share of labels that must be those of the file: the bound of half precision at export."""
FOLLOWING = ("Relu", "MaxPool", "Concat", "Add")
"""Operators that stay in half precision after a convolution."""
TRIAL_SIDE = 512


def convert_model(
    model: Model,
    out: str | PathLike[str],
    *,
    precision: Literal["fp16"] = "fp16",
    min_agreement: float = MIN_AGREEMENT,
    overwrite: bool = False,
) -> float:
    """Write a model in half precision: convolutions in float16, scaling and probabilities in float32.

    Args:
        model: A model file in float32, by its path or already read, or the name of a bundled model.
        precision: That of the convolutions.
        min_agreement: The share of labels on a made image, half noise and half patches, that must be those of `model`.
        overwrite: Replace `out` if it exists.

    Returns:
        The share of labels that are equal.
    """
    if precision != "fp16":
        raise UsageError(f"`precision` must be fp16, not {precision}; iic-export writes int8.")
    if not 0 <= min_agreement <= 1:
        raise UsageError(f"`min_agreement` must be between 0 and 1, not {min_agreement:g}.")
    file, out = find_model(model), Path(out)
    check_writable([(out, (".onnx",), "out")], overwrite=overwrite)
    if file.engine is not None or file.card.precision != "fp32" or file.card.task != "segmentation":
        raise ModelError(
            f"{file.path} is not a model of pixels in fp32, which alone can be converted; give that."
        )
    card = replace(file.card, precision="fp16")
    agreement = _agreement(file, replace(file, content=put_card(to_half(file.content), card), card=card))
    if agreement < min_agreement:
        raise ModelError(
            f"In fp16 only {agreement:.2%} of the labels are those of {file.path}, and {min_agreement:.2%} are asked "
            "for; keep it in fp32, or give another `min_agreement`."
        )
    card = replace(card, parity={**card.parity, "agreement_with_fp32": round(agreement, 6)})
    converted = ModelFile(out, put_card(to_half(file.content), card), card)
    broken = [check for check in validate_model(converted) if not check.kept]
    if broken:
        raise ModelError(
            f"In fp16 {file.path} does not match its card, which says that {broken[0].promise} ({broken[0].detail})."
        )
    write_atomically(out, converted.content)
    return agreement


def _agreement(file: ModelFile, converted: ModelFile) -> float:
    side = max(TRIAL_SIDE, 4 * file.card.halo)
    image = trial_image(file.card, side, side, np.random.default_rng(0))
    settings = EngineSettings(device="cpu")
    labels = [as_function(open_engine(each, settings))(image)[0] for each in (file, converted)]
    return float((labels[0] == labels[1]).mean())


def to_half(content: bytes) -> bytes:
    """Return a serialised model whose convolutions compute in float16; inputs and outputs stay as they are.

    Raises:
        ModelError: A weight is too large for float16.
    """
    graph = OnnxGraph.parse(content)
    half = _HalfGraph(graph)
    for node in graph.nodes:
        half.add(node)
    half.need_float(tuple(graph.outputs))
    changed = replace(graph, nodes=tuple(half.nodes)).with_weights(half.weights)
    return changed.with_outputs(graph.outputs).serialise()


@dataclass
class _HalfGraph:
    """The nodes of a graph in half precision as they are made; a tensor in float16 is named after that in float32."""

    graph: OnnxGraph
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, NDArray[np.float16]] = field(default_factory=dict)
    _halves: set[str] = field(default_factory=set)
    _only_half: set[str] = field(default_factory=set)

    def add(self, node: Node) -> None:
        """Add a node, in half precision if that is where it belongs."""
        inputs = [name for name in node.inputs if name]
        convolves = node.operator == "Conv" and set(inputs[1:]) <= set(self.graph.weights)
        follows = node.operator in FOLLOWING and set(inputs) <= self._halves and len(node.outputs) == 1
        if not (convolves or follows):
            self.need_float(inputs)
            self.nodes.append(node)
            return
        (output,) = node.outputs
        taken = tuple(name and self._half(name) for name in node.inputs)
        self.nodes.append(replace(node, inputs=taken, outputs=(_half_name(output),)))
        self._halves.add(output)
        self._only_half.add(output)

    def need_float(self, names: Sequence[str]) -> None:
        """Cast tensors back to float32 that are there in float16 only."""
        for name in dict.fromkeys(names):
            if name in self._only_half:
                self.nodes.append(Node.make("Cast", [_half_name(name)], name, to=FLOAT))
                self._only_half.remove(name)

    def _half(self, name: str) -> str:
        if name in self.graph.weights:
            with np.errstate(over="ignore"):
                values = self.graph.weight(name).astype(np.float16)
            if not np.isfinite(values).all():
                raise ModelError(f"Its weights {name} are too large for fp16; keep the model in fp32.")
            self.weights[_half_name(name)] = values
        elif name not in self._halves:
            self.nodes.append(Node.make("Cast", [name], _half_name(name), to=FLOAT16))
            self._halves.add(name)
        return _half_name(name)


def _half_name(name: str) -> str:
    return f"{name}/half"
