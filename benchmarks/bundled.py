"""The bundled models: train one again, say how good it is, compare it with others.

    python benchmarks/bundled.py train aerial DATA -o aerial.onnx       train, name the clusters, export, score
    python benchmarks/bundled.py train satellite DATA -o satellite.onnx
    python benchmarks/bundled.py score aerial DATA [--model FILE]       score the bundled model, k-means beside it
    python benchmarks/bundled.py widths aerial DATA                     accuracy and speed of other networks and k

DATA holds the folders flair, naip and sentinel2 (docs/models.md says what they are). Training never sees a label:
labels name the clusters afterwards, many to one, and measure. Scores are of the maps that `segment_raster` writes.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
from rasterio.enums import Resampling
from rasterio.transform import Affine

from iic_export import export
from iic_export.naming import Naming
from iic_runtime import segment_raster
from iic_runtime.bundled import find_model
from iic_runtime.modelfile import ModelFile
from iic_train.baselines import kmeans
from iic_train.config import DataConfig
from iic_train.data.rasters import parse_groups, raster_dataset
from iic_train.metrics import Confusion, Counts, one_to_one, score
from iic_train.rasters import train_rasters
from iic_train.runs import Run

BANDS = ("red", "green", "blue", "nir")
SAMPLE = 200_000  # pixels in which k-means looks for its centres


@dataclass(frozen=True)
class Recipe:
    """How a model is made and what it is measured by.

    Attributes:
        name: What it is called.
        scenes: What it is trained on, as patterns under the data folder.
        labelled: Scene and labels of those that are labelled, as patterns under the data folder.
        settings: Of `train_rasters`.
        classes: Names, label values and colours.
        attribution: Whose data it was trained on.
        licence: Its licences.
        meant_for: Smallest and largest pixels, in metres.
        coarser: Classes of classes that accuracy is stated for, too.
        balance: How far the numbers of labelled pixels are evened out when clusters are named.
        factors: Resolutions to measure at: so many pixels make one.
        lights: Factors by which values are multiplied, to measure how much depends on the light.
        others: Other networks and numbers of clusters to compare with.
    """

    name: str
    scenes: tuple[str, ...]
    labelled: tuple[str, str]
    settings: dict[str, Any]
    classes: tuple[str, ...]
    attribution: str
    licence: str
    meant_for: tuple[float, float]
    coarser: dict[str, tuple[str, ...]] = field(default_factory=dict)
    balance: float = 0.0
    factors: tuple[int, ...] = (1, 2, 4)
    lights: tuple[float, ...] = ()
    others: tuple[tuple[str, int], ...] = ()


AERIAL = Recipe(
    "aerial",
    ("flair/*_rgbir.tif", "naip/*.tif"),
    ("flair/*_rgbir.tif", "flair/*_label.tif"),
    {
        "classes": 64,
        "network": "local",
        "gsd": (0.2, 1.0),
        "clusters_a": 0,
        "sub_heads": 1,
        "size": 32,
        "radius": 1,
        "batch": 48,
        "lr": 1e-2,
        "epochs": 8,
        "steps": 100,
        "lamb": 1.5,
        "jitter": 0.5,
        "vigour": 0.0,
    },
    (
        "ground=2,3,4:#b5a99a",
        "building=1,18:#d7301f",
        "low vegetation=9,10,11,12:#a6d96a",
        "high vegetation=6,7,8,15,16,17:#1a7837",
    ),
    "IGN FLAIR #1 (Montpellier); USDA NAIP (California), selection of the urban-tree-detection data set",
    "Open Licence 2.0 (IGN); public domain and CC BY 4.0 (NAIP selection)",
    coarser={"vegetation": ("low vegetation", "high vegetation")},
    balance=0.4,
    meant_for=(0.2, 1.0),
    lights=(0.7, 1.3),
    others=(("local", 24), ("local", 128), ("local-small", 64), ("local-large", 64), ("edge-8", 64)),
)
SATELLITE = Recipe(
    "satellite",
    ("sentinel2/*_rgbn.tif",),
    ("sentinel2/*_rgbn.tif", "sentinel2/*_label.tif"),
    {
        "classes": 64,
        "network": "local",
        "rescale": "auto",  # they come stretched, each in its own way
        "gsd": (5.0, 10.0),
        "pixel_size": 5.0,
        "nodata": 0.0,
        "clusters_a": 0,
        "sub_heads": 1,
        "size": 32,
        "radius": 1,
        "batch": 48,
        "lr": 4e-3,
        "epochs": 4,
        "steps": 200,
        "lamb": 1.5,
        "jitter": 1.0,
        "vigour": 0.0,
    },
    ("built-up or bare=1:#cbb39b", "vegetation=2:#3f9b54", "water=3:#2b8cbe"),
    "Sentinel-2 scenes of Indian towns at 5 m (modified Copernicus Sentinel data), published with a U-Net project",
    "MIT",
    meant_for=(3.0, 10.0),
    balance=0.4,
    factors=(1, 2),
    others=(("local", 32), ("edge-8", 32), ("edge-4", 32)),
)
RECIPES = {"aerial": AERIAL, "satellite": SATELLITE}


def files(data: Path, patterns: Sequence[str]) -> list[str]:
    """The files of patterns, in order."""
    found = [str(path) for pattern in patterns for path in sorted(data.glob(pattern))]
    if not found:
        raise SystemExit(f"There is nothing like {', '.join(patterns)} in {data}.")
    return found


def train_model(recipe: Recipe, data: Path, runs: Path, **changed: Any) -> Run:
    """Train as the recipe says, without a label."""
    settings = {**recipe.settings, **changed}
    return train_rasters(
        files(data, recipe.scenes), settings.pop("classes"), bands=BANDS, runs=runs, device="cpu", **settings
    )


def export_model(run: Run, recipe: Recipe, data: Path, out: Path) -> None:
    """Name the clusters by the labels and write the model."""
    scenes, labels = (files(data, [pattern]) for pattern in recipe.labelled)
    naming = Naming(labels, classes=recipe.classes, scenes=scenes, balance=recipe.balance)
    made = export(
        run.path,
        out,
        naming=naming,
        name=recipe.name,
        attribution=recipe.attribution,
        licence=recipe.licence,
        gsd_range=recipe.meant_for,
        overwrite=True,
    )
    print(made.sentence(), flush=True)


@dataclass(frozen=True)
class Measured:
    """What maps of all labelled scenes at one resolution are like: counts of [class found, class labelled]."""

    counts: Counts
    pixels: int
    seconds: float


def measure(model: Path, recipe: Recipe, data: Path, times: int, light: float = 1.0) -> Measured:
    """Map every labelled scene, `times` coarser and so much brighter, and compare with its labels."""
    groups = _groups(recipe)
    table = np.full(256, 255, np.uint8)
    for number, values in enumerate(groups.values()):
        table[list(values)] = number
    names = [each.name for each in ModelFile.read(model).card.classes]
    confusion, pixels, seconds = Confusion(len(names), len(groups)), 0, 0.0
    scenes, labels = (files(data, [pattern]) for pattern in recipe.labelled)
    with tempfile.TemporaryDirectory() as folder:
        for scene, label in zip(scenes, labels, strict=True):
            path, out = changed_scene(scene, times, light, Path(folder)), Path(folder) / "map.tif"
            done = segment_raster(
                path, out, model, bands=BANDS, overwrite=True, nodata=recipe.settings.get("nodata")
            )
            pixels, seconds = pixels + done.pixels, seconds + done.seconds
            with rasterio.open(out) as found, rasterio.open(label) as given:
                predicted = torch.from_numpy(found.read(1))
                middle = slice(times // 2, None, times)
                wanted = table[given.read(1)[middle, middle][: predicted.shape[0], : predicted.shape[1]]]
            known = predicted < len(names)
            confusion.add(predicted[known], torch.from_numpy(wanted)[known])
    return Measured(_gathered(confusion.counts, names, recipe), pixels, seconds)


def _groups(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Label values of each class, without its colour."""
    return parse_groups([text.partition(":")[0] for text in recipe.classes])


def _gathered(counts: Counts, names: Sequence[str], recipe: Recipe) -> Counts:
    """Rows of the model's classes in the order of the labels' classes."""
    wanted = list(_groups(recipe))
    found = np.zeros((len(wanted), len(wanted)), np.int64)
    for row, name in zip(counts, names, strict=True):
        if name in wanted:
            found[wanted.index(name)] += row
    return found


def coarser(counts: Counts, recipe: Recipe) -> tuple[list[str], Counts]:
    """Counts of the coarser classes that accuracy is often stated for."""
    names, places = zip(*_places(recipe).items(), strict=True)
    found = [[int(counts[np.ix_(rows, columns)].sum()) for columns in places] for rows in places]
    return list(names), np.array(found)


def _places(recipe: Recipe) -> dict[str, list[int]]:
    """Numbers of the classes in each coarser class."""
    whole = {part: name for name, parts in recipe.coarser.items() for part in parts}
    gathered: dict[str, list[int]] = {}
    for number, name in enumerate(_groups(recipe)):
        gathered.setdefault(whole.get(name, name), []).append(number)
    return gathered


def changed_scene(scene: str, times: int, light: float, folder: Path) -> str:
    """The scene, or a copy in which squares of `times` pixels are averaged and values multiplied by `light`."""
    if times == 1 and light == 1:
        return scene
    with rasterio.open(scene) as opened:
        height, width = opened.height // times, opened.width // times
        window = ((0, height * times), (0, width * times))
        pixels = opened.read(
            out_shape=(opened.count, height, width), window=window, resampling=Resampling.average
        )
        profile = {**opened.profile, "height": height, "width": width, "driver": "GTiff"}
        profile["transform"] = opened.transform @ Affine.scale(times)
        out = folder / f"{Path(scene).stem}_{times}.tif"
        with rasterio.open(out, "w", **profile) as written:
            written.write(np.clip(np.rint(pixels * light), 0, 255).astype(pixels.dtype))
            written.descriptions = opened.descriptions
    return str(out)


def sentence(names: Sequence[str], counts: Counts) -> str:
    """Accuracy, mean IoU and recalls in a line."""
    found = score(counts, np.arange(len(names)))
    recalls = ", ".join(
        f"{name} {100 * (recall or 0):.0f}" for name, recall in zip(names, found.class_accuracy, strict=True)
    )
    return f"{100 * found.accuracy:5.2f} %  mean IoU {100 * found.mean_iou:4.1f}  recognised: {recalls}"


def tell(recipe: Recipe, counts: Counts) -> None:
    """Print how good counts are, in coarser classes first where there are any."""
    if recipe.coarser:
        print(f"   {sentence(*coarser(counts, recipe))}")
    print(f"   {sentence(list(_groups(recipe)), counts)}", flush=True)


def report(model: Path, recipe: Recipe, data: Path) -> None:
    """Print how good a model is at several resolutions."""
    own = recipe.settings.get("pixel_size") or recipe.settings["gsd"][0]
    for times in recipe.factors:
        found = measure(model, recipe, data, times)
        speed = found.pixels / 1e6 / found.seconds
        print(f"{own * times:g} m, {found.pixels / 1e6:.1f} Mpx at {speed:.2f} Mpx/s end to end", flush=True)
        tell(recipe, found.counts)
    for light in recipe.lights:
        found = measure(model, recipe, data, recipe.factors[-1], light)
        print(f"{own * recipe.factors[-1]:g} m, values x {light:g}")
        tell(recipe, found.counts)


def kmeans_counts(recipe: Recipe, data: Path, clusters: int, times: int = 1) -> list[Counts]:
    """Clusters that k-means finds in the standardised values of single pixels, against the labels' classes.

    The first counts are of the scenes as they are, the others in the recipe's lights.
    """
    scenes, labels = (tuple(files(data, [pattern])) for pattern in recipe.labelled)
    classes = tuple(text.partition(":")[0] for text in recipe.classes)
    settings = DataConfig(
        "rasters",
        scenes=scenes,
        labels=labels,
        label_classes=classes,
        nodata=recipe.settings.get("nodata"),
        reduce=times,
    )
    chips = raster_dataset(settings, BANDS).map
    rng = np.random.default_rng(0)
    share = -(-SAMPLE // len(chips))
    sample = np.concatenate(
        [rng.choice(chips.image(index).reshape(len(BANDS), -1).T, share) for index in range(len(chips))]
    )
    points = torch.from_numpy(sample).float()
    mean, deviation = points.mean(0), points.std(0)
    centres = kmeans((points - mean) / deviation, clusters, torch.Generator().manual_seed(0))
    lights = (1.0, *recipe.lights)
    confusions = [Confusion(clusters, len(classes)) for _ in lights]
    for index in range(len(chips)):
        pixels, label = torch.from_numpy(chips.image(index)).flatten(1).T.float(), chips.label(index)
        for light, confusion in zip(lights, confusions, strict=True):
            lit = (pixels * light).round().clamp(0, 255)
            found = torch.cdist((lit - mean) / deviation, centres).argmin(1)
            if label is not None:
                confusion.add(found, torch.from_numpy(label))
    return [confusion.counts for confusion in confusions]


def report_kmeans(recipe: Recipe, data: Path) -> None:
    """Print what k-means on single pixels finds: one to one, and with as many clusters, named as the model's are."""
    names, clusters = list(_groups(recipe)), recipe.settings["classes"]
    for times in dict.fromkeys((recipe.factors[0], recipe.factors[-1])):
        lit = kmeans_counts(recipe, data, clusters, times)
        winners = (lit[0] / lit[0].sum(0) ** recipe.balance).argmax(1)
        for light, counts in zip((1.0, *recipe.lights), lit, strict=True):
            named = np.zeros((len(names), len(names)), np.int64)
            np.add.at(named, winners, counts)
            print(f"k-means, {clusters} clusters named in the same way, 1/{times}, values x {light:g}")
            tell(recipe, named)
    few = kmeans_counts(recipe, data, len(_places(recipe)))[0]
    wholes = np.stack([few[:, place].sum(1) for place in _places(recipe).values()], 1)
    print(
        f"k-means, {len(few)} clusters one to one: {100 * score(wholes, one_to_one(wholes)).accuracy:.2f} %"
    )


def compare(recipe: Recipe, data: Path, runs: Path, seed: int) -> None:
    """Print accuracy, size and speed of the recipe's network and of others, all trained for a quarter of the time."""
    epochs = max(1, recipe.settings["epochs"] // 4)
    chosen = (recipe.settings["network"], recipe.settings["classes"])
    print(
        f"{'network':<14}{'clusters':>9}{'kB':>7}"
        + "".join(f"{f'1/{n}, %':>10}" for n in recipe.factors)
        + "   Mpx/s"
    )
    for network, clusters in (chosen, *recipe.others):
        run = train_model(
            recipe, data, runs, network=network, classes=clusters, epochs=epochs, seed=seed, quiet=True
        )
        out = run.path / "model.onnx"
        export_model(run, recipe, data, out)
        found = [measure(out, recipe, data, times) for times in recipe.factors]
        accuracies = [
            score(counts, np.arange(len(names))).accuracy
            for names, counts in (coarser(each.counts, recipe) for each in found)
        ]
        speed = sum(each.pixels for each in found) / 1e6 / sum(each.seconds for each in found)
        cells = "".join(f"{100 * each:>10.2f}" for each in accuracies)
        print(f"{network:<14}{clusters:>9}{out.stat().st_size / 1e3:>7.0f}{cells}{speed:>8.2f}", flush=True)


def main() -> None:
    """Train, score or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("train", "score", "widths"))
    parser.add_argument("name", choices=tuple(RECIPES))
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = RECIPES[options.name]
    if options.task == "train":
        out = options.out or Path(f"{recipe.name}.onnx")
        run = train_model(recipe, options.data, options.runs, seed=options.seed)
        export_model(run, recipe, options.data, out)
        report(out, recipe, options.data)
    elif options.task == "score":
        report(options.model or find_model(recipe.name).path, recipe, options.data)
        report_kmeans(recipe, options.data)
    else:
        compare(recipe, options.data, options.runs, options.seed)


if __name__ == "__main__":
    main()
