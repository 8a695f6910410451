"""Figure 6 on MNIST: accuracy against the share of labels and against the number of clusters, as a page.

    python benchmarks/figure6.py DATA [--clusters 10 20 40 80] [--epochs 1] [--steps 200] [--output figure6.html]

Semi-supervised overclustering with the network and the views of mnist-small: one head with five sub-heads, trained on
the 60,000 training images without labels, one run per number of clusters. Labels of the training part then say which
class a cluster is; accuracy is that on the 10,000 test images. Runs that are in the folder are not trained again.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from iic_train.config import TrainConfig
from iic_train.evaluation.evaluate import EVALUATION, evaluate
from iic_train.evaluation.plots import Series, colours, line_chart
from iic_train.evaluation.report import chart_page
from iic_train.recipes.registry import config_of
from iic_train.runs import load_run
from iic_train.trainer import resume, train


def main() -> None:
    """Train what is missing, print the figures and draw them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--clusters", type=int, nargs="+", default=[10, 20, 40, 80])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument(
        "--steps", type=int, help="steps of 300 pairs per epoch; all of the data, 400, by default"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--output", type=Path, default=Path("figure6.html"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = {
        clusters: scored(settings(options.data, clusters, options.epochs, options.steps), options.runs)
        for clusters in sorted(options.clusters)
    }
    fractions = [share["fraction"] for share in next(iter(records.values()))["fewer_labels"]]
    print(
        "\naccuracy, % +- deviation of ten draws\nclusters" + "".join(f"{100 * f:>13g} %" for f in fractions)
    )
    for clusters, record in records.items():
        cells = (f"{100 * s['accuracy']:9.2f} +-{100 * s['deviation']:4.1f}" for s in record["fewer_labels"])
        print(f"{clusters:<8}" + "".join(cells))
    options.output.write_text(page(records))
    print(options.output)


def settings(data: Path, clusters: int, epochs: int, steps: int | None) -> TrainConfig:
    """Return the settings of a run: those of mnist-small with one head, on the training part alone."""
    small = config_of("mnist-small")
    return replace(
        small,
        preset="figure6",
        data=replace(small.data, root=str(data.absolute()), overcluster=True),
        network=replace(small.network, clusters_b=clusters, clusters_a=None),
        passes=("b",),
        epochs=epochs,
        steps=steps,
    )


def scored(config: TrainConfig, runs: Path) -> dict[str, Any]:
    """Return the evaluation of a run, which is trained or finished first if it is not there."""
    name = f"figure6-{config.network.clusters_b}"
    folder = runs / name
    if not (folder / EVALUATION).exists():
        started = time.process_time()
        if folder.exists():
            resume(folder, device="cpu")
        else:
            train(config, runs=runs, name=name, device="cpu")
        evaluation = evaluate(load_run(folder))
        seconds = time.process_time() - started
        print(
            f"{config.network.clusters_b} clusters: {evaluation.accuracy:.2%}, {seconds:.0f} s of CPU",
            flush=True,
        )
    record: dict[str, Any] = json.loads((folder / EVALUATION).read_text())
    return record


def page(records: dict[int, dict[str, Any]]) -> str:
    """Draw both charts."""
    palette = colours(len(records))
    lines, totals = [], []
    for (clusters, record), colour in zip(records.items(), palette, strict=True):
        fewer = record["fewer_labels"]
        points = [(index, share["accuracy"]) for index, share in enumerate(fewer)]
        lines.append(Series(f"{clusters} clusters", points, colour))
        totals.append(record["accuracy"])
    ticks = [(index, f"{100 * share['fraction']:g} %") for index, share in enumerate(fewer)]
    by_clusters = Series("all labels", list(enumerate(totals)), palette[0])
    charts = [
        line_chart("Accuracy", lines, x_label="share of the labels", x_ticks=ticks, percent=True),
        line_chart(
            "Accuracy",
            [by_clusters],
            x_label="number of clusters",
            x_ticks=[(index, f"{clusters}") for index, clusters in enumerate(records)],
            percent=True,
        ),
    ]
    return chart_page("MNIST: fewer labels, more clusters", charts)


if __name__ == "__main__":
    main()
