"""Where the same few images stand between the clusters as training goes on: figure 3 of the paper.

The trainer keeps them before training and after epochs 1, 2, 4, 8 and so on, so that a run of any length keeps a
handful, in `simplex.jsonl` of its folder: one line per epoch,

    {"epoch": 4, "points": [[[0.1, -0.93], ..], ..]}

with a point for each image and sub-head of head B. A point is the mean of the corners of a regular polygon, one per
cluster, weighted by the probabilities of the clusters.
"""

import json

import numpy as np
import torch
from numpy.typing import NDArray

from iic_train.data.base import Dataset, Images
from iic_train.evaluation.plots import simplex_corners
from iic_train.models.networks import Network
from iic_train.runs import Run, append_line
from iic_train.views.pairs import central_views
from iic_train.views.settings import ImagePairs

SIMPLEX = "simplex.jsonl"
KEPT_IMAGES = 400
"""Number of images whose place is kept."""


def keep_simplex(run: Run, network: Network, dataset: Dataset, epoch: int) -> None:
    """Keep where a few images stand after an epoch, if this is one of the epochs to keep."""
    if run.config.dense or epoch & (epoch - 1) or not len(dataset.test):
        return
    indices = even_sample(dataset.test, KEPT_IMAGES)
    probabilities = cluster_probabilities(network, run.config.pairs, dataset.test, indices)
    points = probabilities.transpose(1, 0, 2) @ simplex_corners(probabilities.shape[2])
    row = {"epoch": epoch, "points": np.round(points, 3).tolist()}
    append_line(run.path / SIMPLEX, row)


def read_simplex(run: Run) -> dict[int, NDArray[np.float64]]:
    """Return the points `[sub-heads, images, 2]` of each epoch that was kept, in order."""
    path = run.path / SIMPLEX
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    # A run that was interrupted and resumed may have an epoch twice; the later one was trained on.
    kept = {int(row["epoch"]): np.array(row["points"]) for row in rows}
    return dict(sorted(kept.items()))


def even_sample(images: Images, most: int) -> NDArray[np.int64]:
    """Return indices of at most `most` images spread evenly over a partition."""
    return np.unique(np.linspace(0, len(images) - 1, min(most, len(images)), dtype=np.int64))


@torch.no_grad()
def cluster_probabilities(
    network: Network, pairs: object, images: Images, indices: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the probabilities `[images, sub-heads, clusters]` of head B for these images, in eval mode."""
    assert isinstance(pairs, ImagePairs)
    network.eval()
    device = next(network.parameters()).device
    parts = []
    for start in range(0, len(indices), 500):
        raw = np.stack([images.image(int(index)) for index in indices[start : start + 500]])
        views = central_views(pairs, network.scale(torch.from_numpy(raw).to(device)))
        parts.append(network.classify(views).cpu().numpy())
    return np.concatenate(parts)
