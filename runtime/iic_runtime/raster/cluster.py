"""Parts written by other processes: the workers of a Dask cluster read the scene and write parts, the caller assembles.

A task is the plan of the run and a few parts. All else is in the folder of parts, which the workers share with the
caller: the manifest, a copy of the model, the parts themselves. So a worker that dies costs only the parts that it
was working on, and a run that ends can be resumed by any number of workers, or none.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from hashlib import sha256
from threading import Lock
from typing import Any

import rasterio

from iic_geotools import __version__
from iic_geotools.errors import DeviceError, IICError, ModelError, UsageError
from iic_geotools.files import write_atomically
from iic_geotools.packages import asyncio, distributed
from iic_geotools.tiling import Part, Tile
from iic_geotools.work import cores
from iic_runtime.engine.open_engine import MAX_THREADS
from iic_runtime.model.file import ModelFile
from iic_runtime.options import RunSettings
from iic_runtime.raster.part_folder import PartFolder
from iic_runtime.raster.plan import Plan
from iic_runtime.raster.stages import OnTile, gdal_options, label_parts
from iic_runtime.segmenter import Segmenter, get_segmenter

_LOG = logging.getLogger(__name__)
MODEL = "model.onnx"
# Few parts per task keep the workers evenly busy and progress visible; many overlap reading and computing better.
MAX_PARTS_PER_TASK = 4
TASKS_PER_WORKER = 8
# Seconds: between looks at what is done, between looks at the workers, and without any worker until a run gives up.
POLL, LOOK_EVERY, WORKER_TIMEOUT = 0.05, 5.0, 60.0
# A second thread of a Dask worker would take a second set of buffers for cores that the engine uses already.
_running = Lock()


class Cluster:
    """A Dask cluster that writes parts.

    Args:
        client: A client of the cluster's scheduler.
        threads: Number of threads of the engine in each worker; by default the worker's share of its machine's cores.
    """

    def __init__(self, client: Any, threads: int | None = None) -> None:
        self._client = client
        self._threads = threads

    def label_parts(
        self, plan: Plan, parts: Sequence[Part], folder: PartFolder, segmenter: Segmenter, on_tile: OnTile
    ) -> None:
        """Do what `iic_runtime.raster.stages.label_parts` does, with the cluster's workers.

        Raises:
            IICError: A worker failed. The tasks of the others are dropped; finished parts stay.
        """
        if segmenter.model.engine is not None:
            raise UsageError(
                f"{segmenter.model.path} is an engine for one kind of GPU; give the workers the .onnx file."
            )
        hosts = self._count_workers()
        groups = _group(parts, sum(hosts.values()))
        write_atomically(folder.path / MODEL, segmenter.model.content)
        _LOG.info("%d parts for %d workers", len(parts), sum(hosts.values()))
        shared = plan.for_workers(self._threads), hosts, folder.ticket()
        futures = [self._client.submit(label_group, *shared, group, pure=False) for group in groups]
        group_of = dict(zip((future.key for future in futures), groups, strict=True))
        try:
            for future in self._as_completed(futures):
                for part, held in zip(group_of[future.key], self._result(future), strict=True):
                    for tile, held_data in zip(part.tiles, held, strict=True):
                        on_tile(tile, held_data)
        finally:
            with suppress(*_scheduler_errors()):
                self._client.cancel(futures, force=True)

    def _as_completed(self, futures: Sequence[Any]) -> Iterator[Any]:
        """Yield futures as they are done; give up if there has been no worker for a while."""
        done = distributed.as_completed(futures, loop=self._client.loop)
        seen = looked = time.monotonic()
        while not done.is_empty():
            if done.has_ready():
                yield from done.next_batch(block=False)
                seen = time.monotonic()
                continue
            time.sleep(POLL)
            now = time.monotonic()
            if now - looked < LOOK_EVERY:
                continue
            looked = now
            if self._has_workers():
                seen = now
            elif now - seen > WORKER_TIMEOUT:
                raise _no_workers()
            else:
                _LOG.warning("No worker is left; waiting %.0f s for one.", WORKER_TIMEOUT - (now - seen))

    def _result(self, future: Any) -> list[list[bool]]:
        """Return what a task returned, which is fetched from the worker that ran it."""
        try:
            return _result(future)
        except TimeoutError as error:
            raise (_lost_scheduler(error) if self._has_workers() else _no_workers()) from error
        except (CancelledError, asyncio.CancelledError, distributed.comm.CommClosedError) as error:
            raise _lost_scheduler(error) from error

    def _has_workers(self) -> bool:
        try:
            return bool(self._client.scheduler_info(n_workers=-1)["workers"])
        except _scheduler_errors() as error:
            raise _lost_scheduler(error) from error

    def _count_workers(self) -> Counter[str]:
        """Return the number of workers per host."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        if not workers:
            raise DeviceError("The scheduler has no workers; start some with: dask worker ADDRESS.")
        return Counter(worker["host"] for worker in workers)


@contextmanager
def connect_cluster(settings: RunSettings) -> Iterator[Cluster | None]:
    """Yield a cluster of processes started here, or that of a scheduler; None if neither is asked for."""
    workers, scheduler, threads = settings.workers, settings.scheduler, settings.threads
    if workers is not None and scheduler is not None:
        raise UsageError("`workers` starts a cluster and `scheduler` uses a running one; give one of them.")
    most = max(MAX_THREADS, cores())
    if workers is not None and not 1 <= workers <= most:
        raise UsageError(
            f"`workers` must be 1 to {most}, not {workers}; each of them is a process, and there are {cores()} cores."
        )
    if isinstance(scheduler, Cluster) or (workers, scheduler) == (None, None):
        yield scheduler if isinstance(scheduler, Cluster) else None
        return
    distributed.Client  # noqa: B018  imported here, before its loggers are quietened
    with _without_tracebacks():
        yield from _connect(workers, scheduler, threads)


def _connect(workers: int | None, scheduler: str | None, threads: int | None) -> Iterator[Cluster]:
    if workers is not None:
        # The tiles limit the memory of a worker; Dask's own limit is for tasks that hold their results.
        settings = {"threads_per_worker": 1, "memory_limit": None, "dashboard_address": "127.0.0.1:0"}
        with (
            distributed.LocalCluster(n_workers=workers, **settings) as local,
            distributed.Client(local, set_as_default=False) as client,
        ):
            yield Cluster(client, threads)
        return
    try:
        client = distributed.Client(scheduler, timeout=10, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, TypeError) and str(scheduler).startswith("tls://"):
            raise DeviceError(
                f"The Dask scheduler at {scheduler} needs certificates; name them in Dask's configuration, under "
                "distributed.comm.tls."
            ) from error
        raise DeviceError(
            f"There is no Dask scheduler at {scheduler} ({error}); start one with: dask scheduler."
        ) from error
    try:
        yield Cluster(client, threads)
    finally:
        with suppress(*_scheduler_errors()):
            client.close(timeout=5)


def _scheduler_errors() -> tuple[type[BaseException], ...]:
    """Return what Dask raises if the scheduler is gone; asyncio would delay every map if it were imported above."""
    return OSError, TimeoutError, CancelledError, asyncio.CancelledError, RuntimeError


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Log Dask's tracebacks for debugging only; errors are raised as sentences."""

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info:
            _LOG.debug("%s: %s", record.name, record.getMessage(), exc_info=record.exc_info)
        return not record.exc_info

    names = [name for name in logging.root.manager.loggerDict if name.startswith(("distributed", "asyncio"))]
    for name in names:
        logging.getLogger(name).addFilter(keep)
    try:
        yield
    finally:
        for name in names:
            logging.getLogger(name).removeFilter(keep)


def label_group(plan: Plan, hosts: Mapping[str, int], ticket: str, parts: Sequence[Part]) -> list[list[bool]]:
    """Write parts in a worker. Parts that exist already, from a worker whose reply was lost, are not written again.

    Returns:
        For each tile of each part, whether it held data.
    """
    try:
        return _label_group(plan, hosts, ticket, parts)
    except IICError as error:
        failure = error
    # GDAL's own errors cannot be pickled; without them as its cause, the error reaches the caller as it is.
    failure.__cause__ = failure.__context__ = None
    raise failure


def _label_group(
    plan: Plan, hosts: Mapping[str, int], ticket: str, parts: Sequence[Part]
) -> list[list[bool]]:
    if plan.version != __version__:
        raise DeviceError(
            f"A worker has iic-edge {__version__}, the caller {plan.version}; install the same everywhere."
        )
    folder = PartFolder(plan.outputs.parts, plan.layers, ticket)
    folder.check_ticket()
    held: dict[int, list[bool]] = {part.index: [] for part in parts}
    missing = [part for part in parts if not folder.has(part.index)]
    part_of = {tile.core: part.index for part in missing for tile in part.tiles}

    def on_tile(tile: Tile, held_data: bool) -> None:
        held[part_of[tile.core]].append(held_data)

    with _running, rasterio.Env(**gdal_options(plan)):
        label_parts(plan, missing, folder, _open_segmenter(plan, hosts), on_tile)
    for part in parts:
        if part not in missing:
            held[part.index] = [folder.holds_data(part.index)] * len(part.tiles)
    return [held[part.index] for part in parts]


def _open_segmenter(plan: Plan, hosts: Mapping[str, int]) -> Segmenter:
    """Return the plan's model, opened once in this process, on this worker's share of the cores."""
    spec = plan.engine
    if spec.threads is None:
        spec = spec.with_threads(max(1, cores() // _workers_on_host(hosts)))

    def read() -> ModelFile:
        model = ModelFile.read(plan.outputs.parts / MODEL)
        if sha256(model.content).hexdigest() != plan.model_digest:
            raise ModelError(f"{model.path} is not the model of this run; start it again.")
        return model

    segmenter = get_segmenter(plan.model_digest, spec, read)
    if segmenter.provider != plan.provider:
        raise DeviceError(
            f"A worker computes with {segmenter.provider}, the caller with {plan.provider}; choose a `device` that "
            "all of them have."
        )
    return segmenter


def _workers_on_host(hosts: Mapping[str, int]) -> int:
    return hosts.get(distributed.get_worker().ip, max(hosts.values()))


def _group(parts: Sequence[Part], workers: int) -> list[Sequence[Part]]:
    size = min(MAX_PARTS_PER_TASK, max(1, len(parts) // (workers * TASKS_PER_WORKER)))
    return [parts[start : start + size] for start in range(0, len(parts), size)]


def _result(future: Any) -> list[list[bool]]:
    try:
        result: list[list[bool]] = future.result(timeout=WORKER_TIMEOUT)
        return result
    except IICError:
        raise
    except distributed.KilledWorker as error:
        raise DeviceError(
            f"Several workers died while they labelled the same parts ({error.last_worker.address} was the last); look "
            "at their logs, and give `max_memory` if they had too little memory."
        ) from error
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"A worker has no module {error.name}; install the same iic-edge wherever workers run."
        ) from error


def _no_workers() -> DeviceError:
    return DeviceError(
        f"The cluster has had no worker for {WORKER_TIMEOUT:.0f} s; start some, and run the same command again to "
        "resume."
    )


def _lost_scheduler(error: BaseException) -> DeviceError:
    return DeviceError(
        f"The connection to the Dask scheduler was lost ({type(error).__name__}); start it again, and run the same "
        "command again to resume."
    )
