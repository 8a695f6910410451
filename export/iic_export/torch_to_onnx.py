"""A sub-head as it is served, from raw pixels to labels, and its ONNX graph: fp32, fp16 or int8."""

import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from iic_export.trained_head import TrainedHead
from iic_geotools.errors import ModelError
from iic_runtime.engine.base import import_onnxruntime
from iic_runtime.model.card import PixelType
from iic_runtime.model.onnx_head import CELLS, FEATURES, LOGITS, MERGE, PROBABILITIES
from iic_train.models.layers import BasicBlock
from iic_train.models.networks import Network
from iic_train.views.settings import ImagePairs

FULL_CONFIDENCE = 255.0
"""Value of `confidence` where a label is certain."""

OPSET = 20
"""The version that ONNX Runtime 1.21 and TensorRT 10 read; nothing of later versions is used."""

TRACED_SIDE = 38
"""Side of the image that a segmentation network is traced with; any would do."""
TRUNK_WEIGHTS = "trunk."
"""Prefix of the weights to quantise. The trunk's first convolution, the head and the rest stay in float32: they cost
little time and decide much."""
FOLLOWING_OPERATORS = ("Relu", "MaxPool")
"""Quantised too, so that integers pass from one convolution to the next."""


class ServedHead(nn.Module):
    """One sub-head of head B with everything from raw pixels to labels, in one module to trace.

    Attributes:
        outputs: Names of what it returns, in order.

    Args:
        network: A network with one sub-head, in eval mode; its batch norm is folded into the convolutions of a copy.
        merge: `[classes, clusters]` of 0 and 1: sum the probabilities of each class's clusters; None keeps clusters.
        half: Compute trunk and head in float16; scaling, softmax and upsampling stay in float32.
    """

    outputs: tuple[str, ...] = ("labels", "confidence", "probabilities")

    def __init__(self, network: Network, merge: Tensor | None = None, *, half: bool = False) -> None:
        super().__init__()
        folded = fold_batch_norm(network)
        self.front, self.trunk, self.head = folded.front, folded.trunk, folded.heads["b"]
        self.dtype = torch.float16 if half else torch.float32
        self.trunk.to(self.dtype)
        self.head.to(self.dtype)
        self.merge: Tensor | None
        # With the shape that it is used in, so that the graph keeps it as it is, under this name.
        dense = network.config.dense
        self.register_buffer(MERGE, merge[:, :, None, None] if merge is not None and dense else merge)
        self.eval()

    def features(self, scaled: Tensor) -> Tensor:
        """Run the trunk on scaled pixels."""
        features: Tensor = self.trunk(self.front.filter(scaled).to(self.dtype))
        return features

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits `[N, clusters, ...]` into probabilities `[N, classes, ...]`."""
        # Spelled out: ONNX Runtime's Softmax over any axis but the last takes five times as long.
        masses = (logits - logits.amax(1, keepdim=True)).exp()
        if self.merge is not None:
            dense = masses.ndim == 4
            masses = F.conv2d(masses, self.merge) if dense else F.linear(masses, self.merge)
        return masses / masses.sum(1, keepdim=True)

    def labels_and_confidence(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Reduce probabilities `[N, k, ...]` to labels and confidence, as whole numbers in float32."""
        # uint8 stands only at the outputs, and is cast from float32: TensorRT offers no other way to it.
        return probabilities.argmax(1).float(), (probabilities.amax(1) * FULL_CONFIDENCE).round()


class SegmentationHead(ServedHead):
    """Segmentation: `image` `[N, bands, H, W]` of any size to one label per pixel.

    The head can be replaced in the exported file by one that people's labels are fitted to: `features` are what it sees
    at every pixel, `cells` the same on the grid of the trunk if that is another one, and `logits` what it says of
    them.
    """

    def __init__(self, network: Network, merge: Tensor | None = None, *, half: bool = False) -> None:
        super().__init__(network, merge, half=half)
        self.cell = network.cell
        # The grid of the cells then ends at a multiple of the stride, which may lie beyond the image.
        self.apart = network.stride > 1
        self.outputs = (*ServedHead.outputs, FEATURES, *((CELLS,) if self.apart else ()), LOGITS)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Label raw pixels."""
        cells = self.features(self.front.scale(image))
        logits = self.head(cells).float()
        # On the coarse grid, where it costs a quarter: upsampling is linear, so the sums come out the same.
        probabilities = self.probabilities(logits)
        fine, features = self._upsample(probabilities), self._upsample(cells.float())
        # Cropped after the argmax: that moves one value per pixel, not one per class.
        labels, confidence = (
            self._crop(output, image).to(torch.uint8) for output in self.labels_and_confidence(fine)
        )
        apart = (cells,) if self.apart else ()
        return labels, confidence, self._crop(fine, image), self._crop(features, image), *apart, logits

    def _upsample(self, cells: Tensor) -> Tensor:
        if self.cell == 1:
            return cells
        return F.interpolate(cells, scale_factor=float(self.cell), mode="bilinear", align_corners=False)

    def _crop(self, fine: Tensor, image: Tensor) -> Tensor:
        return fine if not self.apart else fine[..., : image.shape[-2], : image.shape[-1]]


class ClusteringHead(ServedHead):
    """Clustering: `image` `[N, bands, H, W]` of one size to one label per image, cropped as in evaluation."""

    def __init__(
        self, network: Network, pairs: ImagePairs, merge: Tensor | None = None, *, half: bool = False
    ) -> None:
        super().__init__(network, merge, half=half)
        self.crop, self.size = pairs.crop, pairs.size

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Label raw images."""
        top, left = (round((side - self.crop) / 2) for side in image.shape[-2:])
        view = self.front.scale(image)[..., top : top + self.crop, left : left + self.crop]
        if self.crop != self.size:
            view = F.interpolate(view, (self.size, self.size), mode="bilinear", align_corners=False)
        probabilities = self.probabilities(self.head(self.features(view).flatten(1)).float())
        labels, confidence = (output.to(torch.uint8) for output in self.labels_and_confidence(probabilities))
        return labels, confidence, probabilities


def served_head(
    network: Network, pairs: object, merge: Tensor | None = None, *, half: bool = False
) -> ServedHead:
    """Make the module to trace of a network with one sub-head."""
    if isinstance(pairs, ImagePairs):
        return ClusteringHead(network, pairs, merge, half=half)
    return SegmentationHead(network, merge, half=half)


def fold_batch_norm(network: Network) -> Network:
    """Copy a network in eval mode, its batch norms folded into the convolutions before them."""
    folded = copy.deepcopy(network).eval()
    for module in folded.modules():
        if isinstance(module, BasicBlock):
            module.conv1 = fuse_conv_bn_eval(module.conv1, module.norm1)
            module.conv2 = fuse_conv_bn_eval(module.conv2, module.norm2)
            module.norm1 = module.norm2 = nn.Identity()  # type: ignore[assignment]
        elif isinstance(module, nn.Sequential):
            for index in range(len(module) - 1):
                conv, norm = module[index], module[index + 1]
                if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    module[index], module[index + 1] = fuse_conv_bn_eval(conv, norm), nn.Identity()
    unfolded = [name for name, module in folded.named_modules() if isinstance(module, nn.BatchNorm2d)]
    if unfolded:
        raise ModelError(
            f"The batch norm of {', '.join(unfolded)} does not follow a convolution, so it cannot be served."
        )
    return folded


def to_onnx(module: ServedHead, bands: int, dtype: PixelType, size: tuple[int, int]) -> onnx.ModelProto:
    """Trace a module.

    Args:
        dtype: Data type of its pixels.
        size: Height and width of its input; for segmentation only an example, as the graph takes any size.

    Returns:
        A graph with the input `image` and the outputs `labels`, `confidence` and `probabilities`, for segmentation
        `features` too.
    """
    dense = isinstance(module, SegmentationHead)
    dynamic = {0: torch.export.Dim("n")}
    if dense:
        dynamic |= {2: torch.export.Dim("h"), 3: torch.export.Dim("w")}
    example = torch.from_numpy(np.zeros((2, bands, *size), dtype))
    with _without_tracer_messages(), torch.no_grad():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            optimize=True,
            opset_version=OPSET,
            input_names=["image"],
            output_names=list(module.outputs),
            dynamic_shapes=(dynamic,),
            verbose=False,
        )
    if program is None:
        raise ModelError("PyTorch returned no graph for this network; install a newer torch.")
    return _tidy(program.model_proto, ["n", "h", "w"] if dense else ["n"])


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Copy a model with only these outputs, without the nodes and weights that only the others need."""
    kept = onnx.ModelProto()
    kept.CopyFrom(model)
    graph = kept.graph
    outputs = [output for output in graph.output if output.name in names]
    needed = {output.name for output in outputs}
    nodes: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    weights = [weight for weight in graph.initializer if weight.name in needed]
    for field, content in (
        (graph.output, outputs),
        (graph.node, nodes[::-1]),
        (graph.initializer, weights),
    ):
        copies = [type(item).FromString(item.SerializeToString()) for item in content]
        del field[:]
        field.extend(copies)
    return kept


def _tidy(model: onnx.ModelProto, dynamic: Sequence[str]) -> onnx.ModelProto:
    """Remove the tracer's notes and name the dynamic sizes of the outputs after those of the input."""
    graph = model.graph
    graph.name = "iic"
    model.producer_name, model.producer_version = "iic-edge", ""
    model.doc_string = graph.doc_string = ""
    del graph.value_info[:]
    del model.metadata_props[:]
    for item in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        item.doc_string = ""
        del item.metadata_props[:]
    # Traced as outputs only to name the tensors.
    outputs = [output for output in graph.output if output.name not in (CELLS, LOGITS)]
    del graph.output[:]
    graph.output.extend(outputs)
    for output in graph.output:
        dims = output.type.tensor_type.shape.dim
        channels = output.name in (PROBABILITIES, FEATURES)
        names = [dynamic[0], None, *dynamic[1:]] if channels else list(dynamic)
        for dim, name in zip(dims, names, strict=True):
            if name is not None:
                dim.dim_param = name
    for output in graph.output[:2]:
        if output.type.tensor_type.elem_type != TensorProto.UINT8:
            raise ModelError(
                f"The output {output.name} of the traced graph is not uint8; install a newer torch."
            )
    _take_sizes_from_floats(graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def _take_sizes_from_floats(graph: onnx.GraphProto) -> None:
    """Take sizes from the pixels as floats, not from the raw ones: all TensorRT can do with uint8 is cast it."""
    casts = [node for node in graph.node if node.op_type == "Cast" and node.input[0] == "image"]
    if not casts:
        return
    others = [node for node in graph.node if node not in casts]
    for node in others:
        if node.op_type == "Shape" and node.input[0] == "image":
            node.input[0] = casts[0].output[0]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (*casts, *others)]
    del graph.node[:]
    graph.node.extend(nodes)


@contextmanager
def _without_tracer_messages() -> Iterator[None]:
    """Silence the tracer, whose messages are meant for developers of torch."""
    noisy = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export", "onnx_ir")]
    levels = [logger.level for logger in noisy]
    for logger in noisy:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(noisy, levels, strict=True):
            logger.setLevel(level)


def float_graph(
    head: TrainedHead, size: tuple[int, int], merge: Tensor | None = None, *, half: bool = False
) -> onnx.ModelProto:
    """Trace a head in float32, or with trunk and head in float16.

    Args:
        size: Height and width of the images that a clustering network takes.
        merge: `[classes, clusters]` of 0 and 1, if clusters are merged into classes.
        half: Compute trunk and head in float16.
    """
    module = served_head(head.network, head.config.pairs, merge, half=half)
    example = (TRACED_SIDE, TRACED_SIDE) if head.config.dense else size
    return to_onnx(module, len(head.network.config.channels), head.dtype, example)


def quantise(
    model: onnx.ModelProto, images: Sequence[NDArray[Any]], *, symmetric: bool = False
) -> onnx.ModelProto:
    """Quantise the trunk to int8, weights per channel, with QuantizeLinear and DequantizeLinear around each layer.

    Args:
        model: A float32 model.
        images: Images `[bands, H, W]` to calibrate on.
        symmetric: Use signed activations around zero, all 8 bits of a weight and biases in float32, as TensorRT
            requires. Otherwise activations are unsigned, weights use 7 bits, because without VNNI a CPU's 16-bit sums
            would saturate and one file must serve every machine, and biases are integers.
    """
    import_onnxruntime()
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class ImageReader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._images: Iterator[NDArray[Any]] = iter(images)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            image = next(self._images, None)
            return None if image is None else {"image": image[None]}

    named = _with_node_names(model)
    with tempfile.TemporaryDirectory(prefix="iic-export-") as folder, _without_advice():
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(named), source)
        quantize_static(
            source,
            target,
            ImageReader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", *FOLLOWING_OPERATORS],
            nodes_to_quantize=_nodes_to_quantise(named),
            per_channel=True,
            reduce_range=not symmetric,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            # TensorRT dequantises 8 bits, not 32: its biases stay in float32.
            extra_options={
                "ActivationSymmetric": symmetric,
                "WeightSymmetric": True,
                "QuantizeBias": not symmetric,
            },
        )
        quantised = onnx.load(target)
    del quantised.graph.value_info[:]
    quantised.producer_name, quantised.producer_version = model.producer_name, model.producer_version
    return quantised


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence the quantiser, which logs advice to the root logger that has been followed already."""
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def _with_node_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model and name its nodes, so that some can be excluded from quantisation."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for index, node in enumerate(copy.graph.node):
        node.name = f"{node.op_type}_{index}"
    return copy


def _nodes_to_quantise(model: onnx.ModelProto) -> list[str]:
    chosen, quantised_tensors, first_seen = [], set(), False
    for node in model.graph.node:
        weight = node.input[1] if node.op_type == "Conv" else ""
        in_trunk = weight.startswith(TRUNK_WEIGHTS)
        follows = node.op_type in FOLLOWING_OPERATORS and node.input[0] in quantised_tensors
        if (in_trunk and first_seen) or follows:
            chosen.append(node.name)
            quantised_tensors |= set(node.output)
        first_seen |= in_trunk
    if not chosen:
        raise ModelError("The graph has no convolutions to quantise; export it in fp32 or fp16.")
    return chosen
