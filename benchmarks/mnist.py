"""MNIST beside the paper: how near one CPU core comes to 99.2 % without a label.

    python benchmarks/mnist.py --data DATA [--seed 0] [--epochs 20] [--published]

The published settings (6c, 700 pairs a step in five repeats, heads in turn, 3,200 epochs of 1.05 million
pairs) take days on a core. What is changed to make it minutes:

    a quarter of the width (6c-4), a sixteenth of the work
    both heads at every step: the trunk works once for two
    batches of 300 pairs in two repeats, learning rate 1e-3 falling along a cosine
    entropy weight 1.5: the ten digits are about equally common
    second views that change what a digit is *not*: slant (20 degrees), width and height (a factor of up to 1.35),
    thickness (a gamma between 1/e and e); crops of 20 and 24 px only, as 16 px often hold too little of a digit

The last line decides. With the published views, how thick a stroke is stays the same in both, and is as good a
cluster as any: seed 2 mixed thick threes with thick fives and thin with thin, and nines with fours by their width,
74.6 % after four epochs. With these views the same seed is at 96.2 % after its first epoch.

Epoch and sub-head are chosen by lowest loss. Labels are read after that, to print accuracy.

Measured, seed 0, 20 epochs, 37 minutes of one core: 97.70 % of all 70,000 (four sub-heads 97.7, one 83), NMI 0.954.
On the 10,000 test images 97.97 %: 133 of the 203 that are wrong are sevens with a bar, which go with the twos; without
them it would be 99.3 %. The sub-heads of the paper's own run are at 97.9 or 99.2 %: perhaps the same two outcomes.
Seed 1, 10 epochs, 20 minutes: 97.57 % (sub-heads 91.9 +- 7.0).
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from iic_train.baselines import baseline
from iic_train.config import TrainConfig
from iic_train.evaluate import Evaluation, evaluate, run_dataset
from iic_train.loop import train
from iic_train.pairs import ImagePairs
from iic_train.presets import preset
from iic_train.report import write_report


def quick(epochs: int) -> TrainConfig:
    """The settings above."""
    published = preset("mnist")
    pairs = published.pairs
    assert isinstance(pairs, ImagePairs)
    photometry = replace(pairs.photometry, all_gamma=1.0)
    pairs = replace(pairs, crops=(20, 24), rotated=1.0, shear=20.0, stretch=0.3, photometry=photometry)
    return replace(
        published,
        pairs=pairs,
        network=replace(published.network, name="6c-4", widths=()),
        passes=("ab",),
        batch=300,
        repeats=2,
        lr=1e-3,
        schedule="cosine",
        lamb_b=1.5,
        epochs=epochs,
    )


def row(name: str, found: Evaluation) -> str:
    """A line of the table."""
    accuracies = torch.tensor(found.accuracies) * 100
    spread = f"{accuracies.mean():.1f} ± {accuracies.std(correction=0):.1f}" if len(accuracies) > 1 else ""
    picked = f"{accuracies.max():.2f}" if len(accuracies) > 1 else ""
    chosen = found.sub_heads[found.chosen]
    return (
        f"{name:<22}{100 * found.accuracy:>10.2f}{spread:>16}{picked:>16}{chosen.nmi:>8.3f}{chosen.ari:>8.3f}"
    )


def main() -> None:
    """Train, evaluate and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--published", action="store_true", help="the published settings: days on a CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = preset("mnist") if options.published else quick(options.epochs)
    config = replace(config, data=replace(config.data, root=str(options.data)), seed=options.seed)
    started, cpu = time.perf_counter(), time.process_time()
    run = train(config, runs=options.runs)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    dataset = run_dataset(run)
    found = evaluate(run, dataset)
    page = write_report(run, dataset)
    print(f"\n{'accuracy, %':<22}{'by loss':>10}{'sub-heads':>16}{'by labels':>16}{'NMI':>8}{'ARI':>8}")
    print(f"{'paper, random network':<22}{'26.1':>10}\n{'paper, k-means':<22}{'57.2':>10}")
    print(f"{'paper, IIC':<22}{'99.2':>10}{'98.4 ± 0.7':>16}{'99.25':>16}")
    print(row("random network", baseline("random", config, dataset)))
    print(row("k-means", baseline("kmeans", config, dataset)))
    print(row("this run", found))
    pairs = len(dataset.train_b) * config.repeats * len(config.passes) * config.epochs
    print(
        f"{seconds / 60:.1f} min, {cpu / 60:.1f} min of CPU, about {pairs / cpu:,.0f} pairs a CPU second; {page}"
    )


if __name__ == "__main__":
    main()
