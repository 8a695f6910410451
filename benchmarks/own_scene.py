"""Your own scene without a label: `iic-train rasters SCENE --classes K` next to k-means, over scenes of many kinds.

    python benchmarks/own_scene.py DATA [--scenes zone1 raleigh ...] [--seeds 0 1 2] [--cache FILE] [--features]

DATA holds the folders flair, sentinel2 and pool. Every scene is trained with the defaults alone, for K = number of
classes and twice that; clusters are named by their majority class, on all labelled pixels at the resolution that the
defaults read at. k-means sees standardised pixel values of the same pixels. Scenes were chosen by their source, before
any of them was scored. Clusters are found before features are learnt (docs/training.md), which --features asks for.
Finished rows are kept in the cache, so that the command can be interrupted.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import torch

from iic_train.evaluation.evaluate import evaluate
from iic_train.evaluation.kmeans import kmeans_baseline
from iic_train.recipes.rasters import train_rasters

FLAIR = ("ground=2,3,4", "building=1,18", "vegetation=6,7,8,9,10,11,12,15,16,17", "water=5")
POLYGONS = ("built-up=1", "vegetation=2", "water=3")
WORLDCOVER = ("tree=10,95", "low vegetation=20,30,40,90,100", "built-up=50", "bare=60", "snow=70", "water=80")
CHESAPEAKE = ("water=1", "trees=2", "low vegetation=3", "barren=4", "impervious=5,6")
RAREST = 0.01
"""Share of the labelled pixels from which on a class counts: rarer ones make the mean a lottery."""
LARGEST = 0.9
"""Where a class has a larger share, every cluster takes its name, whatever the method."""


@dataclass(frozen=True)
class LabelledScene:
    """One scene, perhaps in several files, with its labels.

    Attributes:
        name: What the table calls it.
        scenes: Pattern of the rasters under the data folder.
        labels: Pattern of their label rasters.
        classes: Classes of the label values.
    """

    name: str
    scenes: str
    labels: str
    classes: tuple[str, ...]


SCENES = (
    *(LabelledScene(f"flair {zone}", f"flair/{zone}_rgbir.tif", f"flair/{zone}_label.tif", FLAIR)
      for zone in ("zone1", "zone3", "zone0part", "zone2part")),
    *(LabelledScene(f"sentinel2 {n}", f"sentinel2/{n}_rgbn.tif", f"sentinel2/{n}_label.tif", POLYGONS)
      for n in ("06", "29", "33")),  # the first three by name
    *(LabelledScene(f"hls {place}", f"pool/hls_worldcover/{place}_*_rgbn.tif",
                    f"pool/hls_worldcover/{place}_*_label.tif", WORLDCOVER) for place in ("C06", "C07")),
    LabelledScene("landsat7 raleigh", "pool/landsat7_nc/*_rgbn.tif", "pool/landsat7_nc/*_label.tif",
                  ("developed=1", "crop=2", "herbaceous=3", "shrub=4", "forest=5", "water=6")),
    LabelledScene("landsat8 zion", "pool/landsat8_zion/*_rgbn.tif", "pool/landsat8_zion/*_label.tif",
                  ("developed=21,22,23,24", "barren=31", "forest=41,42,43", "shrub=52", "grass=71", "crop=81,82")),
    LabelledScene("landsat8 chesapeake", "pool/landsat8_chesapeake/*leafon_rgbn.tif",
                  "pool/landsat8_chesapeake/*leafon_label.tif", CHESAPEAKE),
    LabelledScene("landsat ontario", "pool/landsat_ontario/col_6642*_rgbn.tif",
                  "pool/landsat_ontario/col_6642*_label.tif",
                  ("water=2", "fire=3", "wetland=4,6", "shrub=5", "forest=7,8", "rock=10", "grass=12", "farm=15")),
    LabelledScene("naip chesapeake", "pool/naip_chesapeake/*_1_?_rgbn.tif", "pool/naip_chesapeake/*_1_?_label.tif",
                  CHESAPEAKE),
)  # fmt: skip


def score(scene: LabelledScene, data: Path, times: int, seed: int, features: bool) -> dict[str, Any]:
    """Train on one scene with the defaults, and k-means next to it; K is `times` the number of classes that occur."""
    scenes, labels = (sorted(map(str, data.glob(pattern))) for pattern in (scene.scenes, scene.labels))
    if not scenes or len(scenes) != len(labels):
        raise SystemExit(f"{data} has {len(scenes)} scenes and {len(labels)} label rasters of {scene.name}.")
    settings = {"seed": seed, **({"epochs": 4, "steps": 75} if features else {})}
    with tempfile.TemporaryDirectory() as folder:
        shares = [share(name, labels) for name in scene.classes]
        present = [name for name, part in zip(scene.classes, shares, strict=True) if part >= RAREST]
        clusters = times * len(present)
        started = time.process_time()
        run = train_rasters(
            scenes,
            clusters,
            **settings,
            labels=labels,
            label_class=present,
            runs=Path(folder),
            name="run",
            device="cpu",
        )
        seconds = time.process_time() - started
        dataset = run.dataset()
        ours = evaluate(run, dataset=dataset).sub_heads[0].many_to_one
        plain = (
            kmeans_baseline(dataset, clusters=clusters, overcluster=True, seed=seed).sub_heads[0].many_to_one
        )
    return {
        "scene": scene.name, "largest": max(shares), "times": times, "seed": seed, "clusters": clusters,
        "seconds": seconds,
        "ours": [100 * ours.accuracy, 100 * ours.mean_iou], "kmeans": [100 * plain.accuracy, 100 * plain.mean_iou],
    }  # fmt: skip


def share(group: str, labels: list[str]) -> float:
    """Return the share of the labelled pixels that belong to a class."""
    import numpy as np
    import rasterio

    values = [int(value) for value in group.split("=")[1].split(",")]
    inside = total = 0
    for path in labels:
        with rasterio.open(path) as raster:
            content = raster.read(1)
        inside, total = inside + int(np.isin(content, values).sum()), total + int((content > 0).sum())
    return inside / total


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print accuracy and mean IoU of both, mean over seeds, and how often ours is above."""
    print(
        f"{'scene':<22}{'K':>4}  {'k-means':>13}  {'iic-train rasters':>18}  {'gain':>6}  {'dev':>4}  seconds"
    )
    gains: dict[str, list[float]] = {}
    for name, times in sorted({(row["scene"], row["times"]) for row in rows}):
        own = [row for row in rows if (row["scene"], row["times"]) == (name, times)]
        plain, ours = ([mean(row[kind][i] for row in own) for i in (0, 1)] for kind in ("kmeans", "ours"))
        deviation = pstdev(row["ours"][1] for row in own)
        gains.setdefault(name, []).append(ours[1] - plain[1])
        print(
            f"{name:<22}{own[0]['clusters']:>4}  {plain[0]:>6.1f} {plain[1]:>6.1f}  {ours[0]:>10.1f} {ours[1]:>7.1f}"
            f"  {ours[1] - plain[1]:>+6.1f}  {deviation:>4.1f}  {mean(row['seconds'] for row in own):.0f}"
        )
    mixed = {row["scene"] for row in rows if row["largest"] < LARGEST}
    for title, names in (("all scenes", set(gains)), (f"no class over {LARGEST:.0%}", mixed)):
        scenes = [mean(gains[name]) for name in names]
        above = sum(gain > 0.05 for gain in scenes)
        print(
            f"{title}: mean gain in mean IoU {mean(scenes):+.1f}; above k-means on {above} of {len(scenes)}"
        )


def main() -> None:
    """Score what is not in the cache yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--scenes", nargs="+", default=[], help="parts of names")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cache", type=Path, default=Path("own_scene.jsonl"))
    parser.add_argument("--features", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = (
        [json.loads(line) for line in options.cache.read_text().splitlines()]
        if options.cache.exists()
        else []
    )
    known = {(row["scene"], row["times"], row["seed"]) for row in rows}
    for scene in SCENES:
        if options.scenes and not any(part in scene.name for part in options.scenes):
            continue
        for times in (1, 2):
            for seed in options.seeds:
                if (scene.name, times, seed) not in known:
                    row = score(scene, options.data, times, seed, options.features)
                    rows.append(row)
                    with options.cache.open("a") as cache:
                        cache.write(json.dumps(row) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
