"""How good the bundled models are on sources that they have not seen, next to simpler methods.

    python benchmarks/bundled.py score satellite DATA [--group N]... [--cache FOLDER] [--before FILE]
    python benchmarks/bundled.py score aerial DATA
    python benchmarks/bundled.py temperature satellite DATA [--cache FOLDER]
    python benchmarks/bundled.py locked satellite DATA [--run RUN] [--before FILE]
    python benchmarks/bundled.py gallery satellite DATA --run RUN --out FILE.jpg

A source is a sensor, a provider and a region. `score` leaves out the groups of sources of the recipe in turn, trains
the recipe on the others and scores those left out: settings are chosen by this table. `temperature` prints the error
of calibration on the sources left out, by what logits are divided by. `locked` trains on all sources and scores those
that the recipe has locked: nothing learns from them or is chosen on them, and it is to be run once, when the recipe is
final. `score` and `locked` print accuracy, mean IoU and recall per source, with and without infrared, and the error of
calibration; next to them a random forest on single pixels that learnt from the same labels, and with --before FILE an
earlier model file. What was trained is kept in FOLDER, so that a second call only scores. With --run, `locked` scores a
run of `iic-train recipe NAME` and leaves the figures in its folder; `iic-export` puts them on the card. `gallery` draws
windows of the locked sources that may be shown, each next to its map, right or wrong.

Where labels leave several classes open, as "no building" does, these count as one class if they overlap no other.
DATA holds the folders flair, naip, pool and sentinel2 (docs/research/bundled-models.md says what they are).
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.ensemble import RandomForestClassifier

from iic_train.config import TrainConfig
from iic_train.finetune.chips import Chip, LabelledChips, read_chips
from iic_train.finetune.heldout import pixel_logs
from iic_train.finetune.land_cover import BalancedCrops, train_land_cover
from iic_train.models.networks import Network
from iic_train.recipes import aerial, satellite
from iic_train.recipes.learnt import learnt_config
from iic_train.recipes.registry import LEARNT_RECIPES
from iic_train.runs import HELD_OUT, load_run

RECIPES = {"satellite": satellite, "aerial": aerial}
MOST_PIXELS = 1_500_000
"""Number of pixels of a source that are scored: whole windows, spread over its chips."""
WINDOW = 384
TREES, DEPTH, FOREST_CROPS, PIXELS_PER_CROP = 60, 16, 1200, 60
BINS = 10
TEMPERATURES = (0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7)
GALLERY = 8
SHOWN = ("landsat8_zion", "landsat7_nc", "s2_8bit_wangyi", "s2rgb_korea", "landslide_hokkaido")
"""Locked sources whose licences are clear."""
Predict = Callable[[NDArray[Any]], NDArray[np.float32]]
"""From raw pixels `[bands, H, W]` to probabilities `[classes, H, W]`."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["score", "temperature", "locked", "gallery"])
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--group", type=int, action="append", help="groups to leave out; by default all in turn"
    )
    parser.add_argument("--cache", type=Path, default=Path("runs/bundled"))
    parser.add_argument("--before", type=Path, help="an earlier model file, scored next to the recipe")
    parser.add_argument("--run", type=Path, help="a run of the recipe, scored instead of training it again")
    parser.add_argument("--out", type=Path, help="the picture of `gallery`")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.cache.mkdir(parents=True, exist_ok=True)
    config = learnt_config(LEARNT_RECIPES[options.name], options.data, seed=options.seed)
    assert config.finetune is not None
    data = read_chips(config.finetune, config.network)
    recipe = RECIPES[options.name]
    if options.task == "gallery":
        draw_gallery(config, data, load_run(options.run).network(), options.out)
        return
    groups = options.group or list(range(len(recipe.GROUPS)))
    if options.task == "temperature":
        folds = {fold: trained(options.name, config, data, fold, options.cache) for fold in groups}
        show_temperatures(config, data, folds)
        return
    table = Table(config)
    for fold in [recipe.LOCKED_FOLD] if options.task == "locked" else groups:
        left_out = None if options.task == "locked" else fold
        if options.run is None:
            network = trained(options.name, config, data, left_out, options.cache)
        else:
            network = load_run(options.run).network()
        methods = {"network": network_predict(network), "forest": forest(config, data, left_out)}
        if options.before is not None:
            methods["before"] = file_predict(options.before, config.network.clusters_b)
        for method, predict in methods.items():
            table.add(method, data, fold, predict)
    table.show(options.task)
    if options.run is not None:
        (options.run / HELD_OUT).write_text(json.dumps(table.summary(recipe.LOCKED), indent=1))


def trained(
    name: str, config: TrainConfig, data: LabelledChips, left_out: int | None, cache: Path
) -> Network:
    """Train the recipe without a group of sources, or take what an earlier call trained."""
    file = cache / f"{name}-{config.seed}-{'all' if left_out is None else left_out}.pt"
    network = Network(config.network)
    if file.exists():
        network.load_state_dict(torch.load(file, weights_only=True))
        return network.eval()
    started = time.process_time()
    network = train_land_cover(config, data, left_out)
    print(f"{name}, left out {left_out}: trained in {time.process_time() - started:.0f} s of CPU", flush=True)
    torch.save(network.state_dict(), file)
    return network


def network_predict(network: Network) -> Predict:
    """Return the probabilities of a network."""
    return lambda pixels: np.exp(pixel_logs(network, pixels))


def file_predict(file: Path, classes: int) -> Predict:
    """Return labels and confidence of a model file, whose graph takes the same values as the network."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def predict(pixels: NDArray[Any]) -> NDArray[np.float32]:
        labels, confidence = session.run(["labels", "confidence"], {"image": pixels[None]})
        sure = np.float32(confidence[0] / 255)
        return np.where(np.arange(classes)[:, None, None] == labels[0], sure, 0)

    return predict


def forest(config: TrainConfig, data: LabelledChips, left_out: int | None) -> Predict:
    """Fit a random forest on single pixels, drawn and augmented as for the network."""
    crops = BalancedCrops(data, config, left_out, 48)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    members = data.legend.members()
    inputs, labels = [], []
    for _ in range(FOREST_CROPS // 20):
        crop = crops.views(rng, generator, 20)
        for image, mask in zip(crops.encode(crop).flatten(2), crop.codes.flatten(1).numpy(), strict=True):
            single = np.flatnonzero(members[mask].sum(1) == 1)
            some = rng.permutation(single)[:PIXELS_PER_CROP]
            inputs.append(image[:, some].T.numpy())
            labels.append(members[mask[some]].argmax(1))
    trees = RandomForestClassifier(TREES, max_depth=DEPTH, min_samples_leaf=5, random_state=0, n_jobs=1)
    trees.fit(_indices(np.concatenate(inputs)), np.concatenate(labels))
    offset, scale = (np.float32(getattr(config.network, name)) for name in ("offset", "scale"))

    def predict(pixels: NDArray[Any]) -> NDArray[np.float32]:
        flat = (pixels.reshape(len(pixels), -1).T - offset) * scale
        odds = np.zeros((len(flat), config.network.clusters_b), np.float32)
        odds[:, trees.classes_] = trees.predict_proba(_indices(flat))
        return odds.T.reshape(-1, *pixels.shape[1:])

    return predict


def _indices(scaled: NDArray[Any]) -> NDArray[np.float32]:
    """Scaled bands `[M, 4]` with NDVI and NDWI."""
    red, green, _, nir = scaled.T
    ndvi, ndwi = ((a - b) / (np.abs(a) + np.abs(b) + 1e-3) for a, b in ((nir, red), (green, nir)))
    return np.column_stack([scaled, ndvi, ndwi]).astype(np.float32)


class Table:
    """Counts per method, source and kind of input."""

    def __init__(self, config: TrainConfig) -> None:
        assert config.finetune is not None
        self.config, self.settings = config, config.finetune
        self.counts: dict[tuple[str, str, str], dict[frozenset[int], NDArray[np.int64]]] = {}
        self.bins: dict[tuple[str, str, str], NDArray[np.float64]] = {}

    def add(self, method: str, data: LabelledChips, fold: int, predict: Predict) -> None:
        """Score a method on the sources of a fold, with all their bands and without infrared."""
        for source, kind, pixels, codes in self.inputs(data, fold):
            self.count((method, source, kind), data.legend.members(), predict(pixels), codes)

    def inputs(
        self, data: LabelledChips, fold: int
    ) -> Iterator[tuple[str, str, NDArray[Any], NDArray[np.uint8]]]:
        """Yield source, kind of input, pixels and codes of the windows that are scored."""
        for source in {chip.source for chip in data.chips}:
            chips = [chip for chip in data.chips if chip.source == source and chip.codes_of(fold).any()]
            for pixels, codes in _windows(chips, fold):
                for kind, values in self._kinds(pixels):
                    yield self.settings.sources[source].name, kind, values, codes

    def _kinds(self, pixels: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
        missing = self.config.network.optional
        if all(pixels[band, 0, 0] != value for band, value in missing.items()):
            yield "full", pixels
        without = pixels.copy()
        for band, value in missing.items():
            without[band] = value
        yield "rgb", without

    def count(
        self,
        key: tuple[str, str, str],
        members: NDArray[np.bool_],
        odds: NDArray[np.float32],
        codes: NDArray[np.uint8],
    ) -> None:
        """Count what a method predicted for a window."""
        labels, sure = odds.argmax(0), odds.max(0)
        table = self.counts.setdefault(key, {})
        bins = self.bins.setdefault(key, np.zeros((BINS, 3)))
        for code in np.unique(codes[codes > 0]):
            group = frozenset(np.flatnonzero(members[code]).tolist())
            here = codes == code
            row = np.bincount(labels[here], minlength=len(odds))
            table[group] = table.get(group, np.zeros(len(odds), np.int64)) + row
            if len(group) == 1:
                index = np.minimum((sure[here] * BINS).astype(int), BINS - 1)
                right = labels[here] == next(iter(group))
                for column, values in enumerate((np.ones_like(right), sure[here], right)):
                    bins[:, column] += np.bincount(index, values, BINS)

    def show(self, title: str) -> None:
        """Print a row per source, and all sources alike."""
        print(
            f"\n{title}: accuracy (mean IoU); recall of {', '.join(self.settings.classes)}; calibration error"
        )
        alike: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for (method, source, kind), table in sorted(self.counts.items(), key=lambda item: item[0][1:]):
            accuracy, iou, recall = figures(table)
            alike.setdefault((method, kind), []).append((accuracy, iou))
            error = self.calibration_error((method, source, kind))
            print(
                f"{source} | {method} | {kind} | {100 * accuracy:.1f} ({100 * iou:.1f}) | {recall} | "
                f"{100 * error:.1f}"
            )
        for (method, kind), pairs in sorted(alike.items()):
            accuracy, iou = (100 * float(np.mean(column)) for column in zip(*pairs, strict=True))
            low = sum(pair[0] < 0.6 for pair in pairs)
            print(
                f"all {len(pairs)} alike | {method} | {kind} | {accuracy:.1f} ({iou:.1f}) | {low} below 60 %"
            )

    def summary(self, sources: Sequence[str]) -> dict[str, Any]:
        """Return the figures of the network over sources alike, each with the bands that it has."""
        rows = []
        for source in sources:
            kind = "full" if ("network", source, "full") in self.counts else "rgb"
            accuracy, iou, _ = figures(self.counts["network", source, kind])
            rows.append((accuracy, iou, self.calibration_error(("network", source, kind))))
        means = [float(np.mean(column)) for column in zip(*rows, strict=True)]
        measured_on = f"sources never learnt from: {', '.join(sources)}"
        sentence = f"{100 * means[0]:.1f} % right, mean IoU {100 * means[1]:.1f} %, on {measured_on}."
        return dict(zip(("accuracy", "mean_iou", "calibration_error"), means, strict=True)) | {
            "measured_on": measured_on,
            "sentence": sentence,
        }

    def calibration_error(self, key: tuple[str, str, str]) -> float:
        """Return the mean difference of confidence and accuracy over bins of confidence."""
        bins = self.bins[key]
        return float(np.abs(bins[:, 1] - bins[:, 2]).sum() / max(1.0, bins[:, 0].sum()))


def show_temperatures(config: TrainConfig, data: LabelledChips, networks: dict[int, Network]) -> None:
    """Print the error of calibration on sources left out by temperature: the mean of sources alike, and the worst."""
    table = Table(config)
    for fold, network in networks.items():
        for source, kind, pixels, codes in table.inputs(data, fold):
            logs = torch.from_numpy(pixel_logs(network, pixels))
            for temperature in TEMPERATURES:
                odds = (logs / temperature).softmax(0).numpy()
                table.count((f"{temperature:.1f}", source, kind), data.legend.members(), odds, codes)
    for temperature in TEMPERATURES:
        for wanted in ("full", "rgb"):
            errors = [
                100 * table.calibration_error(key)
                for key, bins in table.bins.items()
                if key[0] == f"{temperature:.1f}" and key[2] == wanted and bins.any()
            ]
            poor = sum(error > 8 for error in errors)
            print(
                f"temperature {temperature:.1f} | {wanted} | mean of {len(errors)} sources "
                f"{np.mean(errors):.1f} | worst {max(errors):.1f} | {poor} above 8"
            )


def figures(table: dict[frozenset[int], NDArray[np.int64]]) -> tuple[float, float, str]:
    """Return accuracy, mean IoU and recall of a source; sets of classes that overlap others are left out."""
    groups: list[frozenset[int]] = []
    for group in sorted(table, key=len):
        if not any(group & other for other in groups):
            groups.append(group)
    counts = np.array([[table[row][list(column)].sum() for column in groups] for row in groups])
    totals = np.array([table[row].sum() for row in groups])
    right = np.diag(counts)
    iou = right / np.maximum(1, totals + counts.sum(0) - right)
    recall = " ".join(
        f"{'/'.join(map(str, sorted(group)))}:{100 * hit / total:.0f}"
        for group, hit, total in zip(groups, right, totals, strict=True)
    )
    return float(right.sum() / max(1, totals.sum())), float(iou.mean()), recall


def _windows(chips: list[Chip], fold: int) -> Iterator[tuple[NDArray[Any], NDArray[np.uint8]]]:
    """Yield windows of chips that hold labels, spread over all of them, up to a number of pixels."""
    windows = []
    for chip in chips:
        codes = chip.codes_of(fold)
        for row in range(0, codes.shape[0], WINDOW):
            for column in range(0, codes.shape[1], WINDOW):
                part = np.s_[row : row + WINDOW, column : column + WINDOW]
                if codes[part].any():
                    windows.append((chip.pixels[:, *part], codes[part]))
    pixels = sum(codes.size for _, codes in windows)
    step = max(1, -(-pixels // MOST_PIXELS))
    yield from windows[::step]


def draw_gallery(config: TrainConfig, data: LabelledChips, network: Network, out: Path) -> None:
    """Draw eight windows of locked sources under open licences, spread over them, each next to its map."""
    assert config.finetune is not None
    locked = [s for s in range(len(config.finetune.sources)) if config.finetune.sources[s].name in SHOWN]
    chosen: list[NDArray[Any]] = []
    for number, source in enumerate(locked):
        chips = [chip for chip in data.chips if chip.source == source]
        windows = [
            pixels for pixels, _ in _windows(chips, satellite.LOCKED_FOLD) if min(pixels.shape[1:]) > 200
        ]
        count = min(GALLERY * (number + 1) // len(locked) - len(chosen), len(windows))
        chosen += [windows[i] for i in np.linspace(0, len(windows) - 1, count).round().astype(int)]
    colours = np.array(
        [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in config.finetune.colours], np.uint8
    )
    tiles = []
    for pixels in chosen:
        side = min(pixels.shape[1:])
        square = pixels[:, :side, :side]
        rgb = square[:3].astype(np.float32)
        low, high = np.percentile(rgb, (1, 99))
        seen = (255 * np.clip((rgb - low) / (high - low), 0, 1) ** 0.8).astype(np.uint8).transpose(1, 2, 0)
        pair = np.concatenate([seen, colours[pixel_logs(network, square).argmax(0)]], 1)
        tiles.append(np.asarray(Image.fromarray(pair).resize((400, 200), Image.Resampling.BOX)))
    rows = [np.concatenate(tiles[row : row + 2], 1) for row in range(0, len(tiles), 2)]
    Image.fromarray(np.concatenate(rows)).save(out, quality=80)


if __name__ == "__main__":
    main()
