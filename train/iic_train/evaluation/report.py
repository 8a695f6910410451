"""The report of a run: what was trained, how training went, and the result."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iic_geotools.files import write_atomically
from iic_train.data.base import Dataset, Images
from iic_train.evaluation.evaluate import EVALUATION
from iic_train.evaluation.report_page import (
    HeadEpoch,
    Story,
    cluster_pictures,
    map_pictures,
    report_page,
    simplex_pictures,
)
from iic_train.evaluation.simplex import KEPT_IMAGES, cluster_probabilities, even_sample, read_simplex
from iic_train.finetune.heldout_figures import held_out_figures
from iic_train.runs import Checkpoint, Choice, Run
from iic_train.views.settings import ImagePairs

REPORT = "report.html"
SIMPLEX_POINTS = 2000
"""Number of images whose final place between the clusters is drawn."""


def write_report(run: Run, dataset: Dataset | None = None, *, checkpoint: Checkpoint = "best") -> Path:
    """Write `report.html` into a run's folder and return its path.

    Pictures show what the trained network makes of a few images of its data. The result is that of `evaluate`, if
    the run was evaluated.

    Args:
        run: A run that finished an epoch.
        dataset: Images to show; by default those that the run was trained on.
        checkpoint: The epoch with the lowest loss, or the last one.
    """
    dataset = dataset or run.dataset()
    file, path, choice = run.path / EVALUATION, run.path / REPORT, run.choice(checkpoint)
    evaluation = json.loads(file.read_bytes()) if file.is_file() else None
    story = Story(
        title=run.id,
        facts=_run_facts(run, choice, dataset),
        heads=_run_heads(run),
        chosen=choice.sub_head,
        evaluation=evaluation,
        held_out=held_out_figures(run),
        losses=[(row["epoch"], row["loss"]) for row in run.metrics() if not row["train"]],
        pictures=_run_pictures(run, dataset, checkpoint, _cluster_names(run, evaluation)),
        config={"config": run.config.to_json(), "data": dict(run.data), "versions": dict(run.versions)},
    )
    write_atomically(path, report_page(story).encode())
    return path


def _run_facts(run: Run, choice: Choice, dataset: Dataset) -> dict[str, str]:
    config, rows = run.config, run.metrics()
    network = config.network
    heads = f"{network.clusters_b}" + (f" + {network.clusters_a} auxiliary" if network.clusters_a else "")
    seconds = sum(row["seconds"] for row in rows)
    return {
        "data": f"{dataset.name}, {len(dataset.train_b):,} images",
        "network": network.name,
        "clusters": heads,
        "sub-heads": str(network.sub_heads),
        "epochs": f"{rows[-1]['epoch'] if rows else 0} of {config.epochs}",
        "chosen": f"epoch {choice.epoch}, sub-head {choice.sub_head}, loss {choice.loss:.3f}",
        "time": f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s",
        "speed": f"{np.mean([row['images_per_second'] for row in rows]):,.0f} images/s" if rows else "-",
        "seed": str(config.seed),
    }


def _run_heads(run: Run) -> dict[str, list[HeadEpoch]]:
    heads: dict[str, list[HeadEpoch]] = {"b": [], "a": []}
    for row in run.metrics():
        for head, values in row["train"].items():
            accuracy = row.get("accuracy")
            heads[head].append(
                HeadEpoch(
                    row["epoch"],
                    loss=values["loss"],
                    information=values["information"],
                    entropy=values["entropy"],
                    occupancy=np.array(values["occupancy"]),
                    accuracy=accuracy["sub_heads"] if accuracy and head == "b" else None,
                )
            )
    return {head: epochs for head, epochs in heads.items() if epochs}


def _cluster_names(run: Run, evaluation: Mapping[str, Any] | None) -> list[str]:
    """Return the classes of a run that learnt them, else the numbers of the clusters and, if known, their classes."""
    if run.config.finetune is not None:
        return list(run.config.finetune.classes)
    names = [f"cluster {index}" for index in range(run.config.network.clusters_b)]
    if evaluation is None:
        return names
    mapping = evaluation["sub_heads"][evaluation["chosen"]]["mapping"]
    classes = [evaluation["classes"][index] if index >= 0 else "no class" for index in mapping]
    return [f"{name}: {label}" for name, label in zip(names, classes, strict=True)]


@torch.inference_mode()
def _run_pictures(run: Run, dataset: Dataset, checkpoint: Checkpoint, names: list[str]) -> list[str]:
    network, pairs = run.network(checkpoint), run.config.pairs
    sub_head = run.choice(checkpoint).sub_head
    if not isinstance(pairs, ImagePairs):
        return map_pictures(
            lambda raw: network(raw)[0, sub_head].argmax(0),
            dataset.test if len(dataset.test) else dataset.train_b,
            names,
            lambda raw: network.scale(torch.from_numpy(np.ascontiguousarray(raw))).numpy(),
        )
    indices = even_sample(dataset.test, SIMPLEX_POINTS)
    probabilities = cluster_probabilities(network, pairs, dataset.test, indices)[:, sub_head]
    pictures = cluster_pictures(probabilities, _known_labels(dataset.test, indices), dataset.classes)
    followed = _known_labels(dataset.test, even_sample(dataset.test, KEPT_IMAGES))
    clusters = run.config.network.clusters_b
    series = simplex_pictures(read_simplex(run), sub_head, clusters, followed, dataset.classes)
    return [f'<div class="charts">{"".join([*pictures, *series])}</div>']


def _known_labels(images: Images, indices: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the classes of images, or None if one of them has none."""
    labels = [images.label(int(index)) for index in indices]
    return None if any(label is None for label in labels) else np.array(labels, np.int64)
