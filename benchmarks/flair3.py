"""FLAIR-3: land cover of two scenes by the recipes flair3 and flair3-24, without a label, compared with k-means.

    python benchmarks/flair3.py FOLDER [--seeds 0 1 2] [--clusters 3 24] [--threads 1]

FOLDER holds `zone1_rgbir.tif`, `zone3_rgbir.tif` (0.2 m, red, green, blue, infrared; IGN FLAIR#1) and their
`zoneN_label.tif`. Classes: ground, building, vegetation. Epoch and sub-head are chosen by lowest loss.
Labels are read after that: accuracy over all labelled pixels at the scenes' full resolution, clusters matched
one to one with three clusters and each to its majority class with more.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from iic_geotools.tiling import Rect
from iic_train.config import DataConfig
from iic_train.data.rasters import LabelRasters, parse_groups, raster_dataset
from iic_train.data.scene_reader import SceneReader
from iic_train.data.survey import describe_scenes
from iic_train.evaluation.evaluate import Confusion, Counts, many_to_one, one_to_one, score
from iic_train.evaluation.kmeans import kmeans_baseline
from iic_train.models.networks import Network
from iic_train.recipes.rasters import train_rasters
from iic_train.recipes.recipe import find_files
from iic_train.recipes.registry import FLAIR3, FLAIR3_24, FLAIR3_CHANNELS, FLAIR3_CLASSES
from iic_train.runs import Run

ROWS = 64


@torch.inference_mode()
def full_resolution_counts(run: Run, labels: list[str]) -> Counts:
    """Count clusters against classes over every pixel of the scenes, from upsampled probabilities."""
    data = run.config.data
    network = run.network("best").with_sub_head(run.choice("best").sub_head).eval()
    coarse = describe_scenes(data, run.config.network.channels)
    fine = describe_scenes(replace(data, reduce=1), run.config.network.channels)
    truth = LabelRasters(labels, fine, parse_groups(FLAIR3_CLASSES))
    reader = SceneReader(coarse)
    confusion = Confusion(run.config.network.clusters_b, len(FLAIR3_CLASSES))
    for index, (height, width) in enumerate(coarse.shapes):
        for row in range(0, height, ROWS):
            rows = min(ROWS, height - row)
            clusters = strip_clusters(network, reader, index, Rect(0, row, width, rows), data.reduce)
            rect = Rect(0, row * data.reduce, width * data.reduce, rows * data.reduce)
            confusion.add(clusters, torch.from_numpy(truth.read(index, rect)))
    return confusion.counts


def strip_clusters(network: Network, reader: SceneReader, index: int, strip: Rect, times: int) -> Tensor:
    """Return the clusters of a full-width strip, `times` finer than it was read."""
    height, _ = reader.scenes.shapes[index]
    margin = network.halo + network.stride
    top, bottom = max(0, strip.row - margin), min(height, strip.row + strip.height + margin)
    pixels = reader.read(index, Rect(0, top, strip.width, bottom - top)).values
    probabilities = network(torch.from_numpy(pixels)[None])[:, 0]
    fine = F.interpolate(probabilities, scale_factor=times, mode="bilinear", align_corners=False)
    first = (strip.row - top) * times
    return fine[0, :, first : first + strip.height * times].argmax(0)


def main() -> None:
    """Train once per seed, then print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--clusters", type=int, nargs="+", default=[3, 24])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    scenes = find_files(options.folder, FLAIR3.scenes)
    labels = find_files(options.folder, (FLAIR3.labels,))

    def trained(clusters: int, seed: int) -> tuple[Counts, float]:
        recipe = FLAIR3 if clusters == FLAIR3.classes else FLAIR3_24
        started = time.process_time()
        stamp = time.strftime("%Y%m%d-%H%M%S")
        run = train_rasters(
            scenes,
            clusters,
            **{**recipe.changes, "seed": seed},
            runs=options.runs,
            name=f"flair3-{clusters}-{seed}-{stamp}",
            device="cpu",
        )
        return full_resolution_counts(run, labels), time.process_time() - started

    def report(clusters: int) -> None:
        accuracies = []
        match, name = (
            (one_to_one, "one to one") if clusters == len(FLAIR3_CLASSES) else (many_to_one, "many to one")
        )
        for seed in options.seeds:
            counts, seconds = trained(clusters, seed)
            scores = score(counts, match(counts))
            accuracies.append(100 * scores.accuracy)
            shares = ", ".join(f"{share:.2f}" for share in np.sort(counts.sum(1) / counts.sum())[::-1][:6])
            recalls = ", ".join(f"{100 * (recall or 0):.0f}" for recall in scores.class_accuracy)
            print(
                f"IIC k={clusters} {name}, seed {seed}: {accuracies[-1]:.2f} %  mIoU {100 * scores.mean_iou:.1f} "
                f" per class {recalls}  cluster shares {shares}  {seconds:.0f} s of CPU",
                flush=True,
            )
        deviation = stdev(accuracies) if len(accuracies) > 1 else 0.0
        print(f"IIC k={clusters} {name}: {mean(accuracies):.2f} ± {deviation:.2f} %", flush=True)

    print("accuracy over all labelled pixels of zones 1 and 3", flush=True)
    for clusters in options.clusters:
        report(clusters)
    data = DataConfig("rasters", scenes=tuple(scenes), labels=tuple(labels), label_classes=FLAIR3_CLASSES)
    dataset = raster_dataset(data, describe_scenes(data, FLAIR3_CHANNELS))
    for clusters in options.clusters:
        baseline = kmeans_baseline(dataset, clusters=clusters, overcluster=clusters != len(FLAIR3_CLASSES))
        print(f"k-means k={clusters}: {100 * baseline.accuracy:.2f} %", flush=True)


if __name__ == "__main__":
    main()
