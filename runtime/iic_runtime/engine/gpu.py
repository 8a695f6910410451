"""Which GPU the machine has, found without starting anything that would crash if there is none."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iic_geotools.errors import DeviceError, MissingPackageError


@dataclass(frozen=True)
class Gpu:
    """The GPU that is used, which is the first one."""

    name: str
    capability: str


def cuda_runtime() -> Any:
    """Return NVIDIA's bindings of the CUDA runtime.

    Raises:
        MissingPackageError: They are not installed.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise MissingPackageError.for_extra("cuda-python", "tensorrt") from error
    return runtime


def succeed(result: tuple[Any, ...]) -> Any:
    """Return the value of a call to the CUDA runtime.

    Raises:
        DeviceError: The call failed.
    """
    error, *values = result
    if int(error) != 0:
        raise DeviceError(
            f"The GPU failed ({error.name}); if its memory is full, use a smaller `tile` or `batch`."
        )
    return values[0] if values else None


def find_gpu() -> Gpu:
    """Return the first GPU.

    Raises:
        DeviceError: There is no GPU that can be used.
    """
    cuda = cuda_runtime()
    error, count = cuda.cudaGetDeviceCount()
    if int(error) != 0 or not count:
        reason = error.name if int(error) else "none is installed"
        raise DeviceError(
            f"TensorRT needs an NVIDIA GPU, and none can be used here ({reason}); check the driver, or use "
            "`device` cpu with an .onnx file."
        )
    properties = succeed(cuda.cudaGetDeviceProperties(0))
    name = properties.name
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return Gpu(text.strip("\0 "), f"{properties.major}.{properties.minor}")


def describe_gpus() -> str:
    """Describe the GPUs and the driver, on which cached engines depend, without any package."""
    facts = [
        *sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")),
        Path("/proc/driver/nvidia/version"),
    ]
    lines = (line for file in facts if file.exists() for line in file.read_text().splitlines())
    return "; ".join(line.strip() for line in lines if line.startswith(("Model", "NVRM")))
