"""Parts made by other processes: workers of a Dask cluster read the scene and write parts, the caller assembles.

A task is plain data and a few parts. All else is in the folder of parts, which the workers share with the caller:
the manifest that says what the parts are for, a copy of the model, the parts themselves. So a worker that dies
costs the parts it had in work, and a run that ends can be gone on with by any number of workers, or none.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import rasterio

from iic_geotools import __version__
from iic_geotools.errors import DeviceError, IICError, MissingPackageError, ModelError, UsageError
from iic_geotools.files import write_atomically
from iic_geotools.grid import Part, Tile
from iic_geotools.parts import PartFolder
from iic_runtime.engines import cores
from iic_runtime.job import Job
from iic_runtime.modelfile import ModelFile
from iic_runtime.opened import Opening, opened
from iic_runtime.pipeline import OnTile, write_parts
from iic_runtime.segmenter import Segmenter

_LOG = logging.getLogger(__name__)
MODEL = "model.onnx"
# Few parts a task keep the workers evenly busy and tell how far the work is; more overlap reading and computing.
MOST_PARTS = 4
TASKS_A_WORKER = 8
# Two threads of a Dask worker would open a second set of buffers for cores that the engine uses already.
_running = Lock()


@dataclass(frozen=True)
class Assignment:
    """What every task of a run shares; plain data.

    Attributes:
        job: what to do.
        folder: where the parts go.
        layers: of the parts.
        ticket: of the folder; it changes when the folder is given to other work.
        opening: how the model is opened; without `threads` each worker uses its share of the cores.
        neighbours: how many workers there are on each host.
        cache: bytes of GDAL's block cache.
        version: of this package, which must be the workers' too.
    """

    job: Job
    folder: Path
    layers: tuple[str, ...]
    ticket: str
    opening: Opening
    neighbours: Mapping[str, int]
    cache: int | None
    version: str = __version__


class Cluster:
    """A Dask cluster that makes parts.

    Args:
        client: a client of its scheduler.
        threads: of the engine in each worker; by default the worker's share of its machine's cores.
    """

    def __init__(self, client: Any, threads: int | None = None) -> None:
        self._client = client
        self._threads = threads

    def write_parts(
        self, job: Job, parts: Sequence[Part], folder: PartFolder, segmenter: Segmenter, on_tile: OnTile
    ) -> None:
        """Do what `pipeline.write_parts` does, with the cluster's workers.

        Raises:
            IICError: a worker failed; the tasks of the others are dropped, parts that are done stay.
        """
        from distributed import as_completed

        if segmenter.model.engine is not None:
            raise UsageError(
                f"{segmenter.model.path} is an engine for one kind of GPU; give the workers the .onnx file."
            )
        neighbours = self._hosts()
        groups = _groups(parts, sum(neighbours.values()))
        write_atomically(folder.path / MODEL, segmenter.model.content)
        assignment = Assignment(
            job=replace(job, source=replace(job.source, path=_absolute(job.source.path))),
            folder=folder.path.resolve(),
            layers=folder.layers,
            ticket=folder.ticket(),
            opening=Opening.of(segmenter, self._threads),
            neighbours=neighbours,
            cache=rasterio.env.getenv().get("GDAL_CACHEMAX") if rasterio.env.hasenv() else None,
        )
        _LOG.info("%d parts for %d workers", len(parts), sum(neighbours.values()))
        futures = [self._client.submit(make_parts, assignment, group, pure=False) for group in groups]
        group_of = dict(zip((future.key for future in futures), groups, strict=True))
        try:
            for future in as_completed(futures):
                for part, held in zip(group_of[future.key], _result(future), strict=True):
                    for tile, held_data in zip(part.tiles, held, strict=True):
                        on_tile(tile, held_data)
        finally:
            self._client.cancel(futures, force=True)

    def _hosts(self) -> Counter[str]:
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        if not workers:
            raise DeviceError("The scheduler has no workers; start some with: dask worker ADDRESS.")
        return Counter(worker["host"] for worker in workers)


@contextmanager
def connected(
    workers: int | None = None, scheduler: "str | Cluster | None" = None, threads: int | None = None
) -> Iterator[Cluster | None]:
    """A cluster of `workers` processes started here, or that of a scheduler; None if neither is asked for."""
    if workers is not None and scheduler is not None:
        raise UsageError("--workers starts a cluster and --scheduler uses one that runs; give one of them.")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers must be at least 1, not {workers}.")
    if isinstance(scheduler, Cluster) or (workers, scheduler) == (None, None):
        yield scheduler if isinstance(scheduler, Cluster) else None
        return
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise MissingPackageError(
            "--workers and --scheduler need dask.distributed: pip install 'iic-edge[dask]'."
        ) from error
    if workers is not None:
        # Tiles bound the memory of a worker; Dask's own limit is for tasks that hold their results.
        settings = {"threads_per_worker": 1, "memory_limit": None, "dashboard_address": "127.0.0.1:0"}
        with LocalCluster(n_workers=workers, **settings) as local, Client(local) as client:
            yield Cluster(client, threads)
        return
    try:
        client = Client(scheduler, timeout=10)
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"There is no Dask scheduler at {scheduler} ({error}); start one with: dask scheduler."
        ) from error
    with client:
        yield Cluster(client, threads)


def make_parts(assignment: Assignment, parts: Sequence[Part]) -> list[list[bool]]:
    """Make parts in a worker; tell for each tile of each part whether it held data.

    Parts that are there already, from a worker whose word was lost, are not made again.
    """
    try:
        return _make_parts(assignment, parts)
    except IICError as error:
        failure = error
    # GDAL's own errors behind it cannot be sent; without them the caller gets this one as it is.
    failure.__cause__ = failure.__context__ = None
    raise failure


def _make_parts(assignment: Assignment, parts: Sequence[Part]) -> list[list[bool]]:
    if assignment.version != __version__:
        raise DeviceError(
            f"A worker has iic-edge {__version__}, the caller {assignment.version}; install the same everywhere."
        )
    job, cache = assignment.job, assignment.cache
    folder = PartFolder(assignment.folder, assignment.layers, assignment.ticket)
    folder.check_ticket()
    held: dict[int, list[bool]] = {part.index: [] for part in parts}
    missing = [part for part in parts if not folder.done(part.index)]
    tile_of = {tile.core: part.index for part in missing for tile in part.tiles}

    def on_tile(tile: Tile, held_data: bool) -> None:
        held[tile_of[tile.core]].append(held_data)

    with _running, rasterio.Env(**({} if cache is None else {"GDAL_CACHEMAX": cache})):
        write_parts(job, missing, folder, _segmenter(assignment), on_tile)
    for part in parts:
        if part not in missing:
            full = folder.file(folder.layers[0], part.index).stat().st_size > 0
            held[part.index] = [full] * len(part.tiles)
    return [held[part.index] for part in parts]


def _segmenter(assignment: Assignment) -> Segmenter:
    """The model, opened once in this process, on this worker's share of the cores."""
    opening = assignment.opening
    if opening.threads is None:
        opening = replace(opening, threads=max(1, cores() // _neighbours(assignment.neighbours)))
    digest = assignment.job.model_digest

    def read() -> ModelFile:
        model = ModelFile.read(assignment.folder / MODEL)
        if sha256(model.content).hexdigest() != digest:
            raise ModelError(f"{model.path} is not the model of this run; start it again.")
        return model

    segmenter = opened(digest, opening, read)
    if segmenter.provider != assignment.job.provider:
        raise DeviceError(
            f"A worker computes with {segmenter.provider}, the caller with {assignment.job.provider}; "
            "choose a --device that all of them have."
        )
    return segmenter


def _neighbours(workers: Mapping[str, int]) -> int:
    from distributed import get_worker

    return workers.get(get_worker().ip, max(workers.values()))


def _groups(parts: Sequence[Part], workers: int) -> list[Sequence[Part]]:
    size = min(MOST_PARTS, max(1, len(parts) // (workers * TASKS_A_WORKER)))
    return [parts[start : start + size] for start in range(0, len(parts), size)]


def _absolute(path: str) -> str:
    return str(Path(path).resolve()) if Path(path).exists() else path


def _result(future: Any) -> list[list[bool]]:
    from distributed import KilledWorker

    try:
        result: list[list[bool]] = future.result()
        return result
    except KilledWorker as error:
        raise DeviceError(
            f"Several workers died of the same parts ({error.last_worker.address} was the last); look at their logs, "
            "and give --max-memory if they had too little memory."
        ) from error
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"A worker has no module {error.name}; install the same iic-edge wherever workers run."
        ) from error
