"""The report of a run: what was trained, how training went, and the result."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iic_geotools.classmap.classes import rgb, spread_colours
from iic_geotools.files import write_atomically
from iic_geotools.html_page import html_facts, html_page, html_section
from iic_geotools.settings import checked
from iic_train.config import reading
from iic_train.data.base import Dataset, Images
from iic_train.evaluation.evaluate import EVALUATION
from iic_train.evaluation.plots import (
    Series,
    bar_chart,
    colours,
    line_chart,
    picture,
    share_chart,
    simplex_plot,
    simplex_series,
)
from iic_train.evaluation.simplex import KEPT_IMAGES, cluster_probabilities, even_sample, read_simplex
from iic_train.runs import Checkpoint, Choice, Run
from iic_train.views.settings import ImagePairs
from iic_train.watch import FIXED_CLUSTERS

_HEADS = {"a": "head A (overclustering)", "b": "head B (main)"}
_PICTURES = 6
_PICTURE_SIDE = 384
_SLIVER = 4
"""Images whose side is less than this part of the largest are not shown."""
_EXAMPLE, _EXAMPLES = 32, 3
"""Side in pixels of the squares that show a cluster, and their number."""
_NOTHING = 200
"""Grey of pixels that are not valid."""


@dataclass(frozen=True)
class HeadEpoch:
    """The figures of one head in one epoch, one value per sub-head."""

    epoch: float
    loss: Sequence[float]
    information: Sequence[float]
    entropy: Sequence[float]
    occupancy: NDArray[Any]
    """[sub-heads, clusters]"""
    accuracy: Sequence[float] | None = None


@dataclass(frozen=True)
class Story:
    """The content of the report.

    Attributes:
        title: Name of the run.
        facts: Names and values of the facts at the top of the page.
        heads: Epochs of each head that was trained, by `a` or `b`.
        chosen: The sub-head of head B that was chosen by its loss.
        start: Note on a run whose clusters were found before training.
        evaluation: What `Evaluation.to_json` returned, if there are labels.
        pictures: Figures made by `cluster_pictures` or `map_pictures`.
        held_out: Figures of the places left out, if the run learnt from labels.
        losses: Epochs and losses of a run that learnt from labels.
        config: Every setting, shown folded.
    """

    title: str
    facts: Mapping[str, str]
    heads: Mapping[str, Sequence[HeadEpoch]]
    chosen: int = 0
    start: str = ""
    evaluation: Mapping[str, Any] | None = None
    pictures: Sequence[str] = ()
    held_out: Mapping[str, Any] | None = None
    losses: Sequence[tuple[float, float]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def report_page(story: Story) -> str:
    """Return the whole page as HTML."""
    sections = [
        f"<header><h1>{escape(story.title)}</h1>{html_facts(story.facts)}</header>",
        html_section("Result", _result(story)),
        html_section("Training", _curves(story)),
        html_section("Clusters", _occupancy(story) if "b" in story.heads else ""),
        html_section("Pictures", "".join(story.pictures)),
        html_section("Settings", _settings(story.config)),
    ]
    return html_page(story.title, sections, _STYLE)


def chart_page(title: str, charts: Sequence[str]) -> str:
    """Return a page of charts side by side."""
    header = f"<header><h1>{escape(title)}</h1></header>"
    return html_page(
        title, [header, f'<section><div class="charts">{"".join(charts)}</div></section>'], _STYLE
    )


def simplex_pictures(
    kept: Mapping[int, NDArray[Any]],
    sub_head: int,
    clusters: int,
    labels: NDArray[np.integer[Any]] | None,
    classes: Sequence[str],
) -> list[str]:
    """Draw where a few images stood between the clusters as training went on, as `read_simplex` returns them."""
    if not kept:
        return []
    panels = [
        ("untrained" if epoch == 0 else f"epoch {epoch}", points[sub_head]) for epoch, points in kept.items()
    ]
    if labels is None:
        labels, classes = np.zeros(len(panels[0][1]), np.int64), ("images",)
    return [simplex_series("The same images as training goes on", panels, clusters, labels, classes)]


def cluster_pictures(
    probabilities: NDArray[Any], labels: NDArray[np.integer[Any]] | None, classes: Sequence[str]
) -> list[str]:
    """Draw where images stand between the clusters, coloured by class or, without labels, by cluster."""
    if labels is None:
        names = [f"cluster {index}" for index in range(probabilities.shape[1])]
        return [simplex_plot("Images between clusters", probabilities, probabilities.argmax(1), names)]
    return [simplex_plot("Images between clusters, coloured by class", probabilities, labels, classes)]


def map_pictures(
    predict: Callable[[torch.Tensor], torch.Tensor],
    images: Images,
    names: Sequence[str],
    scale: Callable[[NDArray[Any]], NDArray[Any]],
) -> list[str]:
    """Show images next to their clusters, in their mean colours if these are known, and what each looks like.

    Args:
        predict: Function from raw images [1, C, H, W] to clusters [H, W].
        scale: Function from a raw image to values between 0 and 1.
    """
    shown: list[_Shown] = []
    for index in np.unique(np.linspace(0, len(images) - 1, min(_PICTURES, len(images)), dtype=int)):
        raw = images.image(int(index))[:, :_PICTURE_SIDE, :_PICTURE_SIDE]
        labels = predict(torch.from_numpy(np.ascontiguousarray(raw))[None]).cpu().numpy()
        known = images.valid(int(index))
        valid = np.ones(labels.shape, bool) if known is None else known[:_PICTURE_SIDE, :_PICTURE_SIDE]
        shown.append(_Shown(scale(raw), labels, valid))
    views = [_stretched(shown, images.channels, ("red", "green", "blue"))]
    if {"nir", "red", "green"} <= set(images.channels):
        views.append(_stretched(shown, images.channels, ("nir", "red", "green")))
    owners = np.concatenate([one.labels[one.valid] for one in shown])
    sizes = np.bincount(owners, minlength=len(names))
    means = colours(len(names))
    if {"red", "green", "blue"} <= set(images.channels):
        values = np.concatenate([seen[one.valid] for one, seen in zip(shown, views[0], strict=True)])
        for cluster in np.flatnonzero(sizes).tolist():
            means[cluster] = f"#{bytes(values[owners == cluster].mean(0).round().astype(np.uint8)).hex()}"
        means = spread_colours(means)
    palette = np.array([rgb(colour) for colour in means], np.uint8)
    shares = sizes / max(1, len(owners))
    rows = [_legend([f"{name}, {share:.1%}" for name, share in zip(names, shares, strict=True)], palette)]
    sides = [min(one.labels.shape) for one in shown]
    large = [index for index, side in enumerate(sides) if side >= max(sides) / _SLIVER]
    shown, views = [shown[index] for index in large], [[view[index] for index in large] for view in views]
    for index, one in enumerate(shown):
        clusters = palette[one.labels]
        clusters[~one.valid] = _NOTHING
        captions = ("image", "infrared, red, green")
        row = [picture(seen[index], caption) for seen, caption in zip(views, captions, strict=False)]
        rows.append(f'<div class="row">{"".join(row)}{picture(clusters, "clusters", photograph=False)}</div>')
    examples = [_cluster_examples(number, shown, views) for number in range(len(names))]
    keys = [_key(name, colour) for name, colour in zip(names, palette, strict=True)]
    table = "".join(f"<tr><td>{key}<td>{row}</tr>" for key, row in zip(keys, examples, strict=True) if row)
    if table:
        rows.append(
            "<h3>What they look like</h3><p>Where each cluster takes the largest part of a square; other clusters are "
            f'paler.</p><table class="looks">{table}</table>'
        )
    return rows


@dataclass(frozen=True)
class _Shown:
    """An image that is shown: values from 0 to 1 `[C, H, W]`, its clusters, and which pixels hold data."""

    scaled: NDArray[Any]
    labels: NDArray[np.integer[Any]]
    valid: NDArray[np.bool_]


def _stretched(
    shown: Sequence[_Shown], channels: Sequence[str], bands: Sequence[str]
) -> list[NDArray[np.uint8]]:
    """Return each image as a picture of three bands, from the 2nd to the 98th percentile of all of them."""
    values = np.concatenate([one.scaled[:, one.valid] for one in shown], 1)
    low, high = np.percentile(values, (2, 98), axis=1) if values.size else (0.0, 1.0)
    low, width = np.reshape(low, (-1, 1, 1)), np.reshape(np.maximum(high - low, 1e-3), (-1, 1, 1))
    return [visible((one.scaled - low) / width, channels, bands) for one in shown]


def _cluster_examples(
    number: int, shown: Sequence[_Shown], views: Sequence[Sequence[NDArray[np.uint8]]]
) -> str:
    """Cut out squares in which a cluster takes the largest part."""
    squares = []
    for index, one in enumerate(shown):
        height, width = one.labels.shape
        own = (one.labels == number) & one.valid
        for row in range(0, max(1, height - _EXAMPLE + 1), _EXAMPLE):
            for column in range(0, max(1, width - _EXAMPLE + 1), _EXAMPLE):
                square = slice(row, row + _EXAMPLE), slice(column, column + _EXAMPLE)
                squares.append((own[square].sum(), index, square, own[square]))
    best = sorted(squares, key=lambda item: -item[0])[:_EXAMPLES]
    figures = []
    for count, index, square, own in best:
        if count > best[0][0] / _SLIVER:
            for view in views:
                seen = view[index][square]
                pale = np.where(own[..., None], seen, 255 - (255 - seen) // 3).astype(np.uint8)
                figures.append(picture(pale, f"{100 * count / own.size:.0f} %"))
    return f'<div class="row">{"".join(figures)}</div>' if figures else ""


def visible(
    scaled: NDArray[Any], channels: Sequence[str], bands: Sequence[str] = ("red", "green", "blue")
) -> NDArray[np.uint8]:
    """Return three bands as a picture [H, W, 3], or the first band in grey if one of them is missing."""
    chosen = [channels.index(band) for band in bands] if set(bands) <= set(channels) else [0, 0, 0]
    return np.asarray((scaled[chosen].clip(0, 1) * 255).round(), np.uint8).transpose(1, 2, 0)


def _legend(names: Sequence[str], palette: NDArray[np.uint8]) -> str:
    keys = "".join(_key(name, colour) for name, colour in zip(names, palette, strict=True))
    return f'<p class="legend">{keys}</p>'


def _key(name: str, colour: NDArray[np.uint8]) -> str:
    return f'<span class="key"><i class="patch" style="background:#{bytes(colour).hex()}"></i>{escape(name)}</span>'


def _held_out(figures: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}<td>{_percent(precision)}<td>{_percent(recall)}</tr>"
        for name, precision, recall in zip(
            figures["classes"], figures["precision"], figures["recall"], strict=True
        )
    )
    return (
        f'<p class="figure"><b>{100 * figures["accuracy"]:.1f} %</b> of {figures["pixels"]:,} labelled pixels right, '
        f"mean IoU {100 * figures['mean_iou']:.1f} %, on places that were left out in turn.</p>"
        f"<p>{escape(figures['sentence'])} Calibration error {100 * figures['calibration_error']:.1f} %.</p>"
        f"<table><tr><th>class<th>precision<th>recall</tr>{rows}</table>"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _result(story: Story) -> str:
    evaluation = story.evaluation
    if story.held_out is not None:
        return _held_out(story.held_out)
    if evaluation is None:
        chosen = "" if story.start else " Sub-head and epoch were chosen by lowest loss."
        return (
            f"{_start(story)}<p>Not evaluated.{chosen} Where there are labels, <code>iic-train evaluate</code> "
            "measures accuracy.</p>"
        )
    protocol = evaluation["protocol"]
    matching = "one-to-one (Hungarian)" if protocol == "one_to_one" else "many-to-one (majority)"
    picked = evaluation["label_picked"]
    rows = "".join(_sub_head_row(evaluation, index) for index in range(len(evaluation["sub_heads"])))
    chosen = evaluation["sub_heads"][evaluation["chosen"]][protocol]
    charts = bar_chart("Accuracy of each class, %", evaluation["classes"], chosen["class_accuracy"])
    if fewer := evaluation["fewer_labels"]:
        line = Series("mean of ten draws", [(i, p["accuracy"]) for i, p in enumerate(fewer)], colours(1)[0])
        charts += line_chart(
            "Accuracy when fewer labels name the clusters",
            [line],
            x_label="share of the labels",
            x_ticks=[(i, f"{100 * p['fraction']:g} %") for i, p in enumerate(fewer)],
            percent=True,
        )
    return (
        f'{_start(story)}<p class="figure"><b>{100 * evaluation["accuracy"]:.1f} %</b> accuracy, {matching} matching, '
        f"sub-head {evaluation['chosen']}, chosen without labels by its loss.</p>"
        f"<p>All sub-heads: {100 * evaluation['mean']:.1f} ± {100 * evaluation['deviation']:.1f} %. "
        f"Picked by labels it would be sub-head {picked['sub_head']} with {100 * picked['accuracy']:.1f} %.</p>"
        "<table><tr><th>sub-head<th>one-to-one<th>many-to-one<th>mIoU<th>NMI<th>ARI</tr>"
        f'{rows}</table><div class="charts">{charts}</div>'
    )


def _start(story: Story) -> str:
    return f"<p>{escape(story.start)}</p>" if story.start else ""


def _sub_head_row(evaluation: Mapping[str, Any], index: int) -> str:
    figures = evaluation["sub_heads"][index]
    marked = ' class="chosen"' if index == evaluation["chosen"] else ""
    single, multiple = figures["one_to_one"], figures["many_to_one"]
    mean_iou = figures[evaluation["protocol"]]["mean_iou"]
    return (
        f"<tr{marked}><td>{index}<td>{100 * single['accuracy']:.2f}<td>{100 * multiple['accuracy']:.2f}"
        f"<td>{100 * mean_iou:.2f}<td>{figures['nmi']:.3f}<td>{figures['ari']:.3f}</tr>"
    )


def _curves(story: Story) -> str:
    charts = []
    followed = {head: epochs for head, epochs in story.heads.items() if len(epochs) > 1}
    for quantity in ("loss", "information", "entropy"):
        for head, epochs in followed.items():
            title = f"{quantity.capitalize()} of {_HEADS[head]}" + ("" if quantity == "loss" else ", nats")
            charts.append(
                line_chart(title, _sub_head_lines(epochs, quantity, story.chosen if head == "b" else None))
            )
    for head, epochs in followed.items():
        lines = _sub_head_lines([e for e in epochs if e.accuracy is not None], "accuracy", story.chosen)
        charts.append(line_chart(f"Accuracy of {_HEADS[head]}", lines, percent=True))
    if story.losses:
        charts.append(line_chart("Loss", [Series("labels", list(story.losses), colours(1)[0])]))
    return f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""


def _sub_head_lines(epochs: Sequence[HeadEpoch], quantity: str, chosen: int | None) -> list[Series]:
    if not epochs:
        return []
    count = len(getattr(epochs[0], quantity))
    return [
        Series(
            f"sub-head {index}" + (" (chosen)" if index == chosen and count > 1 else ""),
            [(epoch.epoch, getattr(epoch, quantity)[index]) for epoch in epochs],
            colour,
            dashed=chosen is not None and index != chosen,
        )
        for index, colour in enumerate(colours(count))
    ]


def _occupancy(story: Story) -> str:
    charts = []
    for head, epochs in story.heads.items():
        if epochs:
            index = story.chosen if head == "b" else int(np.argmin(epochs[-1].loss))
            shares = np.stack([epoch.occupancy[index] for epoch in epochs])
            names = [f"cluster {cluster}" for cluster in range(shares.shape[1])]
            x = [epoch.epoch for epoch in epochs]
            charts.append(
                share_chart(f"Share of each cluster, {_HEADS[head]}, sub-head {index}", x, shares, names)
            )
    return f'<div class="charts">{"".join(charts)}</div>' if charts else ""


def _settings(config: Mapping[str, Any]) -> str:
    if not config:
        return ""
    rows = "".join(f"<tr><td>{escape(k)}<td><code>{escape(v)}</code></tr>" for k, v in _flat(config))
    return f"<details><summary>every setting of the run</summary><table>{rows}</table></details>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", str(value)))
    return rows


_STYLE = """
h3{margin:18px 0 0;font-size:15px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:20px;margin-top:12px}
.row{display:flex;flex-wrap:wrap;gap:12px;margin:12px 0}
.looks .row{gap:6px;margin:4px 0}.looks .row figure{flex:0 0 96px}
figure{margin:0}figure.chart{max-width:560px}.row figure{flex:1 1 200px;max-width:345px}
figcaption{color:var(--soft);font-size:12px}
svg,img{width:100%;height:auto;display:block}img{image-rendering:pixelated;border-radius:4px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12px;color:var(--soft);margin:2px 8px}
.key{display:inline-flex;align-items:center;gap:6px}.key i{width:16px;border-top:3px solid}
.key i.patch{width:12px;height:12px;border:0;border-radius:3px}
text{fill:var(--ink);font:12px system-ui,sans-serif}text.title{font-weight:600;font-size:13px}
text.axis{fill:var(--soft);font-size:11px}.grid{stroke:var(--line);stroke-width:1}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.dots{fill:none;stroke-width:3.4;stroke-linecap:round;opacity:.55}
.small .dots{stroke-width:2}
table{margin:8px 0}th,td{padding:3px 16px 3px 0;text-align:left}
tr.chosen{font-weight:600}summary{cursor:pointer}code{font-size:12px;word-break:break-word}
"""


REPORT = "report.html"
SIMPLEX_POINTS = 2000
"""Number of images whose final place between the clusters is drawn."""


@checked
def write_report(run: Run, dataset: Dataset | None = None, *, checkpoint: Checkpoint = "best") -> Path:
    """Write `report.html` into a run's folder and return its path.

    Pictures show what the trained network makes of a few images of its data. The result is that of `evaluate`, if
    the run was evaluated.
    """
    dataset = dataset or run.dataset()
    file, path, choice = run.path / EVALUATION, run.path / REPORT, run.choice(checkpoint)
    with reading(run.path):
        evaluation = json.loads(file.read_bytes()) if file.is_file() else None
        story = Story(
            title=run.id,
            facts=_run_facts(run, choice, dataset),
            heads=_run_heads(run),
            chosen=choice.sub_head,
            start="" if run.config.trains_clusters else FIXED_CLUSTERS,
            evaluation=evaluation,
            held_out=run.held_out(),
            losses=[(row["epoch"], row["loss"]) for row in run.metrics() if not row["train"]],
            pictures=_run_pictures(run, dataset, checkpoint, _cluster_names(run, evaluation)),
            config={"config": run.config.to_json(), "data": dict(run.data), "versions": dict(run.versions)},
        )
        page = report_page(story)
    write_atomically(path, page.encode())
    return path


def _run_facts(run: Run, choice: Choice, dataset: Dataset) -> dict[str, str]:
    config, rows = run.config, run.metrics()
    network = config.network
    auxiliary = network.clusters_a and not config.only_starts
    heads = f"{network.clusters_b}" + (f" + {network.clusters_a} auxiliary" if auxiliary else "")
    seconds = sum(row["seconds"] for row in rows)
    training = {
        "sub-heads": str(network.sub_heads),
        "epochs": f"{rows[-1]['epoch'] if rows else 0} of {config.epochs}",
        "chosen": f"epoch {choice.epoch}, sub-head {choice.sub_head}, loss {choice.loss:.3f}",
        "time": f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s",
        "speed": f"{np.mean([row['images_per_second'] for row in rows]):,.0f} images/s" if rows else "-",
    }
    return {
        "data": f"{dataset.name}, {len(dataset.train_b):,} images",
        "network": network.name,
        "clusters": heads,
        **({} if config.only_starts else training),
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
