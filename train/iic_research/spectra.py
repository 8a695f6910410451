"""The spectra of the world (`iic_geotools.scene.spectra`): a mixture of Gaussians over reflectances of many places.

    python -m iic_research.spectra DATA [-o spectra.json] [--leave-out FOLDER]...

It is fitted to the scenes of the recipe `satellite` of which reflectance is known, every place alike, and decides how
imagery that was stretched by nobody knows what is brought to reflectance. DATA holds the folder `pool`.
"""

import argparse
import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_geotools.files import write_atomically
from iic_geotools.scene.spectra import BANDS, Mixture, World
from iic_train.finetune.chips import read_chips
from iic_train.finetune.settings import LabelSource
from iic_train.recipes import satellite
from iic_train.recipes.learnt import learnt_config

COMPONENTS, STEPS, SEED = 48, 60, 0
STARTS = 4
"""Number of fits from different starts, of which the one is kept under which the spectra are most probable."""
PIXELS_PER_PLACE = 500
LEAST_VARIANCE = 2e-5
"""Added to the variance of every band, so that no component shrinks to the noise of one scene."""
BRIGHTEST = 1.0
"""Reflectance above which a pixel is cloud, snow or an error, and is left out."""

Floats = NDArray[np.float64]


class Place(NamedTuple):
    """Spectra of a place.

    Attributes:
        folder: The folder of `pool` that its scenes are in.
        spectra: Reflectances `[N, bands]`.
    """

    folder: str
    spectra: Floats


def fit_spectra(places: Sequence[Place], leave_out: Collection[str] = (), seed: int = SEED) -> World:
    """Fit the mixture to places.

    Args:
        places: Spectra of each place.
        leave_out: Folders of `pool` whose places are left out.
    """
    kept = [place.spectra for place in places if place.folder not in leave_out]
    if not kept:
        raise DataError("No scene of known reflectance is left: leave out fewer folders.")
    spectra = np.concatenate(kept)
    worlds = [fit_mixture(spectra, COMPONENTS, seed + start) for start in range(STARTS)]
    return max(worlds, key=lambda world: float(Mixture.of_bands(BANDS, world).log_density(spectra)[0].mean()))


def read_places(data: Path, seed: int = SEED) -> list[Place]:
    """Draw spectra of each place of a data folder, equally many unless it has fewer."""
    # With air where products have it, as stretched imagery has too: without, grey towns become brown fields.
    known = tuple(source for source in satellite.SOURCES if source.reflectance is not None)
    recipe = replace(satellite.RECIPE, finetune=replace(satellite.RECIPE.finetune, sources=known))
    config = learnt_config(recipe, data)
    sources = config.finetune.sources if config.finetune else ()
    settings = replace(recipe.finetune, sources=tuple(map(_by_class, sources)))
    parts: dict[tuple[str, str], list[Floats]] = {}
    for chip in read_chips(settings, config.network).chips:
        spectra = chip.pixels.reshape(len(BANDS), -1).T / 1e4
        usable = (spectra != 0).any(1) & (spectra.max(1) <= BRIGHTEST)
        folder = Path(settings.sources[chip.source].scenes[0]).parent.name
        parts.setdefault((folder, chip.place), []).append(spectra[usable])
    rng = np.random.default_rng(seed)
    return [Place(folder, _drawn(np.concatenate(spectra), rng)) for (folder, _), spectra in parts.items()]


def _by_class(source: LabelSource) -> LabelSource:
    """Make a place of each class of scenes that are of one class each, so that towns count as much as fields."""
    if not any(label.endswith(".csv") for label in source.labels):
        return source
    names = sorted({Path(scene).name.split("_")[0] for scene in source.scenes})
    return replace(source, folds=tuple((name, 0) for name in names))


def _drawn(spectra: Floats, rng: np.random.Generator) -> Floats:
    return spectra[rng.permutation(len(spectra))[:PIXELS_PER_PLACE]]


def fit_mixture(spectra: Floats, components: int, seed: int = SEED, steps: int = STEPS) -> World:
    """Fit a mixture of Gaussians to spectra `[N, bands]` by expectation and maximisation."""
    rng = np.random.default_rng(seed)
    means = _spread_means(spectra, components, rng)
    bands = spectra.shape[1]
    floor = LEAST_VARIANCE * np.eye(bands)
    world = World(
        np.full(components, 1 / components), means, np.tile(np.cov(spectra.T) / components + floor, (components, 1, 1))
    )  # fmt: skip
    for _ in range(steps):
        shares = np.exp(_log_parts(spectra, world))
        shares /= shares.sum(1, keepdims=True)
        total = shares.sum(0) + 1e-9
        means = shares.T @ spectra / total[:, None]
        covariances = np.stack(
            [
                (part[:, None] * (spectra - mean)).T @ (spectra - mean) / size
                for part, mean, size in zip(shares.T, means, total, strict=True)
            ]
        )
        world = World(total / total.sum(), means, covariances + floor)
    return world


def _log_parts(spectra: Floats, world: World) -> Floats:
    """Logarithms of the densities of the components `[N, K]`, up to a constant per spectrum."""
    roots = np.linalg.cholesky(np.linalg.inv(world.covariances))
    volumes = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
    logs = np.stack(
        [-0.5 * (((spectra - mean) @ root) ** 2).sum(1) for mean, root in zip(world.means, roots, strict=True)], 1
    )  # fmt: skip
    logs += np.log(world.shares) + volumes
    return np.asarray(logs - logs.max(1, keepdims=True))


def _spread_means(spectra: Floats, components: int, rng: np.random.Generator) -> Floats:
    """Draw means far from each other: each with a probability that grows with the distance to those before."""
    chosen = [spectra[rng.integers(len(spectra))]]
    nearest = np.full(len(spectra), np.inf)
    while len(chosen) < components:
        nearest = np.minimum(nearest, ((spectra - chosen[-1]) ** 2).sum(1))
        chosen.append(spectra[rng.choice(len(spectra), p=nearest / nearest.sum())])
    return np.stack(chosen)


def to_json(world: World, about: str) -> str:
    """Write a mixture as the text of `spectra.json`, the largest components first, in four digits."""
    order = np.argsort(-world.shares, kind="stable")

    def short(values: Floats) -> object:
        return json.loads(json.dumps(np.vectorize(lambda value: float(f"{value:.4g}"))(values).tolist()))

    table = {"bands": list(BANDS), "about": about}
    rows = {name: short(getattr(world, name)[order]) for name in ("shares", "means", "covariances")}
    return json.dumps({**table, **rows}) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("spectra.json"))
    parser.add_argument("--leave-out", action="append", default=[], help="folder of the pool")
    options = parser.parse_args(arguments)
    places = read_places(options.data)
    world = fit_spectra(places, options.leave_out)
    count = sum(place.folder not in options.leave_out for place in places)
    about = (
        "Mixture of Gaussians over reflectances of satellite scenes (HLS, Sentinel-2, Landsat) of "
        f"{count} places on five continents."
    )
    write_atomically(options.output, to_json(world, about).encode())


if __name__ == "__main__":
    main()
