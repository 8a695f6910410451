"""How good the bundled models are on places that they have not seen, beside simpler methods.

    python benchmarks/bundled.py score satellite DATA [--cache FOLDER] [--fold N]...
    python benchmarks/bundled.py score aerial DATA
    python benchmarks/bundled.py widths satellite DATA [--cache FOLDER] [--fold N]...

`score` trains the recipe once for each part of the cross-validation over places, scores it on the places left out, and
prints a table per source: accuracy, mean IoU, precision and recall of each class, and how far the confidence can be
trusted.
Beside it, on the same places: a rule on NDVI and NDWI, a random forest on single pixels that learnt from the same
labels, and the unsupervised twin, the same network trained by IIC alone and named by the same labels. What was measured
is kept in FOLDER, so that parts can be run one at a time, and a second call only prints.

`widths` trains the recipe with narrower and wider networks, and prints how good each is on the places left out, its
size, and its speed in ONNX Runtime on one thread.

DATA holds the folders flair and pool (docs/models.md says what they are). This only measures: `iic-train recipe NAME
--data DATA` trains the models.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from twin import train_twin

from iic_export.graph import to_onnx, with_outputs
from iic_export.head import SegmentationHead
from iic_train.config import TrainConfig
from iic_train.finetune.crops import Crops
from iic_train.finetune.heldout import HeldOut, pixel_logs
from iic_train.finetune.pixels import train_fold
from iic_train.finetune.samples import LabelledChips, read_chips
from iic_train.models.networks import Network
from iic_train.recipes.learnt import learnt_config
from iic_train.recipes.named import LEARNT_RECIPES

CROPS, PIXELS_PER_CROP = 1500, 60
"""What the random forest learns from: as many labelled pixels of as many crops, drawn as for the network."""
TREES, DEPTH = 60, 16
MOST_PIXELS = 5_000_000
"""Number of pixels of a source, in pieces drawn at random, after which no more pieces are scored in a part."""
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
WIDTHS = {
    "half": (16, 8, 8, 16, 24, 32),
    "as the recipe": (32, 16, 16, 32, 48, 64),
    "wide pixel path": (64, 32, 16, 32, 48, 64),
    "double": (64, 32, 32, 64, 96, 128),
}
"""Channels of the two layers that see one pixel, and of the levels of the context."""
SPEED_SIDE, SPEED_RUNS = 1024, 5
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
        compare_widths(config, folds, options.cache)
        return
    for fold in folds:
        file = options.cache / f"{options.name}-{options.seed}-{fold}.npz"
        if not file.exists():
            data = data or read_chips(config.finetune, config.network)
            measure_fold(options.name, config, data, fold, file)
    report(
        options.name, config, [options.cache / f"{options.name}-{options.seed}-{fold}.npz" for fold in folds]
    )


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
    if name == "satellite":
        methods["twin"] = twin(config, data, fold)
    figures: dict[str, Any] = {"seconds": seconds}
    for method, predict in methods.items():
        for source, held_out in score(config, data, fold, predict).items():
            figures[f"{method}/{source}/counts"] = held_out.counts
            if method == "network":
                figures[f"{method}/{source}/logs"] = np.concatenate(held_out.logs)
                figures[f"{method}/{source}/labels"] = np.concatenate(held_out.labels)
    with file.with_suffix(".part").open("wb") as opened:
        np.savez_compressed(opened, **figures)
    file.with_suffix(".part").rename(file)


def twin(config: TrainConfig, data: LabelledChips, fold: int) -> Predict:
    """Make the network that learnt without labels; a pixel has the class of its cluster."""
    network, names = train_twin(config, data, fold)
    return lambda chip: np.float32(
        np.eye(config.network.clusters_b)[names[pixel_logs(network, chip).argmax(0)]]
    ).transpose(2, 0, 1)


def compare_widths(config: TrainConfig, folds: list[int], cache: Path) -> None:
    """Print how good, how large and how fast the recipe's network is at several widths."""
    assert config.finetune is not None
    data: LabelledChips | None = None
    print("network | widths | first source | all sources alike | kB | Mpx/s")
    for title, widths in WIDTHS.items():
        changed = replace(config, network=replace(config.network, widths=widths))
        file = cache / f"widths-{'-'.join(map(str, widths))}-{config.seed}-{'-'.join(map(str, folds))}.npz"
        if not file.exists():
            data = data or read_chips(config.finetune, config.network)
            counts: dict[str, Counts] = {}
            for fold in folds:
                network = train_fold(changed, data, fold, "network")
                for source, held_out in score(changed, data, fold, _predict(network)).items():
                    counts[source] = counts.get(source, 0) + held_out.counts
            np.savez(file, **counts, **{"/": network_cost(network)})
        with np.load(file) as figures:
            size, speed = figures["/"]
            tables = {source: figures[source] for source in figures.files if source != "/"}
        first = tables[config.finetune.sources[0].name]
        cells = [title, " ".join(map(str, widths)), _pair(first), _pair(_alike(list(tables.values())))]
        print(" | ".join([*cells, f"{size:.0f}", f"{speed:.1f}"]), flush=True)


def _predict(network: Network) -> Predict:
    return lambda chip: pixel_logs(network, chip)


def network_cost(network: Network) -> tuple[float, float]:
    """Return the size of the graph in kB and its speed in Mpx/s on one thread, the best of several runs."""
    model = with_outputs(to_onnx(SegmentationHead(network), 4, "int16", (64, 64)), ["labels"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    image = np.random.default_rng(0).integers(0, 4000, (1, 4, SPEED_SIDE, SPEED_SIDE)).astype(np.int16)
    seconds = []
    for _ in range(SPEED_RUNS):
        started = time.process_time()
        session.run(["labels"], {"image": image})
        seconds.append(time.process_time() - started)
    return model.ByteSize() / 1e3, SPEED_SIDE**2 / 1e6 / min(seconds)


def score(config: TrainConfig, data: LabelledChips, fold: int, predict: Predict) -> dict[str, HeldOut]:
    """Compare a method with the labels of the places left out, per source; an averaged level is a source too."""
    assert config.finetune is not None
    members = data.legend.members()
    single = members.sum(1) == 1
    class_of = np.where(single, members.argmax(1), -1)
    rng = np.random.default_rng(0)
    results: dict[str, HeldOut] = {}
    scored: dict[str, int] = {}
    for number in rng.permutation(len(data.chips)):
        chip = data.chips[number]
        source = config.finetune.sources[chip.source].name
        codes = chip.codes_of(fold)
        chosen = single[codes] & (codes > 0)
        if chosen.any() and scored.get(source, 0) < MOST_PIXELS:
            scored[source] = scored.get(source, 0) + int(chosen.sum())
            held_out = results.setdefault(source, HeldOut(config.finetune.classes))
            held_out.add(predict(chip.pixels)[:, chosen].T, class_of[codes[chosen]], rng)
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
    for method in {method for method, _ in totals}:
        pooled = HeldOut(classes)
        pooled.counts = _alike([held_out.counts for (kind, _), held_out in totals.items() if kind == method])
        totals[method, "all alike"] = pooled
    for (method, source), held_out in sorted(totals.items(), key=lambda item: item[0][::-1]):
        print(_row(name, source, method, held_out, temperature))


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


def _alike(tables: list[Counts]) -> Counts:
    """Add tables so that every source counts alike, however much of it is labelled."""
    return np.sum([np.rint(1e7 * counts / max(1, counts.sum())) for counts in tables], 0).astype(np.int64)


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
