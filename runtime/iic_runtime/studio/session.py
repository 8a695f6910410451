"""A session: a scene, the clicks on it, the fit to them, and the finished map."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, RLock
from typing import IO, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import MAX_CLASSES, MapClass, check_class_name, rgb, suggest_colour
from iic_geotools.errors import IICError, OutputError, UsageError
from iic_geotools.files import check_apart, open_lock
from iic_geotools.geobox import GeoBox
from iic_geotools.packages import require_vector
from iic_geotools.products.areas import ClassAreas
from iic_geotools.products.assessment.report import Assessment
from iic_geotools.scene.labels import class_text
from iic_geotools.tiling import Rect
from iic_geotools.work import OnProgress, silent
from iic_runtime.naming.name import NamedModel, name_model
from iic_runtime.naming.suggestions import scene_files
from iic_runtime.naming.teacher import Clusters, Lesson, ReadingOptions, Teacher
from iic_runtime.raster.segment import Summary, segment_raster
from iic_runtime.studio.clicks import Click, Sample, SampleFile, read_clicks_file, write_clicks
from iic_runtime.studio.layers import BundledLayer, FeatureTiles, FileLayer
from iic_runtime.studio.tiles import TILE, Imagery, TileAddress, find_typical, find_unsure

PathLike = str | os.PathLike[str]
SUFFIX = ".studio"
STROKE = 12
"""Pixels between the clicks that a stroke of the pen becomes."""
MOST_STROKE = 10_000
"""Clicks that a stroke may become."""
CLUSTER_TILES, TYPICAL = 9, 3
"""Tiles spread over the scene in which places typical of a cluster are looked for, and number of places."""
Labels = NDArray[np.uint8]
Point = tuple[float, float]


@dataclass(frozen=True)
class Files:
    """The files of a session, all in one folder.

    Attributes:
        folder: The folder.
    """

    folder: Path

    @property
    def clicks(self) -> Path:
        """The clicks, written as they come."""
        return self.folder / "clicks.gpkg"

    @property
    def model(self) -> Path:
        """The model fitted to the clicks."""
        return self.folder / "model.onnx"

    @property
    def map(self) -> Path:
        """The map of the whole scene."""
        return self.folder / "map.tif"

    @property
    def confidence(self) -> Path:
        """Its confidence."""
        return self.folder / "confidence.tif"

    @property
    def polygons(self) -> Path:
        """Its polygons."""
        return self.folder / "polygons.gpkg"

    @property
    def areas(self) -> Path:
        """The areas of its classes."""
        return self.folder / "areas.csv"

    @property
    def samples(self) -> Path:
        """Random places of the map, with the classes that people gave them."""
        return self.folder / "samples.gpkg"

    @property
    def report(self) -> Path:
        """The accuracy assessment by these places."""
        return self.folder / "assessment.html"


@dataclass(frozen=True)
class Mapped:
    """A finished map.

    Attributes:
        model: The model that was fitted to the clicks.
        summary: What the run did.
        areas: How much ground each class covers.
    """

    model: NamedModel
    summary: Summary
    areas: ClassAreas


@dataclass(frozen=True)
class Fitted:
    """A fit to the clicks.

    Attributes:
        number: Number of fits up to this one.
        version: The version of the session that it was fitted to.
        full: True if it is what `iic-model name` fits.
        lesson: What was fitted; None if the clicks are of fewer than two classes.
    """

    number: int = 0
    version: int = -1
    full: bool = False
    lesson: Lesson | None = None


@dataclass(frozen=True)
class Cluster:
    """A cluster of the scene, found without labels.

    Attributes:
        share: Share of the scene that it takes, by a sample of it.
        points: x and y of places that are typical of it.
    """

    share: float
    points: tuple[Point, ...]


@dataclass(frozen=True)
class _Change:
    """What an action took away and added, so that it can be undone."""

    removed: tuple[Click, ...]
    added: tuple[Click, ...]


class Session:
    """A scene that is taught with clicks. Safe to use from several threads.

    Every click is on disk when `add` returns; a session that is opened again continues where it was.

    Args:
        scene: The scene, anything that GDAL opens.
        folder: Where clicks, model and map are kept; by default the scene's name with the suffix .studio, next to it.
        model: A model whose features are used; by default as in `name_model`.
        options: How the scene is read, as in `segment_raster`.

    Raises:
        IICError: The scene cannot be read, or the folder cannot be written to or is in use.

    Example:
        >>> with Session("scene.tif") as session:
        ...     session.add("water", [(412_300.0, 5_321_100.0)])
        ...     session.add("trees", [(412_950.0, 5_320_400.0)])
        ...     labels, confidence = session.view(Rect(0, 0, 256, 256))
        ...     session.save()
    """

    def __init__(
        self,
        scene: PathLike,
        folder: PathLike | None = None,
        *,
        model: PathLike | None = None,
        **options: Unpack[ReadingOptions],
    ) -> None:
        require_vector("Teaching with clicks")
        self.scene = os.fspath(scene)
        self.files = Files(_choose_folder(self.scene, folder))
        self.teacher = Teacher.open(scene, model, **options)
        self._model, self._options = model, options
        check_apart([self.files.clicks, self.files.map], scene_files(self.teacher.info))
        self._claim = _claim(self.files.folder)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self.imagery = Imagery(self.teacher.info, self.teacher.reading, self.teacher.file.card)
        self._features = FeatureTiles(self.teacher)
        self.bundled: BundledLayer | None = None
        self.unmapped = ""  # why the bundled models do not suit the scene
        try:
            self.bundled = BundledLayer.open(self.teacher.info, self._options)
        except IICError as error:
            self.unmapped = str(error)
        self.finished = FileLayer(self.files.map, self.files.confidence)
        self.samples = SampleFile(self.files.samples, self.files.map)
        self._lock, self._fitting = RLock(), Lock()
        self._clicks: list[Click] = []
        self._classes: list[MapClass] = []
        self._done: list[_Change] = []
        self._undone: list[_Change] = []
        self.version = 0
        self.unsaved: str | None = None
        self.fitted = Fitted()
        self.clusters: tuple[Cluster, ...] = ()
        self._clusters: Clusters | None = None
        self._load()
        self._mapped_version = self.version if _is_newer(self.files.model, self.files.clicks) else -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process open the folder."""
        self._claim.close()

    def _load(self) -> None:
        if self.files.clicks.exists():
            self._clicks, self._classes = read_clicks_file(self.files.clicks, self.grid)
            steps: dict[int, list[Click]] = {}
            for click in self._clicks:
                steps.setdefault(click.step, []).append(click)
            self._done = [_Change((), tuple(steps[step])) for step in sorted(steps)]

    # Places

    @property
    def grid(self) -> GeoBox:
        """The grid of views: the scene's own, or a coarser one that the model takes."""
        return self.teacher.grid

    def pixel(self, x: float, y: float) -> tuple[int, int]:
        """Return row and column of a place in the scene's CRS."""
        if not self.grid.contains(x, y):
            raise UsageError("That place lies outside the scene; click on the scene.")
        column, row = ~self.grid.transform @ (x, y)
        return int(row), int(column)

    def _centre(self, x: float, y: float) -> Point:
        """Return the centre of the pixel that a place lies in."""
        row, column = self.pixel(x, y)
        x, y = self.grid.transform @ (column + 0.5, row + 0.5)
        return x, y

    def _check_data(self, points: Sequence[Point]) -> None:
        with self.teacher.reading.open() as scene:
            for x, y in points:
                row, column = self.pixel(x, y)
                valid = scene.read(Rect(column, row, 1, 1)).valid
                if valid is not None and not valid.all():
                    raise UsageError("The scene has no data there; click where it has.")

    # Classes and clicks

    @property
    def classes(self) -> tuple[MapClass, ...]:
        """The classes, in the order in which they were added."""
        with self._lock:
            return tuple(self._classes)

    @property
    def clicks(self) -> tuple[Click, ...]:
        """The clicks, in the order in which they were added."""
        with self._lock:
            return tuple(self._clicks)

    def add_class(self, name: str, colour: str | None = None) -> MapClass:
        """Add a class; one that exists stays as it is.

        Args:
            colour: Its colour, "#rrggbb"; by default one that goes with the name.
        """
        name = class_text(name)
        check_class_name(name)
        with self._lock:
            known = {entry.name: entry for entry in self._classes}
            if name in known:
                return known[name]
            if len(known) == MAX_CLASSES:
                raise UsageError(f"A map holds at most {MAX_CLASSES} classes.")
            taken = [entry.colour for entry in self._classes]
            entry = MapClass(name, colour or suggest_colour(name, taken))
            self._classes.append(entry)
            self._changed()
            return entry

    def change_class(self, name: str, *, new_name: str | None = None, colour: str | None = None) -> None:
        """Change the name or the colour of a class."""
        with self._lock:
            index = self._class_index(name)
            entry = self._classes[index]
            if new_name is not None and class_text(new_name) != name:
                new_name = class_text(new_name)
                check_class_name(new_name)
                if any(other.name == new_name for other in self._classes):
                    raise UsageError(f"There is a class {new_name} already.")
                self._clicks = [_renamed(click, name, new_name) for click in self._clicks]
                self._done = [_renamed_change(change, name, new_name) for change in self._done]
                self._undone = [_renamed_change(change, name, new_name) for change in self._undone]
                entry = replace(entry, name=new_name)
            if colour is not None:
                rgb(colour)
                entry = replace(entry, colour=colour)
            self._classes[index] = entry
            self._changed()

    def remove_class(self, name: str) -> None:
        """Remove a class and its clicks; `undo` brings the clicks back, and the class with them.

        Raises:
            UsageError: There is no such class.
        """
        with self._lock:
            index = self._class_index(name)
            self._change(_Change(tuple(click for click in self._clicks if click.name == name), ()))
            del self._classes[index]
            self._changed()

    def _class_index(self, name: str) -> int:
        for index, entry in enumerate(self._classes):
            if entry.name == name:
                return index
        raise UsageError(f"There is no class {name}.")

    def add(self, name: str, points: Sequence[Point]) -> tuple[Click, ...]:
        """Add clicks of one class: one action for `undo`.

        A click on a pixel that has another class replaces that one. The clicks are on disk when this returns, unless
        the disk refuses them: then `unsaved` says why, they are kept in memory, and `flush` tries again.

        Args:
            name: Name of the class, which is added if it is new.
            points: x and y of each click, in the scene's CRS.

        Raises:
            UsageError: The name cannot be used, or a place lies outside the scene or where it has no data.
            SceneError: The scene cannot be read.
        """
        centres = list(dict.fromkeys(self._centre(x, y) for x, y in points))
        self._check_data(centres)
        with self._lock:
            name = self.add_class(name).name
            here = {(click.x, click.y): click for click in self._clicks}
            fresh = [point for point in centres if point not in here or here[point].name != name]
            number = max((click.number for click in self._clicks), default=0)
            step = max((click.step for click in self._clicks), default=0) + 1
            added = tuple(
                Click(number + index, name, x, y, step) for index, (x, y) in enumerate(fresh, start=1)
            )
            if added:
                self._change(_Change(tuple(here[point] for point in fresh if point in here), added))
                self._changed()
            return added

    def add_stroke(self, name: str, points: Sequence[Point]) -> tuple[Click, ...]:
        """Add clicks along a line, every 12 pixels, 10,000 at most; the arguments are those of `add`."""
        for x, y in points:
            self.pixel(x, y)
        return self.add(name, _along(points, STROKE * _pixel_length(self.grid)))

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove clicks by their numbers; numbers that do not exist are ignored."""
        with self._lock:
            removed = tuple(click for click in self._clicks if click.number in set(numbers))
            if removed:
                self._change(_Change(removed, ()))
                self._changed()

    def undo(self) -> bool:
        """Undo the last action on clicks; return whether there was one."""
        return self._move(self._done, self._undone, lambda change: _Change(change.added, change.removed))

    def redo(self) -> bool:
        """Do again what was undone; return whether there was something."""
        return self._move(self._undone, self._done, lambda change: change)

    def _move(self, source: list[_Change], target: list[_Change], turn: Callable[[_Change], _Change]) -> bool:
        with self._lock:
            if not source:
                return False
            change = source.pop()
            self._apply(turn(change))
            target.append(change)
            self._changed()
            return True

    def _change(self, change: _Change) -> None:
        self._apply(change)
        self._done.append(change)
        self._undone.clear()

    def _apply(self, change: _Change) -> None:
        gone = {click.number for click in change.removed}
        self._clicks = [click for click in self._clicks if click.number not in gone] + list(change.added)
        self._clicks.sort(key=lambda click: click.number)
        known = {entry.name for entry in self._classes}
        for name in dict.fromkeys(click.name for click in self._clicks):
            if name not in known:
                self._classes.append(
                    MapClass(name, suggest_colour(name, [entry.colour for entry in self._classes]))
                )

    def _changed(self) -> None:
        self.version += 1
        self.flush()

    def flush(self) -> None:
        """Write the clicks to disk; `unsaved` says why if that fails, and is None otherwise."""
        with self._lock:
            try:
                write_clicks(self.files.clicks, self._clicks, self._classes, self.teacher.info.grid.crs)
                self.unsaved = None
            except OutputError as error:
                self.unsaved = (
                    f"{error} The clicks are kept here as long as the studio runs; make room, or undo that."
                )

    # What the clicks teach

    def fit(self, full: bool = False) -> Lesson | None:
        """Fit a head to the clicks, unless it is fitted already; None where they are of fewer than two classes.

        Args:
            full: Whether to fit what `iic-model name` fits, with cross-validation: a second or more. Without it, a
                linear head that takes milliseconds.

        Raises:
            SceneError: The scene cannot be read.
        """
        with self._fitting:
            with self._lock:
                version = self.version
                names, labels, places = self._training()
            last = self.fitted
            if last.version == version and (last.full or not full):
                return last.lesson
            lesson = self.teacher.fit(names, labels, places, full=full) if len(names) > 1 else None
            self.fitted = Fitted(last.number + 1, version, full or lesson is None, lesson)
            return lesson

    @property
    def lesson(self) -> Lesson | None:
        """What was fitted last, perhaps to fewer clicks; None before `fit`."""
        return self.fitted.lesson

    @property
    def is_settled(self) -> bool:
        """True if the last fit is a full one, to all clicks."""
        return self.fitted.version == self.version and self.fitted.full

    def _training(self) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        """Return names, labels and places in the order in which `iic-model name` reads them."""
        names = sorted({click.name for click in self._clicks})
        rows = sorted((names.index(click.name), *self.pixel(click.x, click.y)) for click in self._clicks)
        table = np.array(rows, np.int64).reshape(-1, 3)
        return names, table[:, 0], table[:, 1:]

    def view(self, rect: Rect) -> tuple[Labels, Labels]:
        """Return labels and confidence of a rectangle of `grid`, by the fit to the clicks.

        Labels are indices into `fit().classes`, 255 where there is no data; confidence is 255 x the probability.

        Raises:
            UsageError: The clicks are of fewer than two classes.
            SceneError: The scene cannot be read.
        """
        lesson = self.fit()
        if lesson is None:
            raise UsageError("Click at least two classes first.")
        whole = Rect(0, 0, self.grid.width, self.grid.height)
        return lesson.label(self.teacher.look(rect.intersection(whole)))

    def tile(self, address: TileAddress, fitted: Fitted | None = None) -> tuple[Labels, Labels] | None:
        """Return labels and confidence of a tile of a view; its features are kept for the next fit.

        Args:
            fitted: The fit; by default the last one.
        """
        lesson = (fitted or self.fitted).lesson
        return None if lesson is None else self._features.label(address, lesson)

    def suggest(self, tiles: Sequence[TileAddress], count: int = 5) -> list[Point]:
        """Return the least certain places of a view, to click next."""
        lesson = self.lesson
        if lesson is None or not tiles:
            return []
        clicked = [self.pixel(click.x, click.y) for click in self.clicks]
        places = find_unsure(
            {address: self._features.label(address, lesson) for address in tiles}, clicked, count
        )
        return [self.grid.transform @ (column + 0.5, row + 0.5) for row, column in places]

    def find_clusters(self, count: int = 8) -> tuple[Cluster, ...]:
        """Find clusters of the scene without labels, the largest first, to be named.

        Raises:
            IICError: The scene cannot be read or holds too little data, or the model has no features to find them in.
        """
        clusters = self.teacher.clusters(count)
        grid = self.grid
        columns, rows = (-(-length // TILE) for length in (grid.width, grid.height))
        numbers = np.linspace(0, columns * rows - 1, min(CLUSTER_TILES, columns * rows)).round().astype(int)
        addresses = [TileAddress(0, *map(int, divmod(number, columns)[::-1])) for number in numbers.tolist()]
        tiles = {address: self._features.label(address, clusters) for address in addresses}
        found = []
        for label, share in enumerate(clusters.shares):
            places = find_typical(tiles, label, TYPICAL)
            points = (grid.transform @ (column + 0.5, row + 0.5) for row, column in places)
            found.append(Cluster(share, tuple((x, y) for x, y in points)))
        with self._lock:
            self._clusters, self.clusters = clusters, tuple(found)
        return self.clusters

    def name_cluster(self, number: int, name: str) -> tuple[Click, ...]:
        """Give the typical places of a cluster a class: one action for `undo`.

        Args:
            number: The cluster, counted from 0.
        """
        if not 0 <= number < len(self.clusters):
            raise UsageError(f"There is no cluster {number}.")
        if not self.clusters[number].points:
            raise UsageError("No place is typical of this cluster; click it where you see it.")
        return self.add(name, self.clusters[number].points)

    def cluster_tile(self, address: TileAddress) -> tuple[Labels, Labels] | None:
        """Return clusters and confidence of a tile; None before `find_clusters`."""
        clusters = self._clusters
        return None if clusters is None else self._features.label(address, clusters)

    # The map

    def save(self, progress: OnProgress = silent) -> Mapped:
        """Map the whole scene with a model fitted to all clicks; save map, confidence, polygons, areas and model.

        The files are those of `iic-model name` with the saved clicks and `iic-segment-raster` with that model, byte
        for byte.

        Raises:
            IICError: The clicks are of fewer than two classes or not saved, or something cannot be read or written.
        """
        with self._lock:
            if len({click.name for click in self._clicks}) < 2:
                raise UsageError("Click at least two classes first: a map of one needs no model.")
            if self.unsaved is not None:
                self.flush()
            if self.unsaved is not None:
                raise OutputError(self.unsaved)
            version = self.version
        files = self.files
        named = name_model(
            self._model,
            files.clicks,
            self.scene,
            files.model,
            overwrite=True,
            progress=progress,
            **self._options,
        )
        summary = segment_raster(
            self.scene,
            files.map,
            files.model,
            confidence=files.confidence,
            polygons=files.polygons,
            stats=files.areas,
            overwrite=True,
            progress=progress,
            **self._options,
        )
        self.finished.refresh()
        self._mapped_version = version
        return Mapped(named, summary, self.finished.areas)

    @property
    def is_mapped(self) -> bool:
        """True if there is a finished map, perhaps by earlier clicks."""
        return self.files.map.exists()

    @property
    def is_map_current(self) -> bool:
        """True if the finished map was made with the present clicks."""
        return self.is_mapped and self._mapped_version == self.version

    # How good it is

    def draw(self, count: int, seed: int = 0) -> tuple[Sample, ...]:
        """Draw random places of the finished map, to be judged without seeing it.

        Raises:
            IICError: There is no map yet, or it cannot be sampled.
        """
        if not self.is_mapped:
            raise UsageError("Map the whole scene first: places are drawn from the finished map.")
        return self.samples.draw(count, seed)

    def answer(self, number: int, name: str | None) -> None:
        """Record the class at a drawn place, None if unknown; written to disk at once.

        Raises:
            IICError: There is no such place or class, or the answer cannot be written.
        """
        self.samples.answer(number, name)

    def assess(self) -> Assessment:
        """Estimate accuracy and areas, with 95 % confidence intervals, from the answers given so far.

        Raises:
            IICError: There are too few answers.
        """
        return self.samples.assess(self.files.report)


def _choose_folder(scene: str, folder: PathLike | None) -> Path:
    """Return the folder of a session, which is made if it does not exist."""
    if folder is None:
        if "://" in scene or scene.startswith(("/vsi", "<")):
            raise UsageError("Give a `folder` for the clicks: this scene is not a local file.")
        folder = Path(scene).with_suffix(SUFFIX)
    path = Path(folder)
    if not Path(scene).exists() and "://" not in scene and not scene.startswith(("/vsi", "<")):
        return path  # the scene's own error says more
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"The folder {path} cannot be made ({error.strerror}); give another `folder` for the clicks."
        ) from error
    return path


def _claim(folder: Path) -> IO[bytes]:
    """Lock a folder against other processes, until the file that is returned is closed."""
    try:
        return open_lock(folder / ".lock")
    except BlockingIOError as error:
        raise OutputError(
            f"Another studio has {folder} open; close it, or give another `folder` for the clicks."
        ) from error
    except OSError as error:
        raise OutputError(
            f"The folder {folder} cannot be written to ({error.strerror}); give another `folder`."
        ) from error


def _is_newer(file: Path, other: Path) -> bool:
    return file.exists() and other.exists() and file.stat().st_mtime_ns >= other.stat().st_mtime_ns


def _renamed(click: Click, name: str, new_name: str) -> Click:
    return replace(click, name=new_name) if click.name == name else click


def _renamed_change(change: _Change, name: str, new_name: str) -> _Change:
    removed, added = (
        tuple(_renamed(click, name, new_name) for click in clicks)
        for clicks in (change.removed, change.added)
    )
    return _Change(removed, added)


def _pixel_length(grid: GeoBox) -> float:
    """Return the side of a pixel in units of the CRS."""
    return float(abs(grid.transform.determinant) ** 0.5)


def _along(points: Sequence[Point], distance: float) -> list[Point]:
    """Return points on a line at equal distances, its first point among them."""
    line = np.array(points, np.float64).reshape(-1, 2)
    lengths = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
    if lengths[-1] > MOST_STROKE * distance:
        raise UsageError(f"That stroke is longer than {MOST_STROKE:,} clicks; draw a shorter one.")
    marks = np.arange(0.0, lengths[-1] + 1e-9, distance)
    xs, ys = (np.interp(marks, lengths, values) for values in line.T)
    return list(zip(xs.tolist(), ys.tolist(), strict=True))
