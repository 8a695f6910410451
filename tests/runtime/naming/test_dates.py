"""Several dates of one place: how they are aligned, and clusters that mean the same on all of them."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from scipy.optimize import approx_fprime
from support.dates import AUTUMN, SIDE, SPRING, date, ground, write, write_cloudy

from iic_geotools.errors import IICError, SceneError
from iic_geotools.scene.info import describe
from iic_geotools.tiling import Rect
from iic_runtime import segment_raster
from iic_runtime.model.card import FeatureGroup
from iic_runtime.model.file import ModelFile
from iic_runtime.model.validate import validate_model
from iic_runtime.naming.cluster import cluster_scene, iic_slopes, refine_network
from iic_runtime.naming.dates import Canonical, common_data, open_dates
from iic_runtime.naming.regression import NetworkFit, fit_network, softmax


def labels(scene: Path, model: Path, out: Path, mask: str | None = None) -> np.ndarray:
    segment_raster(scene, out, model, mask=mask)
    with rasterio.open(out) as dataset:
        return np.asarray(dataset.read(1))


def purity(found: np.ndarray, truth: np.ndarray) -> float:
    """Share of pixels whose cluster has their material as its most common one."""
    counts = np.zeros((found.max() + 1, 4))
    np.add.at(counts, (found.ravel(), truth.ravel()), 1)
    return float(counts.max(1).sum() / counts.sum())


def test_one_model_maps_both_dates_alike(tmp_path: Path) -> None:
    truth = ground()
    spring = write(tmp_path / "spring.tif", date(truth, SPRING, 1))
    autumn = write(tmp_path / "autumn.tif", (date(truth, AUTUMN, 2).astype(np.uint16) * 37))
    clustered = cluster_scene(spring, tmp_path / "clusters.onnx", 4, pair=[autumn])
    before, after = (
        labels(scene, clustered.path, tmp_path / f"{scene.stem}_map.tif") for scene in (spring, autumn)
    )
    assert (before == after).mean() > 0.95
    assert purity(before, truth) > 0.95
    assert sum(clustered.shares) == pytest.approx(1, abs=1e-6)
    assert clustered.card.rescale == "auto"
    assert clustered.card.origin.data == "spring.tif, autumn.tif"
    assert all(check.kept for check in validate_model(clustered.path))
    again = cluster_scene(spring, tmp_path / "again.onnx", 4, pair=[autumn])
    assert ModelFile.read(again.path).content[:1000] == ModelFile.read(clustered.path).content[:1000]


def test_ground_that_no_date_was_fitted_on_has_the_same_clusters(tmp_path: Path) -> None:
    truth, elsewhere = ground(), ground(7)
    scenes = [
        write(tmp_path / f"{name}.tif", date(truth, colours, number))
        for number, (name, colours) in enumerate((("a", SPRING), ("b", AUTUMN)))
    ]
    model = cluster_scene(scenes[0], tmp_path / "clusters.onnx", 4, pair=scenes[1:]).path
    found = [
        labels(
            write(tmp_path / f"new{n}.tif", date(elsewhere, colours, 10 + n)), model, tmp_path / f"map{n}.tif"
        )
        for n, colours in enumerate((SPRING, AUTUMN))
    ]
    assert (found[0] == found[1]).mean() > 0.9


def test_more_than_two_dates_share_a_legend(tmp_path: Path) -> None:
    truth = ground()
    middle = (SPRING + AUTUMN) // 2
    scenes = [
        write(tmp_path / f"{number}.tif", date(truth, colours, number))
        for number, colours in enumerate((SPRING, middle, AUTUMN))
    ]
    model = cluster_scene(scenes[0], tmp_path / "clusters.onnx", 4, pair=scenes[1:]).path
    maps = [labels(scene, model, tmp_path / f"map{scene.stem}.tif") for scene in scenes]
    assert all((one == maps[0]).mean() > 0.9 for one in maps[1:])


@pytest.mark.parametrize("shift", [(0, 0), (30, 20), (-17, 5)])
def test_dates_are_compared_where_they_lie_on_each_other(tmp_path: Path, shift: tuple[int, int]) -> None:
    """Whatever the extents are, the same features are those of the same ground."""
    col, row = shift
    values = date(ground(), SPRING, 1)
    infos = [
        describe(str(write(tmp_path / "a.tif", values))),
        describe(str(write(tmp_path / "b.tif", values, col, row))),
    ]
    dates = open_dates(infos, rescale="0,255")
    assert (dates.grid.width, dates.grid.height) == (SIDE - abs(col), SIDE - abs(row))
    first, second = dates.look(Rect(0, 0, dates.grid.width, dates.grid.height))
    high, wide = SIDE - abs(row), SIDE - abs(col)
    for seen, top, left in ((first, max(row, 0), max(col, 0)), (second, max(-row, 0), max(-col, 0))):
        expected = values[:, top : top + high, left : left + wide] / 255
        assert np.allclose(seen.values, expected, atol=1e-6)


def test_what_is_hidden_on_one_date_is_left_out(tmp_path: Path) -> None:
    truth = ground()
    cloudy = date(truth, AUTUMN, 2)
    cloudy[:, 40:90, 20:70] = 0
    infos = [
        describe(str(write(tmp_path / "a.tif", date(truth, SPRING, 1), nodata=0))),
        describe(str(write(tmp_path / "b.tif", cloudy, nodata=0))),
    ]
    dates = open_dates(infos)
    valid = common_data(dates.look(Rect(0, 0, dates.grid.width, dates.grid.height)))
    assert not valid[40:90, 20:70].any()
    assert valid.sum() == SIDE * SIDE - 50 * 50
    assert dates.sample(1000, np.random.default_rng(0))[1].std(0).max() < 10


def test_clouds_have_no_cluster(tmp_path: Path) -> None:
    truth, clouds = ground(), np.s_[:80, :60]
    scenes = [
        write_cloudy(tmp_path / f"{name}.tif", date(truth, colours, number), area)
        for number, (name, colours, area) in enumerate(
            (("spring", SPRING, np.s_[:0, :0]), ("autumn", AUTUMN, clouds))
        )
    ]
    model = cluster_scene(scenes[0], tmp_path / "clusters.onnx", 4, pair=scenes[1:], mask="auto").path
    clear = np.ones(truth.shape, bool)
    clear[clouds] = False
    for scene in scenes:
        found = labels(scene, model, tmp_path / f"{scene.stem}_map.tif", mask="auto")
        assert purity(found[clear], truth[clear]) > 0.95
    with pytest.raises(IICError, match="No cloud mask comes with"):
        cluster_scene(
            write(tmp_path / "alone.tif", date(truth, SPRING, 1)), tmp_path / "m.onnx", 4, mask="auto"
        )


def test_dates_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    values = date(ground(), SPRING, 1)
    first = write(tmp_path / "a.tif", values)
    others = {
        "do not lie on those": write(tmp_path / "half.tif", values, 0.5),
        "gdalwarp": write(tmp_path / "coarse.tif", values, size=20.0),
        "do not overlap": write(tmp_path / "far.tif", values, 1000),
        "nir": write(tmp_path / "three.tif", values[:3]),
        "no data": write(tmp_path / "empty.tif", np.zeros_like(values), nodata=0),
    }
    for message, other in others.items():
        with pytest.raises(IICError, match=message):
            cluster_scene(first, tmp_path / "m.onnx", 4, pair=[other])
    half = np.zeros_like(values)
    half[:, :, : SIDE // 2] = values[:, :, : SIDE // 2]
    left = write(tmp_path / "left.tif", half, nodata=0)
    right = write(tmp_path / "right.tif", np.where(half == 0, values, 0), nodata=0)
    with pytest.raises(SceneError, match="on all dates"):
        cluster_scene(left, tmp_path / "m.onnx", 4, pair=[right])
    assert not (tmp_path / "m.onnx").exists()


def test_equal_dates_are_clustered_too(tmp_path: Path) -> None:
    """Noise that both dates have is as good as anything else that they share, so only the largest patches are sure."""
    scene = write(tmp_path / "a.tif", date(ground(), SPRING, 1))
    model = cluster_scene(scene, tmp_path / "m.onnx", 4, pair=[scene]).path
    assert purity(labels(scene, model, tmp_path / "map.tif"), ground()) > 0.7


def test_canonical_variates_are_those_of_hotelling() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(size=(4000, 2))
    samples = [
        np.concatenate([common @ rng.normal(size=(2, 3)), rng.normal(size=(4000, 2))], 1)
        + 0.5 * rng.normal(size=(4000, 5))
        for _ in range(2)
    ]
    canonical = Canonical.of(samples, [FeatureGroup(5, 1, False)])
    variates = [canonical.variates(sample, number) for number, sample in enumerate(samples)]
    blocks = [sample - sample.mean(0) for sample in samples]
    covariances = [[a.T @ b for b in blocks] for a in blocks]
    product = np.linalg.solve(covariances[0][0], covariances[0][1]) @ np.linalg.solve(
        covariances[1][1], covariances[1][0]
    )
    expected = np.sqrt(np.sort(np.linalg.eigvals(product).real)[::-1])
    assert canonical.correlations == pytest.approx(expected, abs=0.01)
    for number, correlation in enumerate(expected):
        assert np.corrcoef(variates[0][:, number], variates[1][:, number])[0, 1] == pytest.approx(
            correlation, abs=0.01
        )
        assert variates[0][:, number].std() == pytest.approx(1, abs=0.01)


def test_iic_between_dates_raises_their_agreement() -> None:
    rng = np.random.default_rng(0)
    material = rng.integers(0, 4, 3000)
    dates = [
        (rng.normal(size=(4, 6))[material] + rng.normal(size=(3000, 6))).astype(np.float32) for _ in range(2)
    ]
    rough = fit_network(
        np.concatenate(dates),
        np.tile(material, 2),
        np.ones(6000, np.float32),
        4,
        settings=NetworkFit(30, balance=False),
    )
    fine = refine_network(rough, dates, rng)

    def information(head: object) -> float:
        z, z2 = (softmax(head.logits(rows)).astype(float) for rows in dates)  # type: ignore[attr-defined]
        masses = (z.mean(0) + z2.mean(0)) / 2
        return -iic_slopes(z, z2, masses)[0]

    assert information(fine) > information(rough)
    masses = [softmax(head.logits(np.concatenate(dates))).mean(0) for head in (rough, fine)]
    assert np.abs(masses[0] - masses[1]).max() < 0.05


def test_the_slopes_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    logits, masses = rng.normal(size=(2, 9, 3)), np.array([0.5, 0.3, 0.2])
    _, slopes = iic_slopes(softmax(logits[0]), softmax(logits[1]), masses)

    def loss(flat: np.ndarray) -> float:
        z, z2 = softmax(flat.reshape(2, 9, 3))
        return iic_slopes(z, z2, masses)[0]

    assert np.allclose(np.stack(slopes).ravel(), approx_fprime(logits.ravel(), loss, 1e-6), atol=1e-4)
