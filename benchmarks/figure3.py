"""Figures 3 and 5 of the paper for a run on images: what clusters look like, and how sure single images are.

    python benchmarks/figure3.py RUN [--images N] [--output FOLDER]

RUN is a folder of `iic-train recipe mnist-small`, `cifar10-small` or another clustering run, whose data is still there.
`figure3.png` shows all images (or N spread over them) between the corners of a polygon, untrained and trained, coloured
by their class, with the mean image of each cluster at its corner. `figure5.png` shows the first images of each class
and the probabilities of their clusters as bars: green for the class, red for a wrong prediction, blue for others; the
last row shows the surest failures of each class. Clusters are matched to classes one to one.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from iic_train.evaluation.evaluate import Confusion, one_to_one, score
from iic_train.evaluation.plots import colours, simplex_corners
from iic_train.evaluation.simplex import cluster_probabilities, even_sample
from iic_train.models.networks import Network
from iic_train.runs import Run, load_run

SIDE, RADIUS, MEAN = 900, 310, 92
"""Side of a panel of figure 3, radius of its polygon and side of mean images, in pixels."""
ROWS, CELL, BARS = 4, 96, 64
"""Rows of images of figure 5, of which the last are failures; side of an image and height of its bars."""
FINER = 2
"""Pixels that are drawn per pixel."""
RIGHT, WRONG, OTHER = "#2e9e4f", "#d33a2c", "#4a78c8"


def simplex_panel(title: str, probabilities: Any, labels: Any, images: Any, classes: int) -> Image.Image:
    """Draw images between the corners of a polygon, and the mean image of each cluster."""
    clusters, size = probabilities.shape[1], FINER * SIDE
    corners, centre = simplex_corners(clusters), size / 2
    canvas = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(canvas)
    places = centre + FINER * RADIUS * (probabilities @ corners)
    places += np.random.default_rng(0).normal(0, 5 * FINER, places.shape)
    palette = colours(classes)
    for (x, y), label in zip(places, labels, strict=True):
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=palette[label])
    nearest = probabilities.argmax(1)
    for cluster, corner in enumerate(corners):
        own = images[nearest == cluster]
        if len(own):
            shown = as_picture(own.mean(0), FINER * MEAN)
            x, y = centre + FINER * (RADIUS + 0.85 * MEAN) * corner - FINER * MEAN / 2
            canvas.paste(shown, (round(x), round(y)))
    draw.text((14 * FINER, 14 * FINER), title, fill="black", font=font(22))
    return canvas.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def as_picture(values: Any, side: int) -> Image.Image:
    """Return values `[bands, h, w]` of 0 to 255 as a picture."""
    pixels = np.clip(values, 0, 255).astype(np.uint8)
    grey = len(pixels) == 1
    picture = Image.fromarray(pixels[0] if grey else pixels.transpose(1, 2, 0)).convert("RGB")
    return picture.resize((side, side), Image.Resampling.NEAREST)


def font(size: int) -> Any:
    """Return the font of texts."""
    return ImageFont.load_default(FINER * size)


def bars(images: Any, probabilities: Any, labels: Any, classes: tuple[str, ...]) -> Image.Image:
    """Draw a few images of each class with their probabilities, and those that are wrong with most confidence."""
    width, height = len(classes) * (CELL + 12) + 12, ROWS * (CELL + BARS + 14) + 34
    canvas = Image.new("RGB", (FINER * width, FINER * height), "white")
    draw = ImageDraw.Draw(canvas)
    predicted = probabilities.argmax(1)
    for label, name in enumerate(classes):
        own = np.flatnonzero(labels == label)
        wrong = own[predicted[own] != label]
        surest = wrong[np.argsort(-probabilities[wrong].max(1))[:1]]
        left = FINER * (12 + label * (CELL + 12))
        draw.text((left + FINER * CELL / 2, 8 * FINER), name, fill="black", font=font(14), anchor="ma")
        for row, index in enumerate([*own[: ROWS - 1], *surest]):
            top = FINER * (30 + row * (CELL + BARS + 14))
            canvas.paste(as_picture(images[index], FINER * CELL), (left, top))
            foot = top + FINER * (CELL + BARS)
            step = FINER * CELL / len(classes)
            for other, share in enumerate(probabilities[index]):
                wrongly = other == predicted[index]
                colour = RIGHT if other == label else WRONG if wrongly else OTHER
                high = max(FINER, FINER * (BARS - 6) * float(share))
                x = left + other * step
                draw.rectangle((x + FINER, foot - high, x + step - FINER, foot), fill=colour)
    return canvas.resize((width, height), Image.Resampling.LANCZOS)


def untrained(run: Run) -> Network:
    """Return a network as a run starts with, by the run's seed."""
    torch.manual_seed(run.config.seed)
    return Network(run.config.network)


def main() -> None:
    """Compute the probabilities of all images, print accuracy and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=1 << 20, help="images at most, spread over all")
    parser.add_argument("--output", type=Path, default=Path())
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = load_run(options.run)
    dataset, choice = run.dataset(), run.choice("best")
    indices = even_sample(dataset.test, options.images)
    labels = np.array([dataset.test.label(int(index)) for index in indices])
    images = np.stack([dataset.test.image(int(index)) for index in indices])
    panels = []
    names = {"untrained": untrained(run), f"after epoch {choice.epoch}": run.network("best")}
    for title, network in names.items():
        found = cluster_probabilities(network, run.config.pairs, dataset.test, indices)[:, choice.sub_head]
        panels.append(simplex_panel(title, found, labels, images, len(dataset.classes)))
    confusion = Confusion(found.shape[1], len(dataset.classes))
    confusion.add(torch.from_numpy(found.argmax(1)), torch.from_numpy(labels))
    match = one_to_one(confusion.counts)
    print(f"{len(labels)} images: {100 * score(confusion.counts, match).accuracy:.1f} % right")
    both = Image.new("RGB", (2 * SIDE, SIDE))
    for number, panel in enumerate(panels):
        both.paste(panel, (number * SIDE, 0))
    both.save(options.output / "figure3.png")
    by_class = np.zeros((len(labels), len(dataset.classes)))
    by_class[:, match[match >= 0]] = found[:, match >= 0]
    bars(images, by_class, labels, dataset.classes).save(options.output / "figure5.png")


if __name__ == "__main__":
    main()
