"""How usual spectra are: the mixture in one product of matrices, against its definition."""

import numpy as np
import pytest

from iic_geotools.scene.spectra import BANDS, STRANGE, THREADED, Mixture, bundled_world


def density(spectra: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """The density of spectra `[N, bands]`, component by component."""
    world = bundled_world()
    chosen = [BANDS.index(name) for name in names]
    total = np.zeros(len(spectra))
    for share, mean, covariance in zip(
        world.shares, world.means[:, chosen], world.covariances[:, chosen][:, :, chosen], strict=True
    ):
        apart = spectra - mean
        distances = (apart @ np.linalg.inv(covariance) * apart).sum(1)
        total += share * np.exp(-0.5 * distances) / np.sqrt(np.linalg.det(2 * np.pi * covariance))
    return total


@pytest.mark.parametrize("names", [BANDS, ("nir", "red"), ("green",)])
def test_the_density_of_spectra_and_its_gradient(names: tuple[str, ...]) -> None:
    spectra = np.random.default_rng(0).uniform(0.0, 0.4, (200, len(names)))
    mixture = Mixture.of_bands(names)
    logs, gradient = mixture.log_density(spectra)
    np.testing.assert_allclose(logs, np.log(density(spectra, names) + STRANGE), rtol=1e-9)
    step = 1e-6
    for band in range(len(names)):
        shift = step * np.eye(len(names))[band]
        slope = (mixture.log_density(spectra + shift)[0] - mixture.log_density(spectra - shift)[0]) / (
            2 * step
        )
        np.testing.assert_allclose(gradient[:, band], slope, rtol=1e-4, atol=1e-3)


def test_no_product_of_the_search_is_large_enough_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    multiply = np.matmul

    def matmul(matrix: np.ndarray, columns: np.ndarray, out: np.ndarray) -> np.ndarray:
        sizes.append(matrix.size * columns.shape[1])
        return multiply(matrix, columns, out=out)

    spectra = np.random.default_rng(0).uniform(0.0, 0.5, (4000, len(BANDS)))
    mixture = Mixture.of_bands(BANDS)
    expected = mixture.log_density(spectra)
    monkeypatch.setattr(np, "matmul", matmul)
    for result, value in zip(mixture.log_density(spectra), expected, strict=True):
        np.testing.assert_array_equal(result, value)
    assert len(sizes) > 2
    assert max(sizes) <= THREADED
