"""What the machine tells: its processor, its memory, and the memory of this process."""

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

# The limit of a container, as its processes see it: a number, or "max".
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


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


def memory_of_machine() -> int | None:
    """Return the bytes of memory that this process may use at most, in a container too; None if nothing tells."""
    limit = _CONTAINER_LIMIT.read_text().strip() if _CONTAINER_LIMIT.exists() else ""
    found = [int(limit)] if limit.isdecimal() else []
    with suppress(AttributeError, ValueError, OSError):  # not everywhere
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(found, default=None)


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
