"""Work: progress as values that functions report and commands display, and threads that share it."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar


@dataclass(frozen=True)
class Progress:
    """One report of how far a stage has come.

    Attributes:
        stage: Name of the stage, e.g. "segment", "write" or "train". A display keeps one bar per stage.
        done: Amount of work done so far.
        total: Amount of work of the whole stage.
        unit: What `done` counts, e.g. "px" or "images". Speed is shown only if it is given.
        note: Figures to show next to the percentage, e.g. "epoch 3/10, loss -1.234".
    """

    stage: str
    done: int
    total: int
    unit: str = ""
    note: str = ""


class OnProgress(Protocol):
    """A function that takes reports of progress."""

    def __call__(self, progress: Progress) -> None:
        """Take one report."""


def silent(progress: Progress) -> None:
    """Ignore a report: the default of library functions."""


P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def cores() -> int:
    """Return the number of cores this process may use, which in a container may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_of_machine() -> int | None:
    """Return the bytes of memory that this process may use at most, in a container too; None if unknown."""
    limit = _CONTAINER_LIMIT.read_text().strip() if _CONTAINER_LIMIT.exists() else ""
    found = [int(limit)] if limit.isdecimal() else []
    with suppress(AttributeError, ValueError, OSError):  # not everywhere
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(found, default=None)


def interruptible(function: Callable[P, R]) -> Callable[P, R]:
    """Let another thread run a function that may wait for a server, so that an interrupt ends the wait."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        pool = ThreadPoolExecutor(1)
        try:
            return pool.submit(function, *args, **kwargs).result()
        finally:
            pool.shutdown(wait=False)

    return run


def map_ahead(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], depth: int
) -> Iterator[R]:
    """Yield results in order; the pool computes them up to `depth` items ahead of their use.

    The items themselves are made by the calling thread.
    """
    source = iter(items)
    futures = deque(pool.submit(function, item) for item in islice(source, depth))
    while futures:
        result = futures.popleft().result()
        futures.extend(pool.submit(function, item) for item in islice(source, 1))
        yield result


def format_speed(per_second: float) -> str:
    """Format a number per second: whole, or two digits of a small one."""
    return f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.2g}"
