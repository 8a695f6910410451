"""The recipe of the world's spectra: a mixture that is fitted the same way each time."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.scenes import write_raster

from iic_geotools.errors import DataError
from iic_geotools.scene.spectra import BANDS, Mixture
from iic_research import spectra
from iic_train.recipes import satellite

MEANS = np.array([(0.03, 0.05, 0.06, 0.01), (0.02, 0.04, 0.02, 0.35), (0.2, 0.15, 0.1, 0.3)])


def made_spectra(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return MEANS[rng.integers(0, 3, count)] + rng.normal(0, 0.005, (count, 4))


def test_a_mixture_has_the_means_of_the_world() -> None:
    world = spectra.fit_mixture(made_spectra(3000), 3, steps=20)
    order = [np.abs(world.means - mean).sum(1).argmin() for mean in MEANS]
    assert sorted(order) == [0, 1, 2]
    assert np.abs(world.means[order] - MEANS).max() < 0.002
    assert world.shares == pytest.approx(np.full(3, 1 / 3), abs=0.03)
    usual = Mixture.of_bands(BANDS, world).log_density(MEANS)[0]
    strange = Mixture.of_bands(BANDS, world).log_density(MEANS + 0.3)[0]
    assert usual.min() > strange.max() + 5


def test_the_command_writes_the_same_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "other"):
        (tmp_path / "pool" / folder).mkdir(parents=True)
        values = (made_spectra(40 * 50).T.reshape(4, 40, 50) * 1e4).clip(1).astype(np.uint16)
        write_raster(tmp_path / "pool" / folder / "a_rgbn.tif", values)
    source = replace(
        next(source for source in satellite.SOURCES if not source.labels and source.reflectance),
        meanings=satellite.CERTAIN,
    )
    sources = tuple(
        replace(source, name=folder, scenes=(f"pool/{folder}/*_rgbn.tif",)) for folder in ("one", "other")
    )
    monkeypatch.setattr(satellite, "SOURCES", sources)
    monkeypatch.setattr(spectra, "COMPONENTS", 3)
    files = [tmp_path / name for name in ("first.json", "second.json")]
    for file in files:
        spectra.main([str(tmp_path), "-o", str(file)])
    assert files[0].read_bytes() == files[1].read_bytes()
    table = json.loads(files[0].read_bytes())
    assert table["bands"] == list(BANDS)
    assert "2 places" in table["about"]
    assert len(table["shares"]) == len(table["means"]) == len(table["covariances"]) == 3
    assert table["shares"] == sorted(table["shares"], reverse=True)
    places = spectra.read_places(tmp_path)
    assert [place.folder for place in places] == ["one", "other"]
    assert np.array_equal(spectra.fit_spectra(places, ["other"]).means, spectra.fit_spectra(places[:1]).means)
    with pytest.raises(DataError, match="leave out fewer"):
        spectra.fit_spectra(places, ["one", "other"])
