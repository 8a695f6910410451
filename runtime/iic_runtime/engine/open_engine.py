"""Open a model on a device."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import get_args

from iic_geotools.errors import DeviceError, MissingPackageError, UsageError
from iic_geotools.threads import cores
from iic_runtime.engine.base import OUTPUTS, Engine, EngineSpec
from iic_runtime.engine.onnx import OnnxEngine, usable_devices
from iic_runtime.engine.openvino import OpenVinoEngine, open_openvino, prefers_openvino
from iic_runtime.engine.sizing import choose_spec
from iic_runtime.engine.tensorrt import TensorRTEngine
from iic_runtime.model.file import ModelFile
from iic_runtime.options import Device, EngineSettings

_LOG = logging.getLogger(__name__)
# More threads than any machine has cores only fight each other.
MAX_THREADS = 256


def open_engine(
    model: ModelFile, settings: EngineSettings | None = None, outputs: Sequence[str] = OUTPUTS
) -> Engine:
    """Open a model on a device.

    The device "auto" is the GPU if it can be used, else OpenVINO if it was used with this model before and gave equal
    labels faster, else ONNX Runtime on the CPU.

    Args:
        model: The model file.
        settings: How it is run.
        outputs: The outputs of an ONNX graph that are fetched, labels and confidence included.

    Raises:
        UsageError: A setting makes no sense, or does not fit the model.
        MissingPackageError: No engine is installed.
        DeviceError: The device does not exist.
        ModelError: The graph does not match its card.
    """
    settings = settings or EngineSettings()
    device, threads = settings.device, settings.threads
    if device not in get_args(Device):
        raise UsageError(f"`device` must be one of {', '.join(get_args(Device))}, not {device}.")
    most = max(MAX_THREADS, cores())
    if threads is not None and not 1 <= threads <= most:
        raise UsageError(
            f"`threads` must be 1 to {most}, not {threads}; this process may use {cores()} cores."
        )
    if model.engine is not None:
        if device not in ("auto", "tensorrt"):
            raise UsageError(
                f"{model.path} is a TensorRT engine and cannot run on {device}; use `device` tensorrt, or the "
                ".onnx file."
            )
        tile, batch = model.engine.fit(settings.tile, settings.batch)
        settings = replace(settings, device="tensorrt", tile=tile, batch=batch)
        return open_spec(model, choose_spec(model.card, settings))

    def open_on(device: Device) -> Engine:
        return open_spec(model, choose_spec(model.card, replace(settings, device=device)), outputs)

    *candidates, last = _preferred_devices(model) if device == "auto" else (device,)
    for candidate in candidates:
        try:
            return open_on(candidate)
        except (DeviceError, MissingPackageError) as error:
            _LOG.warning("%s Using the CPU.", error)
    return open_on(last)


def open_spec(model: ModelFile, spec: EngineSpec, outputs: Sequence[str] = OUTPUTS) -> Engine:
    """Open a model as a spec says; the exceptions are those of `open_engine`."""
    if model.engine is not None:
        return TensorRTEngine(model, spec)
    if spec.device == "openvino":
        return open_openvino(model, spec)
    return OnnxEngine(model, spec, outputs)


def open_lanes(model: ModelFile, spec: EngineSpec) -> Engine:
    """Open a model once more, for `spec.lanes` threads that each run batches of their own.

    On a CPU, tiles side by side are faster than one after the other on all threads: some operations of a graph have
    one thread whatever there is, and at the end of the others the fastest thread waits for the slowest.
    """
    if spec.device == "openvino":
        return OpenVinoEngine(model, spec, streams=spec.lanes)
    return open_spec(model, replace(spec, threads=spec.threads_per_lane))


def _preferred_devices(model: ModelFile) -> tuple[Device, ...]:
    """Return the devices that may be there for a model, the one to try first at the front, the CPU at the end."""
    *others, cpu = usable_devices()
    if find_spec("openvino") is None:
        return (*others, cpu)
    return (*others, "openvino", cpu) if prefers_openvino(model) else (*others, cpu)
