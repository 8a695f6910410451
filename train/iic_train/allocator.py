"""How the C library hands out the memory of tensors on a CPU."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Parameters of glibc's `mallopt`."""
LARGEST = 2**31 - 1
GROWTH = 64 * 2**20
"""Number of bytes by which the heap grows."""


def keep_freed_memory() -> bool:
    """Let tensors reuse the memory that others have left, and return whether the C library can.

    glibc gives every large block back to the system as soon as it is freed, so each tensor of a training step is made
    of new pages, which the system clears first: a quarter of the time of a narrow network at full resolution
    (`benchmarks/train_step.py --memory`). Kept on the heap, blocks are reused; the process keeps its peak memory.
    """
    if not sys.platform.startswith("linux"):
        return False
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is None:  # another C library, such as musl
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, LARGEST), (M_TOP_PAD, GROWTH))
    return all(change(parameter, value) == 1 for parameter, value in settings)
