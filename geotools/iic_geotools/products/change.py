"""Change between two maps: the function behind `iic-map change`."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.alignment import View, common_rect, view_on
from iic_geotools.classmap.class_map import Bytes, ClassMap, check_placed, open_map, values_by_name
from iic_geotools.classmap.classes import (
    MAX_CLASSES,
    MAX_NAME,
    NODATA,
    UNSURE_NAME,
    MapClass,
    class_colours,
    least_confidence,
    rgb,
    spread_colours,
)
from iic_geotools.classmap.map_writer import place_files, write_windows
from iic_geotools.classmap.sidecars import style_path
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.files import MAP_SUFFIXES, check_writable, scratch_folder
from iic_geotools.geobox import GeoBox
from iic_geotools.options import ChangeSettings, PictureSettings
from iic_geotools.products.areas import PixelAreas
from iic_geotools.products.transitions import TABLES, Transitions, transition_table
from iic_geotools.scene.info import describe, open_raster
from iic_geotools.settings import PathLike, takes
from iic_geotools.settings import describe as settings_of
from iic_geotools.tiling import Rect, TileGrid
from iic_geotools.work import OnProgress, Progress

_TILE = 1024
_LEFT_OUT = -1
# How far the colour of a class that stays goes to white, so that changes stand out.
_PALE = 0.7


@dataclass(frozen=True)
class Change:
    """A change map that was written.

    Attributes:
        map: The map.
        classes: Its classes: what stayed, in the order of the legend, then what changed, the largest first.
        transitions: The areas of all changes.
    """

    map: Path
    classes: tuple[MapClass, ...]
    transitions: Transitions

    def sentence(self) -> str:
        """Say the result in one line."""
        total = float(self.transitions.hectares.sum())
        share = self.transitions.changed_share
        return f"{self.map}: {100 * share:.2f} % of {total:,.1f} ha have another class than before"


@dataclass(frozen=True)
class ChangeArguments(ChangeSettings):
    """Arguments of `change_map`."""

    before: PathLike
    after: PathLike
    out: PathLike


@takes(ChangeArguments)
def change_map(arguments: ChangeArguments) -> Change:
    """Compare two maps with the same classes: a map of the transitions, and the area of each.

    The maps may have different grids, extents and reference systems. They are compared where both lie, on the grid of
    the one with the smaller pixels; each pixel takes the class under its centre. Pixels without data in either map are
    left out.

    Args:
        after: The later map; its classes have the same names, in any order.
        out: The change map, .tif; its classes are the pairs that occur, such as "forest to town".

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    before, after, target = Path(arguments.before), Path(arguments.after), Path(arguments.out)
    files, progress = [Path(file) for file in arguments.tables], arguments.progress
    given = (arguments.before_confidence, arguments.after_confidence)
    confidences = [None if file is None else Path(file) for file in given]
    like = None if arguments.like is None else Path(arguments.like)
    probability = None if arguments.probability is None else Path(arguments.probability)
    inputs = [file for file in (before, after, *confidences, like, probability) if file is not None]
    _check_outputs(target, files, inputs, arguments)
    _check_confidence(arguments.min_confidence, confidences)
    if not 0 <= arguments.min_probability <= 1:
        raise UsageError(f"`min_probability` must be between 0 and 1, not {arguments.min_probability:g}.")
    with ExitStack() as stack:
        maps = [stack.enter_context(open_map(path)) for path in (before, after)]
        names = _legend(maps[0], maps[1], arguments.skip_unsure)
        grid = _choose_grid(maps, like)
        comparison = _Comparison(
            grid,
            [stack.enter_context(view_on(one.dataset, grid, len(one.classes), one.path)) for one in maps],
            [_indices(one, names) for one in maps],
            [
                None if file is None else stack.enter_context(_view_confidence(file, one, grid))
                for file, one in zip(confidences, maps, strict=True)
            ],
            least_confidence(arguments.min_confidence),
            None if probability is None else stack.enter_context(_view_probability(probability, grid)),
            least_confidence(arguments.min_probability),
        )
        transitions, present = _measure(comparison, names, progress)
        classes, lookup = _pair_classes(transitions, names, present, maps[0])
        folder = stack.enter_context(scratch_folder(target))
        moves = write_windows(
            target,
            folder,
            grid,
            _coded_windows(comparison, lookup, progress),
            classes=classes,
            tags={"IIC_CHANGE_BEFORE": before.name, "IIC_CHANGE_AFTER": after.name},
        )
        moves[:0] = _draw_pictures(arguments, comparison, maps[1], moves[-1][0], classes, folder)
        for number, file in enumerate(files):
            text = folder / f"table{number}{file.suffix}"
            text.write_text(transition_table(transitions, file.suffix), encoding="utf-8")
            moves.insert(0, (text, file))
        place_files(moves)
    return Change(target, classes, transitions)


def _check_outputs(
    out: Path, tables: Sequence[Path], inputs: Sequence[Path], settings: ChangeSettings
) -> None:
    outputs: list[tuple[Path, Sequence[str], str]] = [(out, MAP_SUFFIXES, "out")]
    outputs += [(file, TABLES, "tables") for file in tables]
    for entry in settings_of(PictureSettings):
        picture = getattr(settings, entry.name)
        if picture is not None:
            outputs.append((Path(picture), entry.about.writes, entry.name))
    check_writable(outputs, inputs, overwrite=settings.overwrite, sidecars=[style_path(out)])


def _draw_pictures(
    settings: ChangeSettings,
    comparison: "_Comparison",
    later: ClassMap,
    change_file: Path,
    classes: Sequence[MapClass],
    folder: Path,
) -> list[tuple[Path, Path]]:
    """Write the pictures that are asked for, with the later map in the scene's place, and where they belong."""
    if settings.preview is None and settings.web is None:
        return []
    # Imported here because few comparisons are drawn.
    from iic_geotools.products.preview import preview
    from iic_geotools.products.web.page import WebPage

    below = folder / "later"
    below.mkdir()
    windows = ((tile.core, comparison.views[1].read(tile.core)) for tile in comparison.windows())
    written = write_windows(
        below / "map.tif", below, comparison.grid, windows, classes=later.classes, tags={}
    )
    later_file, moves = written[-1][0], []
    if settings.preview is not None:
        moves.append((folder / "change.png", Path(settings.preview)))
        preview(later_file, change_file, moves[-1][0], classes, bidx=(1,), titles=("Later map", "Changes"))
    if settings.web is not None:
        moves.append((folder / "change.html", Path(settings.web)))
        title, note = Path(settings.web).stem, "Below the changes: the later map."
        page = WebPage(later_file, change_file, classes, bidx=(1,), title=title, note=note)
        page.write(moves[-1][0])
    return moves


def _check_confidence(min_confidence: float, confidences: Sequence[Path | None]) -> None:
    if not 0 <= min_confidence <= 1:
        raise UsageError(f"`min_confidence` must be between 0 and 1, not {min_confidence:g}.")
    if (min_confidence > 0) != any(file is not None for file in confidences):
        raise UsageError(
            "`min_confidence` needs `before_confidence` or `after_confidence`, and they need it: give both or neither."
        )


def _legend(before: ClassMap, after: ClassMap, skip_unsure: bool) -> list[str]:
    """The names of classes that are compared."""
    for one in (before, after):
        check_placed(one)
        values_by_name(one)
    legends = [{name for name in one.names if name != UNSURE_NAME} for one in (before, after)]
    if legends[0] != legends[1]:
        only = sorted(legends[0] ^ legends[1])[0]
        raise SceneError(
            f"The maps have different classes: {only} is in one of {before.path} and {after.path} only; give maps of "
            "one legend, e.g. after iic-model rename."
        )
    names = list(dict.fromkeys([*before.names, *after.names]))
    if skip_unsure and UNSURE_NAME not in names:
        raise UsageError(f"Neither map has a class {UNSURE_NAME}; leave out `skip_unsure`.")
    return [name for name in names if not (skip_unsure and name == UNSURE_NAME)]


def _indices(one: ClassMap, names: Sequence[str]) -> NDArray[np.int32]:
    """For each value of a map the number of its class in `names`; `_LEFT_OUT` for what is not compared."""
    table = np.full(NODATA + 1, _LEFT_OUT, np.int32)
    for value, name in enumerate(one.names):
        if name in names:
            table[value] = names.index(name)
    return table


def _choose_grid(maps: Sequence[ClassMap], like: Path | None) -> GeoBox:
    """The grid of comparison, cut to where both maps lie."""
    grids = [one.grid for one in maps]
    if like is not None:
        grid = describe(str(like)).grid
        if grid.crs is None:
            raise SceneError(
                f"{like} has no CRS, so its grid cannot be placed; give another raster as `like`."
            )
        rect = common_rect(grid, (grids[0], grids[1]))
    else:
        sizes = [one.pixel_side or np.inf for one in grids]
        # Rounding: two maps of one grid must not swap roles by the last digit.
        finer = int(sizes[1] < sizes[0] * (1 - 1e-9))
        grid = grids[finer]
        rect = common_rect(grid, (grids[1 - finer],))
    if rect.empty:
        raise SceneError(
            f"The maps {maps[0].path} and {maps[1].path} do not overlap; give maps of one place."
        )
    if grid.area_method == "none":
        raise SceneError(
            "Areas cannot be measured on the grid of comparison; give one in metres or degrees as `like`."
        )
    return grid.crop(rect)


@contextmanager
def _view_confidence(file: Path, one: ClassMap, grid: GeoBox) -> Iterator[View]:
    """View the confidence of a map on the grid of comparison."""
    with open_raster(str(file)) as dataset:
        same = dataset.shape == one.dataset.shape and not GeoBox.of(dataset).differences(one.grid)
        if dataset.count != 1 or dataset.dtypes[0] != "uint8" or not same:
            raise SceneError(
                f"{file} is not the confidence of {one.path}: it must have one band of uint8 on the same grid."
            )
        with view_on(dataset, grid, NODATA, file) as view:
            yield view


@contextmanager
def _view_probability(file: Path, grid: GeoBox) -> Iterator[View]:
    """View the probability of change on the grid of comparison."""
    with open_raster(str(file)) as dataset:
        if dataset.count != 1 or dataset.dtypes[0] != "uint8" or GeoBox.of(dataset).crs is None:
            raise SceneError(
                f"{file} is not a probability of change: it must have one band of uint8 and a CRS, as iic-scenes "
                "change writes it."
            )
        with view_on(dataset, grid, NODATA, file) as view:
            yield view


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Two maps on one grid, and the pixels that are compared."""

    grid: GeoBox
    views: Sequence[View]
    indices: Sequence[NDArray[np.int32]]
    confidences: Sequence[View | None]
    least: int
    probability: View | None
    least_probability: int

    def read(self, rect: Rect) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Numbers of the classes before and after, both `_LEFT_OUT` where one of them does not count."""
        before, after = (table[view.read(rect)] for view, table in zip(self.views, self.indices, strict=True))
        left_out = (before == _LEFT_OUT) | (after == _LEFT_OUT)
        for view in self.confidences:
            if view is not None:
                left_out |= view.read(rect) < self.least
        if self.probability is not None:
            probability = self.probability.read(rect)
            left_out |= probability == NODATA
            after = np.where(probability < self.least_probability, before, after)
        return np.where(left_out, _LEFT_OUT, before), np.where(left_out, _LEFT_OUT, after)

    def windows(self) -> TileGrid:
        """The windows that the grid is read in."""
        return TileGrid(self.grid.width, self.grid.height, _TILE, halo=0, stride=1)


def _measure(
    comparison: _Comparison, names: Sequence[str], progress: OnProgress
) -> tuple[Transitions, NDArray[np.int64]]:
    """Areas of all pairs of classes that occur, and the numbers of these classes."""
    count = len(names)
    pixels, areas = np.zeros(count * count, np.int64), np.zeros(count * count)
    left_out = 0.0
    measure = PixelAreas(comparison.grid)
    windows = comparison.windows()
    for done, tile in enumerate(windows):
        progress(Progress("compare", done, len(windows)))
        before, after = comparison.read(tile.core)
        valid = before != _LEFT_OUT
        pixel_areas = np.broadcast_to(measure.of(tile.core), valid.shape)
        pairs = before[valid] * count + after[valid]
        pixels += np.bincount(pairs, minlength=count * count)
        areas += np.bincount(pairs, pixel_areas[valid], minlength=count * count)
        left_out += float(pixel_areas[~valid].sum())
    progress(Progress("compare", len(windows), len(windows)))
    if not pixels.any():
        raise SceneError(
            "The maps have no pixel with data in common; give maps of one place, or leave out less."
        )
    matrix, hectares = pixels.reshape(count, count), areas.reshape(count, count) / 10_000
    present = np.flatnonzero(matrix.any(0) | matrix.any(1))
    square = np.ix_(present, present)
    occurring = tuple(names[index] for index in present.tolist())
    transitions = Transitions(occurring, hectares[square], matrix[square], left_out / 10_000, measure.method)
    return transitions, present


def _pair_classes(
    transitions: Transitions, names: Sequence[str], present: NDArray[np.int64], before: ClassMap
) -> tuple[tuple[MapClass, ...], Bytes]:
    """The classes of the change map, and a table `[before, after]` from numbers of classes to its values."""
    pixels = transitions.pixels
    stayed = [(index, index) for index in range(len(pixels)) if pixels[index, index]]
    changed = [(int(i), int(j)) for i, j in np.argwhere(pixels) if i != j]
    changed.sort(key=lambda pair: -transitions.hectares[pair])
    pairs = [*stayed, *changed]
    if len(pairs) > MAX_CLASSES:
        raise SceneError(
            f"{len(pairs)} pairs of classes occur in the maps, and a map holds {MAX_CLASSES}; merge classes of both "
            "maps first, e.g. with iic-model rename."
        )
    own = {entry.name: entry.colour for entry in before.classes}
    fallback = class_colours(names)
    # What stays is pale, what changes has the colour of what it becomes.
    solid = [own.get(name, fallback[number]) for name, number in zip(transitions.names, present, strict=True)]
    colours = [_pale(solid[i]) for i, _ in stayed]
    colours += spread_colours([solid[j] for _, j in changed], besides=colours)
    classes = []
    lookup = np.full((len(names), len(names)), NODATA, np.uint8)
    for value, (i, j) in enumerate(pairs):
        lookup[present[i], present[j]] = value
        name, other = transitions.names[i], transitions.names[j]
        if i == j:
            classes.append(MapClass(_cut(f"{name} stays", MAX_NAME), colours[value]))
        else:
            half = (MAX_NAME - 4) // 2
            classes.append(MapClass(f"{_cut(name, half)} to {_cut(other, half)}", colours[value]))
    return tuple(classes), lookup


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _pale(colour: str) -> str:
    red, green, blue = (round(part + (255 - part) * _PALE) for part in rgb(colour))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _coded_windows(
    comparison: _Comparison, lookup: Bytes, progress: OnProgress
) -> Iterator[tuple[Rect, Bytes]]:
    """The windows of the change map."""
    windows = comparison.windows()
    for done, tile in enumerate(windows):
        progress(Progress("write", done, len(windows)))
        before, after = comparison.read(tile.core)
        yield tile.core, np.where(before == _LEFT_OUT, np.uint8(NODATA), lookup[before, after])
    progress(Progress("write", len(windows), len(windows)))
