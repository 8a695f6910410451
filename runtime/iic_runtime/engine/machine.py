"""What the machine tells: its processor, and the memory of this process."""

import platform
import sys
from pathlib import Path


def cpu_name() -> str:
    """Return the name of the processor; empty if the system does not tell."""
    facts = _cpu_facts()
    return facts.get("model name") or facts.get("Model", "")


def describe_cpu() -> str:
    """Describe the processor and its instruction sets, on which the rounding of an engine may depend."""
    facts = _cpu_facts()
    # The first two on x86, the others on Arm.
    names = ("model name", "flags", "CPU implementer", "CPU part", "Features")
    return "; ".join([platform.machine(), *(facts[name] for name in names if name in facts)])


def _cpu_facts() -> dict[str, str]:
    """Return what the kernel tells of the last processor, which stands for all of them."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(errors="replace").splitlines() if information.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def peak_memory() -> int:
    """Return the most memory in bytes that this process has held so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not `getrusage`, which counts what the parent process held before `exec`.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
