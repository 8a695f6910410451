"""A session behind a page: what it does in the background, and its state as the page shows it."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Event, Thread
from typing import Any

from iic_geotools.classmap.classes import MapClass, distinct_colours
from iic_geotools.errors import IICError, UnexpectedError, UsageError
from iic_geotools.products.assessment.accuracy import Estimate
from iic_geotools.products.assessment.report import Assessment
from iic_geotools.work import OnProgress, Progress
from iic_runtime.studio.layers import MOST_LEVEL
from iic_runtime.studio.session import Point, Session
from iic_runtime.studio.tiles import TILE, TileAddress, top_level

_LOG = logging.getLogger(__name__)
IDLE = 0.8
"""Seconds without a click after which the full fit begins."""
RETRY = 3.0
"""Seconds after which clicks that could not be written are tried again."""
_TEXTS = ("name", "new_name", "colour")
"""Arguments of actions that are text."""
Json = dict[str, Any]


class _StoppedError(Exception):
    """The user has stopped the work."""


class LiveSession:
    """A session that fits and maps in the background."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.changes = 0
        self._condition = Condition()
        self._touched = time.monotonic()
        self._failed_version = -1
        self._ended, self._stop = False, Event()
        self._clusterings = 0
        self._job: Json | None = None
        self._mapper: Thread | None = None
        self._message = ""
        self._assessment: Assessment | None = None
        self._worker = Thread(target=self._work, name="studio", daemon=True)
        self._worker.start()

    def close(self) -> None:
        """End the work in the background; what is mapped so far is kept for the next time."""
        with self._condition:
            self._ended = True
            self._condition.notify_all()
        self._stop.set()
        for thread in (self._worker, self._mapper):
            if thread is not None:
                thread.join()
        self.session.close()

    def _touch(self, message: str | None = "") -> None:
        """Let pages refresh, with a message; None keeps the last one, which a page may not have seen."""
        with self._condition:
            self.changes += 1
            self._message = self._message if message is None else message
            self._touched = time.monotonic()
            self._condition.notify_all()

    def _work(self) -> None:
        """Fit in full while no clicks come, and retry what could not be written."""
        while True:
            with self._condition:
                self._condition.wait(RETRY if self.session.unsaved or self._is_settled else IDLE / 4)
                if self._ended:
                    return
                idle = time.monotonic() - self._touched > IDLE
            try:
                if self.session.unsaved:
                    self.session.flush()
                    self._touch(None)
                elif idle and not self._is_settled:
                    self.session.fit(full=True)
                    self._touch(None)
            except Exception as error:
                self._failed_version = self.session.version
                self._touch(sentence(error))

    @property
    def _is_settled(self) -> bool:
        return self.session.is_settled or self._failed_version == self.session.version

    # Actions of the page

    def act(self, action: str, arguments: Json) -> Json:
        """Do what a page asks for, and return the new state.

        Raises:
            IICError: It cannot be done.
        """
        actions: dict[str, Callable[..., Any]] = {
            "add": self._add,
            "remove": lambda numbers: self.session.remove([int(number) for number in numbers]),
            "undo": self.session.undo,
            "redo": self.session.redo,
            "add_class": self.session.add_class,
            "change_class": self.session.change_class,
            "remove_class": self.session.remove_class,
            "find_clusters": self._find_clusters,
            "name_cluster": self.session.name_cluster,
            "map": self._start_mapping,
            "stop": self._stop.set,
            "draw": self._draw,
            "answer": self._answer,
            "assess": self._assess,
        }
        if action not in actions:
            raise UsageError(f"The studio cannot {action}.")
        with _asked_for(action):
            if not all(isinstance(arguments.get(key, ""), str | None) for key in _TEXTS):
                raise TypeError
            actions[action](**arguments)
        if action in ("add", "name_cluster", "remove", "undo", "redo", "remove_class", "change_class"):
            self.session.fit()
        self._touch()
        return self.state()

    def _add(self, name: str, places: Sequence[Point], stroke: bool = False) -> None:
        transform = self.session.teacher.info.grid.transform
        points = [transform @ (float(column), float(row)) for column, row in places]
        (self.session.add_stroke if stroke else self.session.add)(name, points)

    def _find_clusters(self, count: int = 8) -> None:
        self.session.find_clusters(int(count))
        self._clusterings += 1

    def suggest(self, tiles: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
        """Return columns and rows, in pixels of the scene, of the places to click next in a view."""
        with _asked_for("suggest"):
            addresses = [TileAddress(*map(int, tile)) for tile in tiles]
        return [self._place(*point) for point in self.session.suggest(addresses)]

    def _place(self, x: float, y: float) -> tuple[float, float]:
        column, row = ~self.session.teacher.info.grid.transform @ (x, y)
        return column, row

    def _draw(self, count: int) -> None:
        self._assessment = None
        self.session.draw(int(count), seed=time.time_ns() % 2**32)

    def _answer(self, number: int, name: str | None) -> None:
        self._assessment = None
        self.session.answer(int(number), name)

    def _assess(self) -> None:
        self._assessment = self.session.assess()

    def _start_mapping(self) -> None:
        with self._condition:
            if self._job is not None:
                raise UsageError("The scene is being mapped already.")
            self._stop.clear()
            self._job = {"stage": "fit", "done": 0, "total": 1}
        self._mapper = Thread(target=self._map, name="studio-map", daemon=True)
        self._mapper.start()

    def _map(self) -> None:
        try:
            self.session.save(self._on_progress())
            message = "The map is finished."
        except _StoppedError:
            message = "Stopped. What is mapped so far is used if you map again with the same clicks."
        except Exception as error:
            message = sentence(error)
        self._job = None
        self._touch(message)

    def _on_progress(self) -> OnProgress:
        def report(progress: Progress) -> None:
            if self._stop.is_set():
                raise _StoppedError
            self._job = {"stage": progress.stage, "done": progress.done, "total": progress.total}
            self.changes += 1

        return report

    # What the page shows

    def scene(self) -> Json:
        """Return what does not change."""
        session = self.session
        grid, info = session.grid, session.teacher.info
        return {
            "title": info.title.rpartition("/")[2],
            "width": info.grid.width,
            "height": info.grid.height,
            "metres": (info.grid.pixel_size or (None,))[0],
            "composites": list(session.imagery.composites),
            "tile": TILE,
            "top": top_level(info.grid),
            "folder": str(session.files.folder),
            "taught": {"width": grid.width, "height": grid.height, "most_level": MOST_LEVEL},
            "unmapped": session.unmapped,
            "bundled": None
            if session.bundled is None
            else {
                "width": session.bundled.grid.width,
                "height": session.bundled.grid.height,
                "most_level": MOST_LEVEL + 1,
                "has_novelty": session.bundled.has_novelty,
                "classes": _classes(session.bundled.classes),
            },
        }

    def state(self) -> Json:
        """Return everything that changes."""
        session = self.session
        fitted = session.fitted
        lesson = fitted.lesson
        judgement = None if lesson is None else lesson.judgement
        return {
            "changes": self.changes,
            "message": self._message,
            "unsaved": session.unsaved,
            "fit": fitted.number,
            "settled": session.is_settled,
            "classes": self._class_states(),
            "clicks": [
                {"number": click.number, "name": click.name, "place": self._place(click.x, click.y)}
                for click in session.clicks
            ],
            "taught": [] if lesson is None else list(lesson.classes),
            "accuracy": None if judgement is None else judgement.accuracy,
            "advice": [] if lesson is None else list(lesson.advice),
            "clusters": self._cluster_states(),
            "clusterings": self._clusterings,
            "job": self._job,
            "finished": self._finished(),
            "samples": self._samples(),
            "assessment": None if self._assessment is None else describe_assessment(self._assessment),
        }

    def _class_states(self) -> list[Json]:
        session = self.session
        counts: dict[str, int] = {}
        for click in session.clicks:
            counts[click.name] = counts.get(click.name, 0) + 1
        recognised: dict[str, tuple[int, int]] = {}
        lesson = session.lesson
        if lesson is not None and lesson.judgement is not None:
            for index, row in enumerate(lesson.judgement.confusion):
                recognised[lesson.classes[index]] = int(row[index]), int(row.sum())
        return [
            {
                "name": entry.name,
                "colour": entry.colour,
                "clicks": counts.get(entry.name, 0),
                "recognised": recognised.get(entry.name),
            }
            for entry in session.classes
        ]

    def _cluster_states(self) -> list[Json]:
        clusters = self.session.clusters
        return [
            {
                "colour": colour,
                "share": entry.share,
                "places": [self._place(*point) for point in entry.points],
            }
            for entry, colour in zip(clusters, distinct_colours(len(clusters)), strict=True)
        ]

    def _finished(self) -> Json | None:
        session = self.session
        if not session.is_mapped:
            return None
        try:
            classes, areas = session.finished.classes, session.finished.areas
        except IICError as error:
            _LOG.warning("%s", error)
            return None
        return {
            "changes": session.finished.changes,
            "current": session.is_map_current,
            "classes": _classes(classes),
            "areas": [
                {"name": row.name, "m2": row.m2, "pixels": row.pixels, "share": row.share}
                for row in areas.classes
            ],
            "files": [
                file.name
                for file in (
                    session.files.map,
                    session.files.polygons,
                    session.files.areas,
                    session.files.model,
                    session.files.clicks,
                )
                if file.exists()
            ],
        }

    def _samples(self) -> list[Json]:
        try:
            samples = self.session.samples.list()
        except IICError as error:
            _LOG.warning("%s", error)
            return []
        return [
            {"number": sample.number, "place": self._place(sample.x, sample.y), "name": sample.name}
            for sample in samples
        ]

    def tile(self, layer: str, address: TileAddress) -> tuple[int, bytes]:
        """Return labels and confidence of a tile, one byte each per pixel; none where there is nothing to show.

        A number says which version of the map they belong to: the count of fits, or of finished maps.

        Raises:
            IICError: There is no such layer or tile, or the scene cannot be read.
        """
        session = self.session
        if layer == "taught":
            fitted = session.fitted
            tile, stamp = session.tile(address, fitted), fitted.number
        elif layer == "bundled" and session.bundled is not None:
            tile, stamp = session.bundled.tile(address), 0
        elif layer == "novelty" and session.bundled is not None and session.bundled.has_novelty:
            tile, stamp = session.bundled.novelty_tile(address), 0
        elif layer == "clusters":
            tile, stamp = session.cluster_tile(address), self._clusterings
        elif layer == "finished" and session.is_mapped:
            stamp = session.finished.changes
            tile = session.finished.tile(address)
        else:
            raise UsageError(f"There is no map {layer}.")
        return stamp, b"" if tile is None else tile[0].tobytes() + tile[1].tobytes()


@contextmanager
def _asked_for(action: str) -> Iterator[None]:
    """Raise arguments of an action that no page of ours sends as a sentence."""
    try:
        yield
    except IICError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"The request for {action} has unknown or missing values.") from error


def sentence(error: BaseException) -> str:
    """Return an error as a sentence."""
    return str(error if isinstance(error, IICError) else UnexpectedError.of(error))


def _classes(classes: Sequence[MapClass]) -> list[Json]:
    return [{"name": entry.name, "colour": entry.colour} for entry in classes]


def _estimate(estimate: Estimate | None) -> Json | None:
    return None if estimate is None else {"value": estimate.value, "margin": estimate.margin}


def describe_assessment(assessment: Assessment) -> Json:
    """Return an assessment as the page shows it."""
    return {
        "overall": _estimate(assessment.overall),
        "samples": int(assessment.matrix.sum()),
        "classes": [
            {
                "name": entry.name,
                "users": _estimate(entry.users),
                "producers": _estimate(entry.producers),
                "area_ha": _estimate(entry.area_ha),
                "share": _estimate(entry.share),
            }
            for entry in assessment.classes
        ],
        "remarks": list(assessment.remarks),
    }
