"""Convert a model file for another engine, without PyTorch: GPUs, Jetson boards and servers."""

import shlex
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import ModelError, SceneError, UsageError
from iic_geotools.files import check_writable, write_atomically
from iic_geotools.scene.listing import find_scene
from iic_geotools.settings import PathLike, takes
from iic_geotools.tiling import TileGrid, largest_read
from iic_runtime.engine.base import OUTPUTS, Engine
from iic_runtime.engine.onnx import check_integers
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.parity import as_function, trial_image
from iic_runtime.engine.tensorrt_build import find_tensorrt, write_engine
from iic_runtime.model.card import Card, Precision
from iic_runtime.model.engine_card import ENGINE_SUFFIX
from iic_runtime.model.file import ModelFile, put_card
from iic_runtime.model.onnx_graph import OnnxGraph
from iic_runtime.model.onnx_precision import Range, to_half, to_int8
from iic_runtime.model.select import find_model
from iic_runtime.model.triton import check_repository, write_repository
from iic_runtime.model.validate import check_matches_card
from iic_runtime.options import ConvertSettings, EngineOptions, EngineSettings
from iic_runtime.raster.model_input import choose_reading

TRIAL_SIDE = 512
"""Side in pixels of the images that models are compared on."""
TRIAL_TILES = 8
"""Number of tiles of a scene that models are compared on, or calibrated and compared."""
Images = list[NDArray[Any]]


@dataclass(frozen=True)
class ConvertArguments(ConvertSettings):
    """Arguments of `convert_model`."""

    model: PathLike | ModelFile
    out: PathLike
    _: KW_ONLY
    engine: EngineOptions = field(default=EngineOptions(), kw_only=True)


@dataclass(frozen=True)
class Converted:
    """A model that was converted.

    Attributes:
        path: The file, or the folder of a model repository.
        card: Its card.
        agreement: Share of labels that are those of the model that was given; None if the graph is the same.
        compared_on: What it was compared on.
        next_command: The command that uses it.
    """

    path: Path
    card: Card
    agreement: float | None
    compared_on: str
    next_command: str

    def sentence(self) -> str:
        """The conversion in one line."""
        same = "the same graph"
        if self.agreement is not None:
            same = f"{self.agreement:.3%} of the labels on {self.compared_on} are those of the model"
        return f"{self.path}: {self.card.name} in {self.card.precision}, {same}"


@takes(ConvertArguments)
def convert_model(arguments: ConvertArguments) -> Converted:
    """Write a model for another engine: in another precision, for TensorRT, or for a Triton server.

    Labels are compared with those of the model, and tiles must equal the whole image, before anything is written.

    Args:
        model: A model file, by its path or already read, or the name of a bundled model.
        out: The model file, `.onnx`, or `.engine` for TensorRT; the folder of a repository for Triton.
        engine: What a TensorRT engine is built for, and the batch of a Triton server.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. Nothing is written.
    """
    file, out = find_model(arguments.model), Path(arguments.out)
    kind, card = arguments.format, file.card
    precision: Precision = arguments.precision or ("fp16" if kind == "onnx" else card.precision)
    _check(arguments, file, precision)
    changed, agreement, compared_on = file, None, "a made image"
    if precision != card.precision:
        calibration, images, compared_on = _images(card, arguments.scene)
        changed = _in_precision(file, precision, calibration, symmetric=kind != "onnx")
        agreement = _agreement(_open(file), _open(changed), images)
        _check_agreement(agreement, arguments.min_agreement, f"In {precision}", file)
        parity = {**card.parity, "agreement_with_fp32": round(agreement, 6)}
        changed = _with_card(changed, replace(changed.card, parity=parity))
        check_matches_card(changed)
    shown = shlex.quote(str(out))
    if kind == "triton":
        write_repository(changed, out, arguments.engine.batch)
        return Converted(
            out, changed.card, agreement, compared_on, f"tritonserver --model-repository {shown}"
        )
    command = f"iic-segment-raster scene.tif out.tif --model {shown}"
    if kind == "onnx":
        write_atomically(out, changed.content)
        device = " --device cuda" if precision == "fp16" else ""
        return Converted(out, changed.card, agreement, compared_on, command + device)
    side = largest_read(arguments.engine.tile, card.halo, card.stride)
    _, images, compared_on = _images(card, arguments.scene)
    shares: list[float] = []

    def prove(engine: Engine) -> Card:
        shares.append(_agreement(_open(file), engine, [image[:, :side, :side] for image in images]))
        _check_agreement(shares[0], arguments.min_agreement, "As a TensorRT engine", file)
        parity = {**changed.card.parity, "engine_label_agreement": shares[0]}
        return replace(changed.card, parity=parity)

    card = write_engine(changed.content, changed.card, out, arguments.engine, prove)
    return Converted(out, card, shares[0] if shares else None, compared_on, command)


def _check(arguments: ConvertArguments, file: ModelFile, precision: str) -> None:
    """Refuse before any work what cannot be converted or written."""
    kind, card, out = arguments.format, file.card, Path(arguments.out)
    for name, value in (("precision", precision), ("format", kind)):
        known = get_args(Precision) if name == "precision" else ("onnx", "tensorrt", "triton")
        if value not in known:
            raise UsageError(f"`{name}` must be one of {', '.join(known)}, not {value}.")
    if not 0 <= arguments.min_agreement <= 1:
        raise UsageError(f"`min_agreement` must be between 0 and 1, not {arguments.min_agreement:g}.")
    if kind == "triton":
        check_repository(file, out, overwrite=arguments.overwrite)
    else:
        suffix = ".onnx" if kind == "onnx" else ENGINE_SUFFIX
        check_writable([(out, (suffix,), "out")], overwrite=arguments.overwrite)
    dense = card.task == "segmentation"
    if kind != "triton" and (file.engine is not None or not dense):
        raise ModelError(
            f"{file.path} is not an .onnx model of pixels, which alone can be converted; give that."
        )
    if precision != card.precision and (card.precision != "fp32" or file.engine is not None or not dense):
        raise ModelError(
            f"{file.path} is not a model of pixels in fp32, which alone can be converted to {precision}; give that."
        )
    if precision == card.precision and kind == "onnx":
        raise UsageError(f"{file.path} is in {precision} already; copy it, or give another `precision`.")
    if kind == "tensorrt":
        check_integers(file)
        find_tensorrt()


def _check_agreement(agreement: float, least: float, how: str, file: ModelFile) -> None:
    if agreement < least:
        raise ModelError(
            f"{how} only {agreement:.2%} of the labels are those of {file.path}, and {least:.2%} are asked for; keep "
            "it as it is, or give another `min_agreement`."
        )


def _images(card: Card, scene: PathLike | None) -> tuple[Images, Images, str]:
    """Return images to calibrate on, others to compare on, and what the latter are."""
    if scene is None:
        side = max(TRIAL_SIDE, 4 * card.halo)
        images = [trial_image(card, side, side, np.random.default_rng(seed)) for seed in range(3)]
        return images[1:], images[:1], "a made image"
    info = find_scene(scene)
    reading = choose_reading(info, card)
    grid = reading.grid or info.grid
    tiles = list(TileGrid(grid.width, grid.height, TRIAL_SIDE, card.halo, card.stride))
    images = []
    with reading.open() as handle:
        for index in sorted({int(place) for place in np.linspace(0, len(tiles) - 1, TRIAL_TILES)}):
            if handle.may_hold_data(tiles[index].core):
                images.append(handle.read(tiles[index].read).values)
    if not images:
        raise SceneError(f"{info.title} holds no data to compare on; give another `scene`.")
    return images[::2], images[1::2] or images, "the scene"


def _in_precision(file: ModelFile, precision: Precision, images: Images, *, symmetric: bool) -> ModelFile:
    """Return a model in another precision."""

    def measure(graph: OnnxGraph, tensors: Sequence[str]) -> dict[str, Range]:
        for name in tensors:
            graph = graph.declare_output(name, *(f"{name}/{axis}" for axis in range(4)))
        shown = replace(file, content=graph.serialise())
        engine = open_engine(shown, EngineSettings(device="cpu"), (*OUTPUTS, *tensors))
        ranges = dict.fromkeys(tensors, (0.0, 0.0))
        for image in images:
            for name, values in zip(tensors, engine.fetch(image[None], tensors), strict=True):  # type: ignore[attr-defined]
                low, high = ranges[name]
                ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
        return ranges

    half = precision == "fp16"
    content = to_half(file.content) if half else to_int8(file.content, measure, symmetric=symmetric)
    return _with_card(replace(file, content=content), replace(file.card, precision=precision))


def _with_card(file: ModelFile, card: Card) -> ModelFile:
    return replace(file, content=put_card(file.content, card), card=card)


def _open(file: ModelFile) -> Engine:
    return open_engine(file, EngineSettings(device="cpu"))


def _agreement(reference: Engine, engine: Engine, images: Images) -> float:
    """Return the share of labels that are equal."""
    runs = [as_function(reference), as_function(engine)]
    same = [np.equal(*(run(image)[0] for run in runs)) for image in images]
    return float(np.mean(np.concatenate([equal.ravel() for equal in same])))
