"""What the paper compares IIC with, and IIC itself, in one protocol and as one table.

    python benchmarks/baselines.py mnist-small DATA [--epochs 3] [--only random kmeans] [--run RUN] [--results FOLDER]
    python benchmarks/baselines.py flair3 FLAIR [--epochs 4]

The first scores the baselines of table 1 on a data set of images (any preset or recipe on images); the second those
of table 4 on FLAIR-3, with the trunk, views, windows and steps of the recipe flair3, which it trains first (a minute
of one core). `--epochs` is for baselines that learn, `--run` a trained run to print next to them. What is in FOLDER
already is not computed again, so an interrupted table goes on where it stopped.

Centres come from all images (`kmeans`), from 10,000 images joined in a graph (`spectral`), or from 200,000 pixels.
Accuracy is that of clusters matched one to one with classes over all labelled images or pixels; FLAIR-3 at the 0.8 m of
the recipe. The column of the paper is that of MNIST or CIFAR10 as it prints them; for FLAIR-3 it is Potsdam-3, other
imagery with another network, which only says how the rows compare there.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from iic_research.baselines import OF_IMAGES, OF_PIXELS, score_baseline
from iic_train.config import TrainConfig
from iic_train.data.base import Dataset
from iic_train.data.training_data import open_dataset_of
from iic_train.evaluation.evaluate import Evaluation, evaluate
from iic_train.recipes.recipe import Recipe
from iic_train.recipes.registry import RECIPES, config_of, train_recipe
from iic_train.runs import Run, load_run

ROWS: dict[str, dict[str, Any]] = {
    "random": {},
    "kmeans": {"standardise": False},
    "kmeans-standardised": {"standardise": True},
    "spectral": {},
    "triplets": {},
    "sift": {},
    "doersch": {},
    "isola": {},
    "deepcluster": {},
}
PAPER = {
    "mnist": {
        "random": 26.1,
        "kmeans": 57.2,
        "spectral": 69.6,
        "triplets": 52.5,
        "deepcluster": 65.6,
        "IIC": 99.2,
    },
    "cifar10": {
        "random": 13.1,
        "kmeans": 22.9,
        "spectral": 24.7,
        "triplets": 20.5,
        "deepcluster": 37.4,
        "IIC": 61.7,
    },
    "rasters": {
        "random": 38.2,
        "kmeans-standardised": 45.7,
        "sift": 38.2,
        "doersch": 49.6,
        "isola": 63.9,
        "deepcluster": 41.7,
        "IIC": 65.1,
    },
}


def main() -> None:
    """Score what is missing, then print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="preset or recipe on images, or flair3")
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--sample", type=int, help="images or pixels from which k-means computes its centres")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--results", type=Path, default=Path("baselines"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.results.mkdir(parents=True, exist_ok=True)
    kept = Results(options.results, options.recipe)
    run = trained_run(options.recipe, options.data, options.run, kept)
    config = settings(options.recipe, options.data, run)
    dataset = open_dataset_of(config) if run is None else run.dataset()
    for row in options.only:
        if row in (OF_IMAGES if dataset.dense else OF_PIXELS):
            continue
        kept.keep(row, partial(score, row, replace(config, epochs=options.epochs), dataset, options.sample))
    if run is not None:
        kept.keep("IIC", partial(evaluate, run, dataset))
    print_table(kept, PAPER.get(config.data.name, {}))


def settings(recipe: str, data: Path, run: Run | None) -> TrainConfig:
    """Return the settings whose trunk and views the baselines have."""
    if run is not None:
        return run.config
    config = config_of(recipe)
    return replace(config, data=replace(config.data, root=str(data.absolute())))


def trained_run(recipe: str, data: Path, run: Path | None, kept: "Results") -> Run | None:
    """Return the run to compare with; the recipes on scenes are trained if there is none yet."""
    found = RECIPES.get(recipe)
    if run is None and isinstance(found, Recipe) and found.scenes:
        run = kept.folder / recipe
        if not (run / "evaluation.json").exists():
            started = time.process_time()
            evaluate(train_recipe(recipe, data=data, runs=kept.folder, name=recipe, device="cpu"))
            print(f"{recipe}: {time.process_time() - started:.0f} s of CPU to train", flush=True)
    return None if run is None else load_run(run)


def score(row: str, config: TrainConfig, dataset: Dataset, sample: int | None) -> Evaluation:
    """Score the baseline of a row of the table."""
    kind: Any = row.partition("-")[0]
    chosen = sample if kind == "kmeans" else None
    return score_baseline(kind, config, dataset, sample=chosen, **ROWS[row])


class Results:
    """What has been scored, a file a row."""

    def __init__(self, folder: Path, recipe: str) -> None:
        self.folder, self.recipe = folder, recipe

    def path(self, row: str) -> Path:
        """Return the file of a row."""
        return self.folder / f"{self.recipe}-{row}.json"

    def keep(self, row: str, compute: Callable[[], Evaluation]) -> None:
        """Compute a row unless its file exists."""
        if self.path(row).exists():
            return
        started = time.process_time()
        evaluation = compute()
        record = {**evaluation.to_json(), "seconds": time.process_time() - started}
        self.path(row).write_text(json.dumps(record))
        print(f"{row}: {100 * evaluation.accuracy:.2f} %", flush=True)


def print_table(kept: Results, paper: dict[str, float]) -> None:
    """Print all rows that have been scored."""
    print(f"\n{'':<22}{'accuracy, %':>12}{'mean IoU':>10}{'NMI':>8}{'paper':>8}{'CPU s':>8}")
    for row in (*ROWS, "IIC"):
        if not kept.path(row).exists():
            continue
        record = json.loads(kept.path(row).read_text())
        chosen = record["sub_heads"][record["chosen"]]
        published = f"{paper[row]:.1f}" if row in paper else ""
        print(
            f"{row:<22}{100 * record['accuracy']:>12.2f}{100 * chosen['one_to_one']['mean_iou']:>10.1f}"
            f"{chosen['nmi']:>8.3f}{published:>8}{record['seconds']:>8.0f}"
        )


if __name__ == "__main__":
    main()
