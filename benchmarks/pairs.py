"""Two dates of one place: do clusters mean the same on both, do names carry over, and is planted change found?

    python benchmarks/pairs.py DATA [--pairs inn minas ...] [--seeds 0 1 2] [--clusters 8] [--cache FILE]

DATA holds the folders naip and pool. Models are fitted on the left half of a pair and judged on the right half, and the
other way round, 8 pixels between them; ranges of values are those of whole dates. Every method sees the same features.

    agreement   kappa between the maps of the two dates
    names       mean IoU on the second date, where clusters are named by the labels of the first date's half
    change      share of the pixels found that are changed when 70 % of the planted change is found

k-means per date has its clusters matched one to one on the half that it was fitted on. Change is planted by exchanging
squares of the second date, 6 % of the pixels. The settings were chosen on the pairs of `CHOSEN_ON`; `CLOSED` were not
looked at before. Finished rows are kept in the cache, so that the command can be interrupted.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
import rasterio
from scipy.optimize import linear_sum_assignment

from iic_geotools.scene.info import describe
from iic_geotools.tiling import Rect
from iic_runtime.naming import cluster
from iic_runtime.naming.dates import Canonical, Dates, common_data, open_dates
from iic_runtime.naming.regression import softmax
from iic_runtime.naming.scene_change import Mixture, change_probability

BELGIUM = "pool/s2_worldcereal_belgium/month{:02d}_rgbn.tif"
NAIP = "pool/naip_chesapeake/wv_1m_2014_m_3708020_sw_17_1_{}{}_{}.tif"
LANDSAT = "pool/landsat8_chesapeake/m_3907833_nw_leaf{}_{}.tif"
RIVERSIDE = "naip/riverside_{}_{}.tif"
MINAS = "pool/landsat89_xlandsat/LC08_L2SP_218074_201901{}_20200829_02_T1_rgbn.tif"
KOREA = "pool/s2rgb_korea/{}_{}.tif"
CHOSEN_ON: dict[str, tuple[str, ...]] = {
    "belgium 04-07": (BELGIUM.format(4), BELGIUM.format(7)),
    "belgium 05-09": (BELGIUM.format(5), BELGIUM.format(9)),
    "chiapas": tuple(f"pool/landsat7_chiapas/chiapas_{year}_rgbn.tif" for year in (1999, 2002)),
    "inn": tuple(f"pool/s2_ftw/ftw_window{n}_rgbn.tif" for n in (0, 1)),
    "landsat 8 leaf": tuple(LANDSAT.format(*part) for part in
                            (("on", "rgbn"), ("off", "rgbn"), ("on", "label"), ("off", "label"))),
    **{f"naip {n}": tuple(NAIP.format(n, *part) for part in
                          (("", "rgbn"), ("_old", "rgbn"), ("", "label"), ("_old", "label"))) for n in (0, 3)},
}  # fmt: skip
CLOSED: dict[str, tuple[str, ...]] = {
    "belgium 03-06": (BELGIUM.format(3), BELGIUM.format(6)),
    "belgium 02-10": (BELGIUM.format(2), BELGIUM.format(10)),
    "potholes": tuple(f"pool/naip_misc/nd_potholes_5m_{day}_rgbn.tif" for day in (20100629, 20140720)),
    "minas": (MINAS.format(14), MINAS.format(30)),
    "riverside 79": (RIVERSIDE.format(2016, 79), RIVERSIDE.format(2020, 79)),
    "riverside 35": (RIVERSIDE.format(2016, 35), RIVERSIDE.format(2020, 35)),
    "naip 7": tuple(NAIP.format(7, *part) for part in
                    (("", "rgbn"), ("_old", "rgbn"), ("", "label"), ("_old", "label"))),
    "korea": tuple(KOREA.format(*part) for part in
                   (("202309_3", "rgb"), ("202412_1", "rgb"), ("202309_3", "label"), ("202412_1", "label"))),
}  # fmt: skip
"""First and second date, and their labels where there are any."""
GAP = 4
"""Pixels on each side of the middle that are neither fitted nor judged."""
RAREST = 0.01
PLANTED, RECALL, TABLE = 0.06, 0.7, 32
Labels = Callable[[int, Any], Any]
"""A method's clusters of features `[N, F]` of a date."""


@dataclass(frozen=True)
class Half:
    """What is fitted and what is judged: samples and features of both dates."""

    samples: list[Any]
    groups: Any
    dates: Dates
    clusters: int
    seed: int


def per_date(half: Half) -> Labels:
    """k-means of each date, the second one's clusters matched to the first one's."""
    heads = []
    for sample in half.samples:
        whitening = cluster._whitening(sample, half.groups)
        heads.append((whitening, _kmeans((sample - whitening[0]) @ whitening[1], half)))

    def label(date: int, features: Any) -> Any:
        (centre, basis), matrix = heads[date]
        return cluster._logits(matrix, (features - centre) @ basis).argmax(1)

    first, second = (label(date, sample) for date, sample in enumerate(half.samples))
    table = np.zeros((half.clusters, half.clusters))
    np.add.at(table, (first, second), 1)
    match = linear_sum_assignment(-table.T)[1]
    return lambda date, features: match[label(1, features)] if date else label(0, features)


def shared(half: Half) -> Labels:
    """k-means of both dates together."""
    both = np.concatenate(half.samples)
    centre, basis = cluster._whitening(both, half.groups)
    matrix = _kmeans((both - centre) @ basis, half)
    return lambda date, features: cluster._logits(matrix, (features - centre) @ basis).argmax(1)


def correlated(half: Half) -> Labels:
    """k-means in the space of canonical correlations: a linear map for each date."""
    canonical = Canonical.of(half.samples, half.groups)
    matrix = _kmeans(np.concatenate([canonical.weighted(s, d) for d, s in enumerate(half.samples)]), half)
    return lambda date, features: cluster._logits(matrix, canonical.weighted(features, date)).argmax(1)


def shipped(half: Half, steps: int = cluster.DATE_STEPS) -> Labels:
    """One network for both dates, as `iic-model cluster --pair` fits it."""
    cluster.DATE_STEPS = steps
    head, *_ = cluster.fit_date_clusters(half.dates, half.clusters, half.seed)
    return lambda date, features: head.logits(features.astype(np.float32)).argmax(1)


METHODS: dict[str, Callable[[Half], Labels]] = {
    "k-means per date": per_date,
    "k-means shared": shared,
    "CCA k-means": correlated,
    "ours without IIC": lambda half: shipped(half, 0),
    "ours": shipped,
}


def _kmeans(points: Any, half: Half) -> Any:
    rng = np.random.default_rng(half.seed)
    points = points[rng.permutation(len(points))[: cluster.POINTS]]
    return cluster._distances(cluster._centres(points, half.clusters, rng), points)


def kappa(first: Any, second: Any, count: int) -> float:
    """Return Cohen's kappa in per cent."""
    table = np.bincount(first * count + second, minlength=count * count).reshape(count, count) / len(first)
    chance = float(table.sum(0) @ table.sum(1))
    return 100 * (float(np.trace(table)) - chance) / max(1 - chance, 1e-9)


def carried(own: Any, names: Any, there: Any, truth: Any, count: int) -> float:
    """Return the mean IoU on the second date of clusters named on the first."""
    table = np.zeros((count, 256))
    np.add.at(table, (own, names), 1)
    found = table.argmax(1)[there]
    classes = [value for value in np.unique(truth) if (truth == value).mean() > RAREST]
    return 100 * mean(
        float(((found == value) & (truth == value)).sum() / ((found == value) | (truth == value)).sum())
        for value in classes
    )


def halves(dates: Dates) -> Iterator[tuple[Dates, Rect]]:
    """Yield dates cut to one half, and the other half."""
    width, height = dates.grid.width, dates.grid.height
    middle = width // 2
    left, right = Rect(0, 0, middle - GAP, height), Rect(middle + GAP, 0, width - middle - GAP, height)
    for own, other in ((left, right), (right, left)):
        offsets = tuple((col + own.col, row) for col, row in dates.offsets)
        yield replace(dates, grid=dates.grid.crop(own), offsets=offsets), other


def score(data: Path, name: str, files: tuple[str, ...], count: int, seed: int) -> list[dict[str, Any]]:
    """Fit and judge every method on both halves of a pair."""
    infos = [describe(str(data / file)) for file in files[:2]]
    dates = open_dates(infos, device="cpu", threads=1)
    labels = [_labels(data / file, dates, date) for date, file in enumerate(files[2:])]
    rows = []
    for part, other in halves(dates):
        samples = part.sample(cluster.PAIRS, np.random.default_rng(seed))
        half = Half(samples, part.stack.card.features, part, count, seed)
        views = dates.look(other)
        valid = common_data(views)
        judged = [view.features[:, valid].T.astype(np.float64) for view in views]
        own = Rect(part.offsets[0][0] - dates.offsets[0][0], 0, part.grid.width, part.grid.height)
        for method, fit in METHODS.items():
            started = time.process_time()
            label = fit(half)
            seconds = time.process_time() - started
            first, second = (label(date, features) for date, features in enumerate(judged))
            row = {"pair": name, "method": method, "seed": seed, "seconds": seconds,
                   "agreement": kappa(first, second, count)}  # fmt: skip
            if labels:
                view = dates.look(own)[0]
                known = view.valid & (labels[0][own.slices] > 0)
                seen, truth = label(0, view.features[:, known].T), labels[1][other.slices][valid]
                row["names"] = carried(
                    seen, labels[0][own.slices][known], second[truth > 0], truth[truth > 0], count
                )
            rows.append(row)
    return rows


def _labels(path: Path, dates: Dates, date: int) -> Any:
    """Read labels where the dates lie on each other."""
    (col, row), grid = dates.offsets[date], dates.grid
    with rasterio.open(path) as raster:
        return raster.read(1)[row : row + grid.height, col : col + grid.width]


def print_table(rows: list[dict[str, Any]], quantity: str, unit: str) -> None:
    """Print a quantity of every method on every pair, the mean over halves and seeds, and over closed pairs."""
    methods = list(dict.fromkeys(row["method"] for row in rows if quantity in row))
    pairs = [name for name in (*CHOSEN_ON, *CLOSED) if any(r["pair"] == name and quantity in r for r in rows)]
    print(f"\n{quantity}, {unit}\n{'':<16}" + "".join(f"{method:>18}" for method in methods))
    means: dict[str, dict[str, float]] = {}
    for name in pairs:
        own = {
            m: [r[quantity] for r in rows if (r["pair"], r["method"]) == (name, m) and quantity in r]
            for m in methods
        }
        means[name] = {method: mean(values) for method, values in own.items()}
        spread = "".join(f"{mean(v):>12.1f} ± {pstdev(v):<3.1f}" for v in own.values())
        print(f"{name + ('' if name in CHOSEN_ON else ' *'):<16}{spread}")
    for title, chosen in (("chosen on", CHOSEN_ON), ("closed *", CLOSED)):
        inside = [name for name in pairs if name in chosen]
        if inside:
            columns = "".join(f"{mean(means[n][m] for n in inside):>12.1f}      " for m in methods)
            print(f"{title:<16}{columns}")


def planted(values: Any, seed: int) -> tuple[Any, Any]:
    """Exchange squares of a date `[bands, H, W]` and return it with where that was done."""
    rng = np.random.default_rng(seed)
    height, width = values.shape[1:]
    least = max(4, min(height, width) // 20)
    new, changed = values.copy(), np.zeros((height, width), bool)
    while changed.mean() < PLANTED:
        side = int(rng.integers(least, 2 * least))
        (row, col), (top, left) = (
            (rng.integers(height - side), rng.integers(width - side)) for _ in range(2)
        )
        if not changed[row : row + side, col : col + side].any():
            new[:, row : row + side, col : col + side] = values[:, top : top + side, left : left + side]
            changed[row : row + side, col : col + side] = True
    return new, changed


def precision(scores: Any, truth: Any) -> float:
    """Return the precision in per cent at `RECALL`, ties broken at random."""
    order = np.lexsort((np.random.default_rng(0).random(len(scores)), -scores))
    found = np.cumsum(truth[order])
    count = int(np.searchsorted(found, RECALL * truth.sum())) + 1
    return float(100 * found[count - 1] / count)


def find_change(data: Path, name: str, files: tuple[str, ...], count: int, seed: int) -> list[dict[str, Any]]:
    """Plant change in the second date and look for it."""
    with tempfile.TemporaryDirectory() as folder:
        new, out = Path(folder) / "after.tif", Path(folder) / "change.tif"
        with rasterio.open(data / files[1]) as raster:
            values, mask = planted(raster.read(), seed)
            with rasterio.open(new, "w", **raster.profile) as written:
                written.write(values)
                written.descriptions = raster.descriptions
        infos = [describe(str(data / files[0])), describe(str(new))]
        dates = open_dates(infos, device="cpu", threads=1)
        views = dates.look(Rect(0, 0, dates.grid.width, dates.grid.height))
        valid = common_data(views)
        col, row = dates.offsets[1]
        truth = mask[row : row + dates.grid.height, col : col + dates.grid.width][valid]
        started = time.process_time()
        changed = change_probability(data / files[0], new, out, seed=seed, device="cpu", threads=1)
        seconds = time.process_time() - started
        with rasterio.open(out) as raster:
            ours = raster.read(1)[valid].astype(float)
        samples = dates.sample(cluster.PAIRS, np.random.default_rng(seed))
    features = [view.features[:, valid].T.astype(np.float64) for view in views]
    groups = dates.stack.card.features
    mixture = Mixture.of(samples, groups)
    canonical, half = mixture.canonical, Half(samples, groups, dates, count, seed)
    label, table = per_date(half), joint_table(half, canonical, features)
    scores = {
        "clusters differ": (label(0, features[0]) != label(1, features[1])).astype(float),
        "MAD": alteration(features, canonical),
        "joint table": table,
        "table and MAD": ranks(table) + ranks(alteration(features, canonical)),
        "ours": mixture.log_ratios(features),
    }
    found = ours > 127
    rows = [
        {"pair": name, "method": method, "seed": seed, "change": precision(score, truth)}
        for method, score in scores.items()
    ]
    rows[-1] |= {
        "seconds": seconds,
        "share": 100 * changed.share,
        "found": 100 * float(found[truth].mean()),
        "false": 100 * float(found[~truth].mean()),
    }
    return rows


def joint_table(half: Half, canonical: Canonical, features: list[Any]) -> Any:
    """Return minus the logarithm of P(c, e) / P(c) P(e) of `TABLE` soft clusters in canonical space."""
    parts = [canonical.weighted(sample, date) for date, sample in enumerate(half.samples)]
    matrix = _kmeans(np.concatenate(parts), replace(half, clusters=TABLE))
    z, z2 = (softmax(cluster._logits(matrix, part)) for part in parts)
    joint = z.T @ z2 / len(z) + 1e-6
    joint /= joint.sum()
    table = joint / np.outer(joint.sum(1), joint.sum(0))
    z, z2 = (
        softmax(cluster._logits(matrix, canonical.weighted(part, date))) for date, part in enumerate(features)
    )
    return -np.log(((z @ table) * z2).sum(1))


def ranks(scores: Any) -> Any:
    """Return the rank of each score, 0 to 1."""
    return np.argsort(np.argsort(scores)) / len(scores)


def alteration(features: list[Any], canonical: Canonical) -> Any:
    """Return the score of multivariate alteration detection (Nielsen et al. 1998)."""
    u, v = (canonical.variates(part, date) for date, part in enumerate(features))
    return ((u - v) ** 2 / (2 * (1 - canonical.correlations))).sum(1)


def main() -> None:
    """Score what is not in the cache yet, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--pairs", nargs="+", default=[], help="parts of names")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--clusters", type=int, default=8)
    parser.add_argument("--cache", type=Path, default=Path("pairs.jsonl"))
    options = parser.parse_args()
    lines = options.cache.read_text().splitlines() if options.cache.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for name, files in {**CHOSEN_ON, **CLOSED}.items():
        if options.pairs and not any(part in name for part in options.pairs):
            continue
        for seed in options.seeds:
            for quantity, judge in (("agreement", score), ("change", find_change)):
                if not any((r["pair"], r["seed"]) == (name, seed) and quantity in r for r in rows):
                    new = judge(options.data, name, files, options.clusters, seed)
                    rows += new
                    with options.cache.open("a") as cache:
                        cache.write("".join(json.dumps(row) + "\n" for row in new))
    print_table(rows, "agreement", "kappa x 100 on the half that was not fitted")
    print_table(rows, "names", "mean IoU in % on the second date's other half")
    print_table(rows, "change", f"precision in % at {RECALL:.0%} recall, {PLANTED:.0%} planted")
    for quantity, unit in (
        ("share", "estimated, % of the scene"),
        ("found", "% of the planted change that is more probable than not"),
        ("false", "% of the other ground that is"),
    ):
        print_table(rows, quantity, unit)
    print_table([row for row in rows if "agreement" in row], "seconds", "CPU seconds to fit")


if __name__ == "__main__":
    main()
