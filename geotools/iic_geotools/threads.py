"""Work shared among threads."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from itertools import islice
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Return the number of cores this process may use, which in a container may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
