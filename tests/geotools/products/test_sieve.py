from collections import Counter

import numpy as np
import pytest
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS
from scipy import ndimage
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from support.maps import random_labels

from iic_geotools.classmap.classes import NODATA
from iic_geotools.geobox import GeoBox, Ground
from iic_geotools.products import sieve
from iic_geotools.products.sieve import Sieve, connect, scramble
from iic_geotools.tiling import Rect

UTM, MERCATOR, DEGREES = CRS.from_epsg(32631), CRS.from_epsg(3857), CRS.from_epsg(4326)
METRES = Affine(1, 0, 500000, 0, -1, 5400000)
CROSS = ((0, 1), (0, -1), (1, 0), (-1, 0))


def make_grid(labels: np.ndarray, crs: CRS = UTM, transform: Affine = METRES) -> GeoBox:
    return GeoBox(labels.shape[1], labels.shape[0], transform, crs)


def sieve_in_tiles(labels: np.ndarray, stage: Sieve, tile: int) -> np.ndarray:
    """The map, sieved tile by tile; each tile may read what it likes."""
    out = np.empty_like(labels)
    height, width = labels.shape
    for row in range(0, height, tile):
        for col in range(0, width, tile):
            core = Rect(col, row, min(tile, width - col), min(tile, height - row))
            out[core.slices] = stage(lambda rect: labels[rect.slices].copy(), core)
    return out


def judge(labels: np.ndarray, least: float, area: np.ndarray | None = None) -> np.ndarray:
    """What `sieve` promises, by other means: the whole map, its patches found anew by scipy after every decision."""
    labels = labels.copy()
    area = np.ones(labels.shape) if area is None else area
    levels = [least]
    while levels[-1] > area.min():
        levels.append(levels[-1] / 2)
    for level in reversed(levels):
        while _judge_round(labels, level, area):
            pass
    return labels


def _judge_round(labels: np.ndarray, level: float, area: np.ndarray) -> bool:
    patch = np.full(labels.shape, -1)
    count = 0
    for label in set(labels.ravel().tolist()) - {NODATA}:
        numbers, regions = ndimage.label(labels == label)
        patch[numbers > 0] = numbers[numbers > 0] + count - 1
        count += regions
    value: dict[int, int] = {}
    first: dict[int, int] = {}
    size: Counter[int] = Counter()
    pixels: Counter[int] = Counter()
    borders: dict[int, Counter] = {}
    height, width = labels.shape
    for y in range(height):
        for x in range(width):
            p = int(patch[y, x])
            if p < 0:
                continue
            value[p] = int(labels[y, x])
            size[p] += area[y, x]
            pixels[p] += 1
            first.setdefault(p, y * width + x)
            for dy, dx in CROSS:
                if 0 <= y + dy < height and 0 <= x + dx < width and patch[y + dy, x + dx] not in (-1, p):
                    borders.setdefault(p, Counter())[int(patch[y + dy, x + dx])] += 1

    def luck(p: int) -> int:
        return int(scramble(np.array([first[p]]))[0])

    small = {p for p in borders if size[p] < level}
    waits = {p for p in small if small.issuperset(borders[p])}
    leads = {p for p in waits if all((pixels[p], -luck(p)) > (pixels[q], -luck(q)) for q in borders[p])}
    choices = {}
    for p in small:
        totals: Counter = Counter()
        for q, length in borders[p].items():
            if q in leads if p in waits else q not in small:
                totals[value[q]] += length
        if totals:
            lot = {c: int(scramble(np.array([luck(p) ^ c], np.uint64))[0]) for c in totals}
            choices[p] = max(totals, key=lambda c: (totals[c], lot[c]))
    for p, chosen in choices.items():
        labels[patch == p] = chosen
    return bool(choices)


@st.composite
def speckled(draw: st.DrawFn) -> np.ndarray:
    """Noise, patches of several sizes, chequers and holes."""
    height, width = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    classes, patch = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2, 3, 7]))
    labels = random_labels(height, width, classes, draw(st.integers(0, 10**6)), patch)
    kind = draw(st.sampled_from(["plain", "noise", "chequers", "full"]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    if kind == "noise":
        hit = rng.random(labels.shape) < 0.2
        labels = np.where(hit, rng.integers(0, classes, labels.shape), labels).astype(np.uint8)
    if kind == "chequers":
        labels[: height // 2] = (np.indices((height // 2, width)).sum(0) % 2).astype(np.uint8)
    if kind == "full":
        labels[labels == NODATA] = 0
    return labels


@given(labels=speckled(), least=st.sampled_from([1.0, 1.5, 2, 3, 5, 9, 30, 200]), tile=st.integers(5, 20))
@settings(max_examples=40, deadline=None)
def test_tiles_and_the_whole_map_agree_with_the_judge(labels: np.ndarray, least: float, tile: int) -> None:
    stage = Sieve(least, make_grid(labels))
    expected = judge(labels, least)
    np.testing.assert_array_equal(
        stage(lambda rect: labels[rect.slices], Rect(0, 0, *labels.shape[::-1])), expected
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sieve, "_HALO_LIMITS", (1, 1))
        np.testing.assert_array_equal(sieve_in_tiles(labels, stage, tile), expected)


@pytest.mark.parametrize(
    ("crs", "transform", "least"),
    [
        (DEGREES, Affine(0.01, 0, 3, 0, -0.01, 60), 4e6),
        (DEGREES, Affine(0.4, 0, 3, 0, -0.4, 84), 2.5e9),
        (MERCATOR, Affine(100, 0, 1e6, 0, -100, 8e6), 2e4),
        (MERCATOR, Affine(60, 80, 1e6, 80, -60, 8e6), 2e4),
    ],
)
def test_areas_on_the_ground_decide(crs: CRS, transform: Affine, least: float) -> None:
    labels = random_labels(70, 80, 3, seed=3, patch=2)
    labels[::3, ::5] = 1
    grid = make_grid(labels, crs, transform)
    ground = Ground.of(crs)
    assert ground is not None
    areas = grid.true_pixel_areas(ground, Rect(0, 0, 80, 70))
    whole = Sieve(least, grid)(lambda rect: labels[rect.slices], Rect(0, 0, 80, 70))
    steps = np.broadcast_to(np.rint(areas / least * 2**32), labels.shape)
    np.testing.assert_array_equal(whole, judge(labels, 2**32, steps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sieve, "_HALO_LIMITS", (1, 1))
        np.testing.assert_array_equal(sieve_in_tiles(labels, Sieve(least, grid), 33), whole)


def test_the_area_of_a_pixel_does_not_depend_on_the_rectangle() -> None:
    grid = GeoBox(300, 200, Affine(100, 0, 1e6, 0, -100, 8e6), MERCATOR)
    ground = Ground.of(MERCATOR)
    assert ground is not None
    whole = grid.true_pixel_areas(ground, Rect(0, 0, 300, 200))
    rect = Rect(70, 63, 130, 66)
    np.testing.assert_array_equal(grid.true_pixel_areas(ground, rect), whole[rect.slices])


def test_a_patch_takes_the_class_of_its_longest_border() -> None:
    labels = np.zeros((9, 9), np.uint8)
    labels[:, 5:] = 1
    labels[3:5, 3:7] = 2  # borders: 0 on 2 + 4 edges, 1 on 2 + 4; one pixel more turns it
    labels[3, 2] = 2
    sieved = Sieve(10, make_grid(labels))(lambda rect: labels[rect.slices], Rect(0, 0, 9, 9))
    assert set(sieved[3:5, 3:7].ravel()) == {0}
    assert sieved[3, 2] == 0


def test_a_patch_as_large_as_the_minimum_stays() -> None:
    labels = np.zeros((20, 20), np.uint8)
    labels[2:7, 2:8] = 1
    grid = make_grid(labels, transform=Affine(0.1, 0, 500000, 0, -0.1, 5400000))
    whole = Rect(0, 0, 20, 20)
    assert (Sieve(0.3, grid)(lambda rect: labels[rect.slices], whole) == labels).all()
    assert (Sieve(0.31, grid)(lambda rect: labels[rect.slices], whole) == 0).all()


def test_only_patches_without_a_neighbour_may_stay_small() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, (120, 130), dtype=np.uint8)
    labels[40:60] = NODATA
    labels[50:52, 20:24] = 2
    labels[55, 70:75] = [0, 1, 0, 1, 1]
    sieved = sieve_in_tiles(labels, Sieve(40, make_grid(labels)), 64)
    np.testing.assert_array_equal(sieved == NODATA, labels == NODATA)
    sizes: Counter[int] = Counter()
    for value in range(4):
        numbers, _ = ndimage.label(sieved == value)
        sizes.update(np.bincount(numbers.ravel())[1:].tolist())
    assert sorted(size for size in sizes if size < 40) == [5, 8]
    assert (sieved[55, 70:75] == sieved[55, 70]).all()
    dropped = sieve_in_tiles(labels, Sieve(40, make_grid(labels), keep_islands=False), 64)
    np.testing.assert_array_equal(dropped[40:60], NODATA)
    np.testing.assert_array_equal(dropped[:40], sieved[:40])


def test_ties_favour_no_class() -> None:
    stripes = np.repeat(np.arange(3, dtype=np.uint8), 40).reshape(3, 40).repeat(2, 0)
    labels = np.concatenate([stripes[[0, 0, 2, 2]]] * 20)
    rng = np.random.default_rng(0)
    cols = rng.integers(1, 39, 20)
    for index, col in enumerate(cols):
        labels[4 * index + 1 : 4 * index + 3, col] = 2  # half in class 0, half in class 1
    sieved = Sieve(3, make_grid(labels))(lambda rect: labels[rect.slices], Rect(0, 0, 40, 80))
    chosen = [int(sieved[4 * index + 1, col]) for index, col in enumerate(cols)]
    assert 4 < sum(chosen) < 16


def test_components() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 300, (2, 200))
    lowest = connect(300, one, other)
    links = csr_array((np.ones(200), (one, other)), (300, 300))
    count, expected = connected_components(links, directed=False)
    assert len(set(lowest.tolist())) == count
    for component in range(count):
        members = np.flatnonzero(expected == component)
        assert set(lowest[members].tolist()) == {members.min()}
