"""The report of a run: what was trained, how it went and what came out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from iic_geotools.files import write_atomically
from iic_train.data.base import Dataset
from iic_train.evaluate import EVALUATION, run_dataset
from iic_train.page import HeadEpoch, Story, cluster_pictures, map_pictures, report_page, simplex_sample
from iic_train.pairs import ImagePairs
from iic_train.runs import Choice, Run, Which

REPORT = "report.html"


def write_report(run: Run, dataset: Dataset | None = None, *, which: Which = "best") -> Path:
    """Write `report.html` into a run's folder and return its path.

    Pictures are made with the run's weights on a few images of its data; the result is that of
    `iic-train evaluate`, if it was called.

    Args:
        run: A run that finished an epoch.
        dataset: Images to show; by default what the run was trained on.
        which: Weights of the epoch with the lowest loss, or of the last one.
    """
    dataset = dataset or run_dataset(run)
    file, path, choice = run.path / EVALUATION, run.path / REPORT, run.choice(which)
    evaluation = json.loads(file.read_bytes()) if file.is_file() else None
    story = Story(
        title=run.id,
        facts=_run_facts(run, choice, dataset),
        heads=_run_heads(run),
        chosen=choice.sub_head,
        evaluation=evaluation,
        pictures=_run_pictures(run, dataset, which, _cluster_names(run, evaluation)),
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
    """Numbers of the clusters and, once labels named them, their classes."""
    names = [f"cluster {index}" for index in range(run.config.network.clusters_b)]
    if evaluation is None:
        return names
    mapping = evaluation["sub_heads"][evaluation["chosen"]]["mapping"]
    classes = [evaluation["classes"][index] if index >= 0 else "no class" for index in mapping]
    return [f"{name}: {found}" for name, found in zip(names, classes, strict=True)]


@torch.inference_mode()
def _run_pictures(run: Run, dataset: Dataset, which: Which, names: list[str]) -> list[str]:
    network, pairs, sub_head = run.network(which), run.config.pairs, run.choice(which).sub_head
    if not isinstance(pairs, ImagePairs):
        return map_pictures(
            lambda raw: network(raw)[0, sub_head].argmax(0),
            dataset.test if len(dataset.test) else dataset.train_b,
            names,
            lambda raw: network.scale(torch.from_numpy(np.ascontiguousarray(raw))).numpy(),
        )
    chosen = [int(index) for index in simplex_sample(dataset.test)]
    probabilities = []
    for start in range(0, len(chosen), 500):
        raw = np.stack([dataset.test.image(index) for index in chosen[start : start + 500]])
        views = pairs.evaluation(network.scale(torch.from_numpy(raw)))
        probabilities.append(network.classify(views)[:, sub_head].numpy())
    labels = [dataset.test.label(index) for index in chosen]
    known = None if any(label is None for label in labels) else np.array(labels)
    return cluster_pictures(np.concatenate(probabilities), known, dataset.classes)
