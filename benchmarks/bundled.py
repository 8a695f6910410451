"""How good the bundled models are on places that they have not seen, beside simpler methods.

    python benchmarks/bundled.py score satellite DATA [--cache FOLDER] [--fold N]...
    python benchmarks/bundled.py score aerial DATA [--twin]
    python benchmarks/bundled.py widths aerial DATA [--fold N]...

`score` trains the recipe once for each part of the cross-validation over places, scores it on the places left out, and
prints a table per source: accuracy, mean IoU, precision and recall of each class, and how far the confidence can be
trusted. Beside it, on the same places: a rule on NDVI and NDWI, and a random forest on single pixels that learnt from
the same labels; and with --twin the same network trained by IIC alone on the other places and named by their labels.
What was measured is kept in FOLDER, so that parts can be run one at a time, and a second call only prints.

`widths` trains the recipe with other widths of the network, and prints how good and how fast each is.

DATA holds the folders flair and pool (docs/models.md says what they are). This only measures: `iic-train recipe NAME
--data DATA` trains the models.
"""

import argparse
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from twin import train_twin
from widths import WIDTHS, describe_speed, with_widths

from iic_train.config import TrainConfig
from iic_train.finetune.chips import Chip, LabelledChips, read_chips
from iic_train.finetune.crops import Crops
from iic_train.finetune.heldout import HeldOut, pixel_logs
from iic_train.finetune.pixel_runs import train_fold
from iic_train.recipes.aerial import ZONES
from iic_train.recipes.learnt import learnt_config
from iic_train.recipes.registry import LEARNT_RECIPES

CROPS, PIXELS_PER_CROP = 1500, 60
"""What the random forest learns from: as many labelled pixels of as many crops, drawn as for the network."""
TREES, DEPTH = 60, 16
MOST_PIXELS = 5_000_000
"""Number of pixels of a source that are scored in a part, on a regular grid over all of the source."""
GROUPS = {
    "satellite": {"vegetation": (0, 1), "built or bare": (2, 3), "water": (4,)},
    "aerial": {"vegetation": (2, 3), "ground or building": (0, 1), "water": (4,)},
}
"""What the rule can tell apart, as numbers of classes."""
COARSE = {"satellite": ((0, 1), (2, 3), (4,)), "aerial": ((0,), (1,), (2, 3), (4,))}
"""Classes that are merged for a second figure."""
RULE = {"satellite": (0.2, 0.0), "aerial": None}
"""NDVI above which a pixel is vegetation, NDWI above which it is water; None fits both to the labels of each part."""
EARLIER = {
    "satellite": "83 HLS chips of other regions: five classes 10.4 (8.6), vegetation, built or bare, water 17.0 (13.7)",
    "aerial": "rural zones of FLAIR: 86.9 (45.7) in ground, building, vegetation; a town at 0.6 m: 57.3",
}
"""Figures of the models of version 0.1.0, which were trained without labels, on places that they had not seen."""
FLAIR_3 = ((0,), (1,), (2, 3))
"""Ground, building, vegetation: the classes of FLAIR-3. What is labelled water is left out, as there."""
FLAIR_ZONES = tuple(zone for zone, _ in ZONES)
Counts = NDArray[np.int64]
Predict = Callable[[NDArray[Any]], NDArray[np.float32]]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["score", "widths"])
    parser.add_argument("name", choices=sorted(LEARNT_RECIPES))
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("runs/bundled"))
    parser.add_argument("--fold", type=int, action="append", help="parts to measure; by default all")
    parser.add_argument("--epochs", type=int, help="instead of what the recipe says")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--twin", action="store_true", help="beside it the same network without labels")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.cache.mkdir(parents=True, exist_ok=True)
    config = learnt_config(
        LEARNT_RECIPES[options.name], options.data, epochs=options.epochs, seed=options.seed
    )
    data: LabelledChips | None = None
    assert config.finetune is not None
    folds = options.fold or list(range(config.finetune.folds))
    if options.task == "widths":
        compare_widths(options.name, config, folds, options.cache)
        return
    files: list[Path] = []
    for fold in folds:
        files.append(options.cache / f"{options.name}-{options.seed}-{fold}.npz")
        if not files[-1].exists():
            data = data or read_chips(config.finetune, config.network)
            measure_fold(options.name, config, data, fold, files[-1])
        if options.twin:
            files.append(options.cache / f"{options.name}-unlabelled-{options.seed}-{fold}.npz")
            if not files[-1].exists():
                data = data or read_chips(config.finetune, config.network)
                measure_twin(options.name, config, data, fold, files[-1])
    report(options.name, config, files)


def measure_fold(name: str, config: TrainConfig, data: LabelledChips, fold: int, file: Path) -> None:
    """Train and score everything with the places of one part left out, and write the figures to a file."""
    started = time.process_time()
    network = train_fold(config, data, fold, "network")
    seconds = time.process_time() - started
    print(f"{name}, part {fold}: trained in {seconds:.0f} s of CPU", flush=True)
    pixels, labels = forest_pixels(config, data, fold)
    methods: dict[str, Predict] = {
        "network": lambda chip: pixel_logs(network, chip),
        "forest": forest(config, pixels, labels),
        "rule": rule(name, config, pixels, labels),
    }
    figures: dict[str, Any] = {"seconds": seconds}
    for method, predict in methods.items():
        for source, held_out in score(config, data, fold, predict, by_pixel=method != "network").items():
            figures[f"{method}/{source}/counts"] = held_out.counts
            if method == "network":
                figures[f"{method}/{source}/logs"] = np.concatenate(held_out.logs)
                figures[f"{method}/{source}/labels"] = np.concatenate(held_out.labels)
    save(figures, file)


def compare_widths(name: str, config: TrainConfig, folds: list[int], cache: Path) -> None:
    """Train the recipe with other widths, and print how good and how fast they are; every part counts alike."""
    assert config.finetune is not None
    data: LabelledChips | None = None
    print(f"widths | parts {folds}: accuracy (mean IoU), merged | sees | file | speed of one core")
    for label, widths in WIDTHS[name].items():
        changed = with_widths(config, widths)
        total = HeldOut(config.finetune.classes)
        for fold in folds:
            file = cache / f"{name}-{'-'.join(map(str, widths))}-{config.seed}-{fold}.npz"
            if not file.exists():
                data = data or read_chips(config.finetune, config.network)
                network = train_fold(changed, data, fold, "network")
                scores = score(changed, data, fold, functools.partial(pixel_logs, network))
                save({source: held_out.counts for source, held_out in scores.items()}, file)
            with np.load(file) as figures:
                for counts in figures.values():
                    total.counts += np.rint(1e7 * counts / max(1, counts.sum())).astype(np.int64)
        merged = _merged(total.counts, COARSE[name])
        speed = describe_speed(changed)
        print(f"{label} {widths} | {_pair(total.counts)}, {_pair(merged)} | {speed}", flush=True)


def measure_twin(name: str, config: TrainConfig, data: LabelledChips, fold: int, file: Path) -> None:
    """Train the same network without labels, name and score it, with the places of one part left out."""
    started = time.process_time()
    network, names = train_twin(config, data, fold)
    print(f"{name} without labels, part {fold}: {time.process_time() - started:.0f} s of CPU", flush=True)
    certain = np.float32(np.eye(config.network.clusters_b))

    def predict(chip: NDArray[Any]) -> NDArray[np.float32]:
        return certain[names[pixel_logs(network, chip).argmax(0)]].transpose(2, 0, 1)

    scores = score(config, data, fold, predict)
    save({f"unlabelled/{source}/counts": held_out.counts for source, held_out in scores.items()}, file)


def save(figures: dict[str, Any], file: Path) -> None:
    """Write figures to a file that is either complete or not there."""
    with file.with_suffix(".part").open("wb") as opened:
        np.savez_compressed(opened, **figures)
    file.with_suffix(".part").rename(file)


def score(
    config: TrainConfig, data: LabelledChips, fold: int, predict: Predict, *, by_pixel: bool = False
) -> dict[str, HeldOut]:
    """Compare a method with the labels of the places left out, per source.

    Every place is scored as a whole, at all its resolutions: on a grid of pixels where there are more than enough.

    Args:
        config: The settings of the run.
        data: The labelled chips.
        fold: The places that are left out.
        predict: Returns scores of the classes for the pixels of a chip.
        by_pixel: Whether it sees one pixel at a time, and so needs none but those of the grid.
    """
    assert config.finetune is not None
    members = data.legend.members()
    single = members.sum(1) == 1
    class_of = np.where(single, members.argmax(1), -1)
    rng = np.random.default_rng(0)
    labelled: dict[int, list[Chip]] = {}
    for chip in data.chips:
        if (single[chip.codes_of(fold)] & (chip.codes_of(fold) > 0)).any():
            labelled.setdefault(chip.source, []).append(chip)
    results: dict[str, HeldOut] = {}
    for source, chips in labelled.items():
        pixels = sum(int(single[chip.codes_of(fold)].sum()) for chip in chips)
        step = math.ceil(math.sqrt(pixels / MOST_PIXELS))
        held_out = results.setdefault(config.finetune.sources[source].name, HeldOut(config.finetune.classes))
        for chip in chips:
            codes = chip.codes_of(fold)[::step, ::step]
            chosen = single[codes] & (codes > 0)
            values = chip.pixels[:, ::step, ::step] if by_pixel else chip.pixels
            logs = predict(values) if by_pixel else predict(values)[:, ::step, ::step]
            held_out.add(logs[:, chosen].T, class_of[codes[chosen]], rng)
        held_out.counts *= step**2  # each pixel of the grid stands for those around it
    return results


def forest_pixels(config: TrainConfig, data: LabelledChips, fold: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values `[M, bands]` and classes `[M]` of labelled pixels that are not left out."""
    pixels, codes, _ = Crops(data, config, fold).single_pixels(CROPS, PIXELS_PER_CROP)
    members = data.legend.members()
    single = (members.sum(1) == 1)[codes.numpy()]
    return pixels.numpy()[single], members.argmax(1)[codes.numpy()][single]


def features(config: TrainConfig, pixels: NDArray[Any]) -> NDArray[np.float32]:
    """Scaled bands `[M, bands + 2]` with NDVI and NDWI beside them."""
    scaled = (pixels.astype(np.float32) - config.network.offset) * np.float32(config.network.scale)
    red, green, _, nir = scaled.T[:4]
    ndvi = (nir - red) / np.maximum(nir + red, 1e-3)
    ndwi = (green - nir) / np.maximum(green + nir, 1e-3)
    return np.column_stack([scaled, ndvi, ndwi]).astype(np.float32)


def forest(config: TrainConfig, pixels: NDArray[Any], labels: NDArray[Any]) -> Predict:
    """Fit a random forest on single pixels."""
    trees = RandomForestClassifier(TREES, max_depth=DEPTH, min_samples_leaf=5, random_state=0, n_jobs=1)
    trees.fit(features(config, pixels), labels)

    def predict(chip: NDArray[Any]) -> NDArray[np.float32]:
        flat = features(config, chip.reshape(len(chip), -1).T)
        odds = np.zeros((len(flat), config.network.clusters_b), np.float32)
        for start in range(0, len(flat), 200_000):
            odds[start : start + 200_000, trees.classes_] = trees.predict_proba(flat[start : start + 200_000])
        return np.log(odds.T.reshape(-1, *chip.shape[1:]) + 1e-6)

    return predict


def rule(name: str, config: TrainConfig, pixels: NDArray[Any], labels: NDArray[Any]) -> Predict:
    """Make the rule on NDVI and NDWI: the first class of each group stands for the group."""
    groups = list(GROUPS[name].values())
    group_of = np.array([next(g for g, members in enumerate(groups) if k in members) for k in range(5)])
    indices, wanted = features(config, pixels)[:, -2:], group_of[labels]

    def decide(ndvi: NDArray[Any], ndwi: NDArray[Any], limits: tuple[float, float]) -> NDArray[np.intp]:
        return np.where(ndvi > limits[0], 0, np.where(ndwi > limits[1], 2, 1))

    grid = [(a, b) for a in np.linspace(-0.1, 0.4, 26) for b in np.linspace(-0.3, 0.4, 15)]
    limits = RULE[name] or max(grid, key=lambda pair: float((decide(*indices.T, pair) == wanted).mean()))

    def predict(chip: NDArray[Any]) -> NDArray[np.float32]:
        flat = features(config, chip.reshape(len(chip), -1).T)
        chosen = np.array([members[0] for members in groups])[decide(flat[:, -2], flat[:, -1], limits)]
        return np.float32(np.eye(5)[chosen].T.reshape(5, *chip.shape[1:]))

    return predict


def report(name: str, config: TrainConfig, files: list[Path]) -> None:
    """Print the tables of the parts measured so far."""
    assert config.finetune is not None
    classes = config.finetune.classes
    totals: dict[tuple[str, str], HeldOut] = {}
    for file in files:
        with np.load(file) as figures:
            for key in figures.files:
                if key.endswith("/counts"):
                    method, source, _ = key.split("/")
                    held_out = totals.setdefault((method, source), HeldOut(classes))
                    held_out.counts += figures[key]
                    if method == "network":
                        held_out.logs.append(figures[f"{method}/{source}/logs"])
                        held_out.labels.append(figures[f"{method}/{source}/labels"])
    everything = HeldOut(classes)
    for (method, _), held_out in totals.items():
        if method == "network":
            everything.logs += held_out.logs
            everything.labels += held_out.labels
    temperature = config.finetune.temperature or everything.temperature()
    print(f"\n{name}: places left out, temperature {temperature:.2f}; classes: {', '.join(classes)}")
    print(f"model of 0.1.0 on other places: {EARLIER[name]}")
    print(
        "source | method | accuracy, mean IoU | merged | NDVI groups | precision | recall | calibration error"
    )
    alike: dict[tuple[str, str], HeldOut] = {}
    for method in dict.fromkeys(method for method, _ in totals):
        pooled = HeldOut(classes)
        for (kind, _), held_out in totals.items():
            if kind == method:  # every source counts alike, however much of it is labelled
                share = held_out.counts / max(1, held_out.counts.sum())
                pooled.counts += np.rint(1e7 * share).astype(np.int64)
        alike[method, "all alike"] = pooled
    totals.update(alike)
    for (method, source), held_out in sorted(totals.items(), key=lambda item: item[0][::-1]):
        print(_row(name, source, method, held_out, temperature))
    if name == "aerial":
        report_flair3({key: held_out.counts for key, held_out in totals.items() if key[1] in FLAIR_ZONES})


def report_flair3(counts: dict[tuple[str, str], Counts]) -> None:
    """Print how good methods are in three classes, with every zone counted alike and with every pixel counted alike.

    What is labelled water is left out; other ground that is called water is wrong.
    """
    print("\nground, building, vegetation: accuracy (mean IoU); building precision, recall")
    for method in dict.fromkeys(method for method, _ in counts if method != "rule"):
        zones = {source: three_classes(table) for (kind, source), table in counts.items() if kind == method}
        alike = sum(np.rint(1e7 * table / table.sum()).astype(np.int64) for table in zones.values())
        zones["zones alike"] = np.asarray(alike)
        zones["pixels alike"] = sum(zones[zone] for zone in list(zones)[:-1])
        for zone, table in zones.items():
            right, called, labelled = (int(part[1]) for part in (np.diag(table), table.sum(0), table.sum(1)))
            shares = [_percent(right / whole if whole else None) for whole in (called, labelled)]
            print(" | ".join([zone, method, _pair(table), *shares]))


def three_classes(counts: Counts) -> Counts:
    """Return what was counted in ground, building, vegetation and, as a fourth class that no label has, water."""
    merged = _merged(counts, (*FLAIR_3, (4,)))
    merged[3] = 0
    return merged


def _row(name: str, source: str, method: str, held_out: HeldOut, temperature: float) -> str:
    merged = _merged(held_out.counts, COARSE[name])
    grouped = _merged(held_out.counts, tuple(GROUPS[name].values()))
    cells = [source, method]
    cells.append("" if method == "rule" else _pair(held_out.counts))
    cells += ["" if method == "rule" else _pair(merged), _pair(grouped)]
    if method == "rule":
        return " | ".join([*cells, "", "", ""])
    cells += [
        " ".join(_percent(value) for value in values) for values in (held_out.precision(), held_out.recall())
    ]
    calibrated = method == "network" and held_out.logs
    cells.append(f"{100 * held_out.calibration_error(temperature):.1f}" if calibrated else "")
    return " | ".join(cells)


def _merged(counts: Counts, groups: tuple[tuple[int, ...], ...]) -> Counts:
    table = np.zeros((len(groups), len(counts)), np.int64)
    for row, members in enumerate(groups):
        table[row, list(members)] = 1
    return np.asarray(table @ counts @ table.T)


def _pair(counts: Counts) -> str:
    held_out = HeldOut(tuple(map(str, range(len(counts)))))
    held_out.counts = counts
    return f"{100 * held_out.accuracy():.1f} ({100 * held_out.mean_iou():.1f})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


if __name__ == "__main__":
    main()
