"""Maps from a few clicks per class: this project's way from scene to map, compared with alternatives.

    python benchmarks/clicks.py FOLDER [--scenes zone1 s88 ...] [--clicks 5 20 100] [--draws 5] [--out clicks.jsonl]
    python benchmarks/clicks.py FOLDER --guide [--draws 2] [--side 320]     prints the table of docs/own-scene.md

FOLDER holds `flair/zone1_rgbir.tif` and the like with `*_label.tif` next to them (see `SCENES`). Every method gets the
same pixels and the same clicks, drawn inside areas of one class; accuracy and mean IoU are over a sample of all other
labelled pixels. `ours` is the product as it is installed: `iic-model name` without a model, which joins features of
the bundled model that suits the scene, and `iic-segment-raster`; bundled models have learnt from some of these sources.
`ours, bank` has the scene's own features alone, and learnt nothing from anywhere. `--side` takes of each larger scene
the window with most of its rarest class. Results are appended line by line: a run that was interrupted resumes. Each
method runs in a process of its own, whose peak memory is recorded. One thread. Needs scikit-learn.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import shapely
from numpy.typing import NDArray
from pyogrio.raw import write as write_vector
from rasterio.transform import from_origin
from scipy import ndimage

from iic_geotools.scene.info import describe
from iic_runtime import name_model, segment_raster
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import choose_bundled
from iic_runtime.naming.stack import make_bank

FLAIR3 = ((2, 3, 4), (1, 18), (6, 7, 8, 9, 10, 11, 12, 15, 16, 17))
RURAL = ((1, 2, 3, 4), (6, 7, 8), (9,), (10,), (11, 12))
TOWNS = ((1,), (2,), (3,))
WILD = ((1,), (2,), (4,), (5,), (6,), (7,), (8,))
COVER = ((1,), (2,), (3,), (5, 6))
SCENES: dict[str, tuple[str, str, tuple[tuple[int, ...], ...], int, float]] = {
    "zone1": ("flair/zone1", "rgbir", FLAIR3, 4, 0.2),
    "zone3": ("flair/zone3", "rgbir", FLAIR3, 4, 0.2),
    "zone0": ("flair/zone0part", "rgbir", RURAL, 4, 0.2),
    "s46": ("sentinel2/46", "rgbn", TOWNS, 1, 5.0),
    "s88": ("sentinel2/88", "rgbn", TOWNS, 1, 5.0),
    "raleigh": ("pool/landsat7_nc/raleigh_2000", "rgbn", ((1,), (2, 3), (4,), (5,), (6,)), 1, 28.5),
    "zion": ("pool/landsat8_zion/zion", "rgbn", ((21, 22, 23), (31,), (41, 43), (42,), (52, 71)), 1, 30.0),
}
FRESH = {
    "s50": ("sentinel2/50", "rgbn", TOWNS, 1, 5.0),
    "s96": ("sentinel2/96", "rgbn", TOWNS, 1, 5.0),
    "chesapeake": ("pool/landsat8_chesapeake/m_3907833_nw_leafon", "rgbn", COVER, 1, 30.0),
    "zone2": ("flair/zone2part", "rgbir", ((2, 4), (5,), (8,)), 2, 0.2),
    "ontario": ("pool/landsat_ontario/col_6642_row_7626", "rgbn", WILD, 1, 30.0),
    "korea": ("pool/s2rgb_korea/202412_7", "rgb", ((3,), (4,), (5,), (1, 2)), 1, 10.0),
    "houston": ("pool/harvey_uav/6963", "rgb", ((1,), (5,), (6, 22), (14, 19, 26)), 1, 0.2),
    "nairobi": ("pool/oam_buildings/nairobi_z20_00", "rgb", ((0,), (1,)), 1, 0.3),
    "barnarp": ("pool/sweden_barnarp/barnarp_01_04", "rgb", ((0,), (1,)), 1, 0.3),
    "amazon": ("pool/s2rgb_amazon/Amazon_1712_26", "rgb", ((1,), (2,)), 1, 10.0),
}
"""Scenes that had no part in choosing the method's settings; its figures on the others flatter it."""
NEW_SOURCES = ("nairobi", "barnarp", "amazon")
"""Those of them whose whole source had no part in it: no other scene of the source either, except in
deciding how the bundled model is joined."""
SCENES |= FRESH
"""Files, their ending, values of each class, how many pixels are averaged into one, and their size in metres."""
METHODS = ("ours", "ours, bank", "forest, pixels", "forest, context", "k-means", "network")
GUIDE = ("ours, bank", "ours", "forest, context", "forest, pixels")
MOST_CLICKS = 100
INTERIOR = 3
JUDGED = 40_000
CLUSTERS = 64
TREES = 100
SIGMAS = (1, 2, 4, 8)
CRS, WEST, NORTH = "EPSG:32631", 500000, 5400000
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LabelledScene:
    """A scene `[bands, H, W]` of RGB or RGB and infrared, its classes `[H, W]` (-1 where there is none), and a folder.

    `pixel` is the size of its pixels in metres.
    """

    name: str
    values: NDArray[Any]
    truth: Ints
    folder: Path
    pixel: float

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.truth.max()) + 1

    @property
    def judged(self) -> tuple[Ints, Ints]:
        """Rows and columns of the pixels that methods are judged by."""
        rows, columns = np.nonzero(self.truth >= 0)
        some = np.random.default_rng(0).permutation(len(rows))[:JUDGED]
        return rows[some], columns[some]

    def score(self, predicted: Ints) -> dict[str, float]:
        """Accuracy and mean IoU in per cent of classes predicted for the judged pixels."""
        truth, count = self.truth[self.judged], self.classes
        counts = np.bincount(truth * count + predicted, minlength=count * count).reshape(count, count)
        right = np.diag(counts)
        unions = counts.sum(0) + counts.sum(1) - right
        return {
            "accuracy": 100 * float(right.sum() / counts.sum()),
            "mean_iou": 100 * float((right / np.maximum(unions, 1)).mean()),
        }


def load(data: Path, name: str, cache: Path, side: int | None = None) -> LabelledScene:
    """Read a scene, group its labels into classes, reduce it if it is too fine, and take a window of it."""
    stem, ending, groups, times, size = SCENES[name]
    with rasterio.open(data / f"{stem}_{ending}.tif") as dataset:
        values = dataset.read()
    with rasterio.open(data / f"{stem}_label.tif") as dataset:
        labels = dataset.read(1)
    truth = np.full(labels.shape, -1, np.int64)
    for index, group in enumerate(groups):
        truth[np.isin(labels, group)] = index
    if times > 1:
        height, width = (side // times * times for side in truth.shape)
        blocks = values[:, :height, :width].reshape(
            len(values), height // times, times, width // times, times
        )
        values = blocks.mean((2, 4)).round().astype(values.dtype)
        truth = truth[times // 2 : height : times, times // 2 : width : times]
    if side is not None:
        window = choose_window(truth, side)
        values, truth = values[:, *window], truth[window]
    folder = cache / name
    folder.mkdir(parents=True, exist_ok=True)
    return LabelledScene(name, values, truth, folder, times * size)


def choose_window(truth: Ints, side: int) -> tuple[slice, slice]:
    """Return the window of a side that has most of its rarest class, or as much of a smaller scene as there is."""
    steps = [range(0, max(length - side, 0) + 1, side // 4) for length in truth.shape]
    windows = [(slice(top, top + side), slice(left, left + side)) for top in steps[0] for left in steps[1]]
    classes = int(truth.max()) + 1
    return max(
        windows, key=lambda part: np.bincount(truth[part].ravel() + 1, minlength=classes + 1)[1:].min()
    )


def draw_clicks(scene: LabelledScene, count: int, draw: int) -> tuple[Ints, Ints, Ints]:
    """Rows, columns and classes of clicks inside areas of one class; those of fewer clicks are among those of more."""
    rng = np.random.default_rng(draw)
    padded = np.pad(scene.truth, 1, constant_values=-1)
    places, classes = [], []
    for label in range(scene.classes):
        distance = ndimage.distance_transform_edt(padded == label)[1:-1, 1:-1]
        candidates = np.argwhere(distance > 0)
        for depth in range(INTERIOR, 0, -1):
            inside = np.argwhere(distance > depth)
            if len(inside) >= 4 * MOST_CLICKS:
                candidates = inside
                break
        chosen = candidates[rng.permutation(len(candidates))[:MOST_CLICKS]][:count]
        places.append(chosen)
        classes.append(np.full(len(chosen), label))
    rows, columns = np.concatenate(places).T
    return rows, columns, np.concatenate(classes)


def scale(values: NDArray[Any]) -> Floats:
    """Bring each band to about 0..1 by its percentiles."""
    low, high = np.percentile(values[:, ::3, ::3], (0.5, 99.5), axis=(1, 2))
    span = np.maximum(high - low, 1e-6)[:, None, None]
    scaled: Floats = ((values - low[:, None, None]) / span).astype(np.float32)
    return scaled


def pixel_features(values: NDArray[Any]) -> Floats:
    """Bands, and a vegetation index where there is infrared: 5 or 3 features."""
    scaled = scale(values)
    if len(scaled) < 4:
        return scaled
    index = (scaled[3] - scaled[0]) / (np.abs(scaled[3]) + np.abs(scaled[0]) + 0.1)
    return np.concatenate([scaled, index[None]])


def context_features(values: NDArray[Any]) -> Floats:
    """Bands, an index, and at four scales means, deviations and the gradient of brightness: 33, or 23 of RGB."""
    pixels = pixel_features(values)
    bands, brightness = pixels[: len(values)], pixels[:3].mean(0)
    features = [*pixels]
    for sigma in SIGMAS:
        features += [ndimage.gaussian_filter(band, sigma) for band in bands]
        for band in (brightness, *pixels[4:]):
            mean = ndimage.gaussian_filter(band, sigma)
            variance = ndimage.gaussian_filter(band * band, sigma) - mean * mean
            features.append(np.sqrt(np.maximum(variance, 0)))
        features.append(ndimage.gaussian_gradient_magnitude(brightness, sigma))
    return np.stack(features).astype(np.float32)


Predict = Callable[[Ints, Ints, Ints, int], Ints]
"""Rows, columns, classes of clicks and a seed to the classes of the judged pixels."""


def forest(scene: LabelledScene, features: Floats) -> Predict:
    """A random forest on features."""
    from sklearn.ensemble import RandomForestClassifier

    judged = features[:, *scene.judged].T

    def predict(rows: Ints, columns: Ints, classes: Ints, seed: int) -> Ints:
        trees = RandomForestClassifier(TREES, random_state=seed, class_weight="balanced")
        return np.asarray(trees.fit(features[:, rows, columns].T, classes).predict(judged))

    return predict


def kmeans(scene: LabelledScene) -> Predict:
    """Clusters that take the class of most clicks on them, or of the nearest cluster that has some."""
    from sklearn.cluster import KMeans

    features = pixel_features(scene.values)
    features = (features - features.mean((1, 2), keepdims=True)) / features.std((1, 2), keepdims=True)
    judged = features[:, *scene.judged].T
    model = KMeans(CLUSTERS, n_init=2, random_state=0).fit(judged[:20_000])

    def predict(rows: Ints, columns: Ints, classes: Ints, seed: int) -> Ints:
        votes = np.zeros((CLUSTERS, scene.classes))
        np.add.at(votes, (model.predict(features[:, rows, columns].T), classes), 1)
        named = np.flatnonzero(votes.sum(1))
        distances = np.linalg.norm(model.cluster_centers_[:, None] - model.cluster_centers_[named], axis=-1)
        classes_of = votes.argmax(1)[named[distances.argmin(1)]]
        return np.asarray(classes_of[model.predict(judged)])

    return predict


def network(scene: LabelledScene) -> Predict:
    """A small convolutional network with a view of 31 px, trained on the clicks and nothing else."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    reach = 15
    padded = np.pad(scale(scene.values), ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
    pixels = torch.from_numpy(padded)

    def patches(rows: Ints, columns: Ints) -> torch.Tensor:
        side = 2 * reach + 1
        places = zip(rows, columns, strict=True)
        return torch.stack([pixels[:, row : row + side, column : column + side] for row, column in places])

    def predict(rows: Ints, columns: Ints, classes: Ints, seed: int) -> Ints:
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, width, dilation in ((len(scene.values), 16, 1), (16, 32, 2), (32, 32, 4), (32, 32, 8)):
            layers += [nn.Conv2d(before, width, 3, dilation=dilation), nn.BatchNorm2d(width), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Conv2d(32, scene.classes, 1))
        optimiser = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-4)
        images, targets = patches(rows, columns), torch.from_numpy(classes)
        for _ in range(150):
            some = torch.randint(len(images), (32,))
            batch = torch.rot90(images[some], int(torch.randint(4, ())), (2, 3))
            loss = F.cross_entropy(model(batch)[:, :, 0, 0], targets[some])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
        model.eval()
        with torch.inference_mode():
            parts = np.array_split(np.stack(scene.judged), JUDGED // 1000, 1)
            return np.concatenate([model(patches(*part))[:, :, 0, 0].argmax(1).numpy() for part in parts])

    return predict


def ours(scene: LabelledScene, joined: bool = True) -> Predict:
    """The product: clicks fitted on features of the scene, joined with those of the bundled model that suits it."""
    image, bank = scene.folder / "scene.tif", None
    write_scene(scene, image)
    if not joined:
        bank = scene.folder / "bank.onnx"
        bank.write_bytes(make_bank(describe(str(image)))[0].content)

    def predict(rows: Ints, columns: Ints, classes: Ints, seed: int) -> Ints:
        clicks, named, made = (scene.folder / name for name in ("clicks.gpkg", "named.onnx", "map.tif"))
        write_clicks(clicks, scene.pixel, rows, columns, classes)
        name_model(bank, clicks, image, named, threads=1, overwrite=True)
        segment_raster(image, made, named, threads=1, overwrite=True)
        with rasterio.open(made) as dataset:
            labels = dataset.read(1)
        values = np.array([int(entry.name.removeprefix("c")) for entry in ModelFile.read(named).card.classes])
        return np.asarray(values[labels[scene.judged]])

    return predict


def write_scene(scene: LabelledScene, image: Path) -> None:
    """Write a scene as an analyst would have it: named bands, a CRS, its pixel size."""
    bands, height, width = scene.values.shape
    profile = {"driver": "GTiff", "count": bands, "height": height, "width": width, "crs": CRS}
    place = from_origin(WEST, NORTH, scene.pixel, scene.pixel)
    with rasterio.open(image, "w", dtype=scene.values.dtype, transform=place, **profile) as dataset:
        dataset.write(scene.values)
        dataset.descriptions = ("red", "green", "blue", "nir")[:bands]


def write_clicks(path: Path, pixel: float, rows: Ints, columns: Ints, classes: Ints) -> None:
    """Write clicks as points, as an analyst's GIS would."""
    xs, ys = WEST + (columns + 0.5) * pixel, NORTH - (rows + 0.5) * pixel
    path.unlink(missing_ok=True)
    names = np.array([f"c{label}" for label in classes], object)
    write_vector(
        path, shapely.to_wkb(shapely.points(xs, ys)), [names], ["class"], geometry_type="Point", crs=CRS
    )


def peak_megabytes() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def missing_figures(
    out: Path, scene: str, method: str, counts: Iterable[int], draws: int
) -> list[tuple[int, int]]:
    """Return the numbers of clicks, and draws of them, that a method has no figure for yet."""
    rows = [row for row in read(out) if (row["scene"], row["method"]) == (scene, method)]
    done = {(row["n"], row["draw"]) for row in rows}
    return [(n, draw) for n in counts for draw in range(draws) if (n, draw) not in done]


def measure(scene: LabelledScene, method: str, counts: Iterable[int], draws: int, out: Path) -> None:
    """Append the figures of one method on one scene that are not there yet."""
    missing = missing_figures(out, scene.name, method, counts, draws)
    begun = time.process_time()
    predict = {
        "ours": ours,
        "ours, bank": lambda scene: ours(scene, joined=False),
        "forest, pixels": lambda scene: forest(scene, pixel_features(scene.values)),
        "forest, context": lambda scene: forest(scene, context_features(scene.values)),
        "k-means": kmeans,
        "network": network,
    }[method](scene)
    prepared = time.process_time() - begun
    for n, draw in missing:
        begun = time.process_time()
        figures = scene.score(predict(*draw_clicks(scene, n, draw), draw))
        row = {"scene": scene.name, "method": method, "n": n, "draw": draw, **figures}
        row |= {"preparing_seconds": prepared, "seconds": time.process_time() - begun}
        with out.open("a") as file:
            file.write(json.dumps(row | {"megabytes": peak_megabytes()}) + "\n")


def read(out: Path) -> list[dict[str, Any]]:
    """The figures so far."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def print_tables(out: Path, scenes: Iterable[str], counts: Iterable[int]) -> None:
    """Print quality by scene and number of clicks, and what it takes."""
    rows = [row for row in read(out) if row["scene"] in set(scenes)]
    known = [name for name in SCENES if any(row["scene"] == name for row in rows)]
    for title, present in (
        ("Scenes that settings were chosen on", [name for name in known if name not in FRESH]),
        ("Scenes that had no part in it", [name for name in known if name in FRESH]),
    ):
        if present:
            print(f"\n{title}")
            _print_quality(rows, present, counts)
    print("\nCPU seconds to prepare a scene, per set of clicks with the map, and peak MB (mean over scenes)")
    for method in METHODS:
        figures = [_mean(rows, key, method=method) for key in ("preparing_seconds", "seconds", "megabytes")]
        print(f"{method:18}" + "".join(f"{figure:10.1f}" for figure in figures))


def _print_quality(rows: list[dict[str, Any]], present: list[str], counts: Iterable[int]) -> None:
    for figure in ("mean_iou", "accuracy"):
        print(f"\n{figure} in per cent: n = {', '.join(map(str, counts))} clicks per class, mean of draws")
        print(f"{'':18}" + "".join(f"{name:>18}" for name in (*present, "mean")))
        for method in METHODS:
            cells = [
                [_mean(rows, figure, method=method, scene=name, n=n) for n in counts] for name in present
            ]
            means = np.mean(cells, 0) if cells else []
            print(
                f"{method:18}"
                + "".join(f"{' '.join(f'{x:5.1f}' for x in cell):>18}" for cell in (*cells, means))
            )


def print_guide(rows: list[dict[str, Any]], scenes: list[str], methods: list[str], counts: list[int]) -> None:
    """Print the table of docs/own-scene.md: mean IoU by scene, and what is gained over the forest with context."""
    print(f"\nMean IoU in per cent: {' / '.join(methods)}")
    print(
        "* no scene of the source had a part in choosing settings; + the bundled model has learnt from the source\n"
    )
    print("| scene |" + "".join(f" {n} clicks |" for n in counts) + "\n|---|" + "---|" * len(counts))
    figures = np.array(
        [
            [[_mean(rows, "mean_iou", scene=name, method=method, n=n) for method in methods] for n in counts]
            for name in scenes
        ]
    )
    for name, row in zip(scenes, figures, strict=True):
        print(_cells(f"{name} {'*' * (name in NEW_SOURCES)}{'+' * learnt(name)}", row))
    print(_cells("mean", figures.mean(0)))
    forests = [index for index, method in enumerate(methods) if method.startswith("forest")]
    for index, method in enumerate(methods):
        if method.startswith("ours") and "forest, context" in methods:
            ours = figures[..., index]
            gains = ours - figures[..., methods.index("forest, context")]
            below = int((ours < figures[..., forests].max(-1)).sum())
            mean, median = (
                " ".join(f"{gain:+.1f}" for gain in figure) for figure in (gains.mean(0), np.median(gains, 0))
            )
            print(
                f"{method}: {mean} points over the forest with context in the mean, {median} in the median;"
            )
            print(f"below the better forest in {below} of {ours.size} cells")


def _cells(title: str, row: NDArray[Any]) -> str:
    return f"| {title.strip()} |" + "".join(f" {' / '.join(f'{x:.1f}' for x in cell)} |" for cell in row)


def learnt(name: str) -> bool:
    """Return whether the bundled model that suits a scene has learnt from its source."""
    stem, _, _, times, size = SCENES[name]
    source = Path(stem).parent.name
    return source in (choose_bundled(times * size).card.origin.labels or "")


def _mean(rows: list[dict[str, Any]], figure: str, **where: Any) -> float:
    values = [row[figure] for row in rows if all(row[key] == value for key, value in where.items())]
    return float(np.mean(values)) if values else float("nan")


def main() -> None:
    """Measure what is missing, each method in a process of its own, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scenes", nargs="+", choices=SCENES, help="all by default; --guide: the fresh ones")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, help="all by default; --guide: without the last two"
    )
    parser.add_argument("--clicks", nargs="+", type=int, default=[5, 20, 100])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("clicks/results.jsonl"))
    parser.add_argument(
        "--side",
        type=int,
        help="largest side of what is taken of a scene, in pixels; give each its own --out",
    )
    parser.add_argument("--guide", action="store_true", help="print the table of the guide")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.scenes = options.scenes or list(FRESH if options.guide else SCENES)
    options.methods = options.methods or list(GUIDE if options.guide else METHODS)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.scenes:
        for method in options.methods:
            if not missing_figures(options.out, name, method, options.clicks, options.draws):
                continue
            if options.one:
                scene = load(options.folder, name, options.out.parent, options.side)
                measure(scene, method, options.clicks, options.draws, options.out)
                continue
            command = [sys.executable, __file__, str(options.folder), "--one", "--scenes", name]
            command += ["--methods", method, "--clicks", *map(str, options.clicks)]
            command += ["--side", str(options.side)] if options.side else []
            subprocess.run([*command, "--draws", str(options.draws), "--out", str(options.out)], check=True)
    if options.guide:
        rows = [row for row in read(options.out) if row["draw"] < options.draws]
        print_guide(rows, options.scenes, options.methods, options.clicks)
    elif not options.one:
        print_tables(options.out, options.scenes, options.clicks)


if __name__ == "__main__":
    main()
