"""Fit a head to clicks, and judge it by cross-validation over places."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from iic_runtime.model.card import FeatureGroup
from iic_runtime.model.onnx_head import Head
from iic_runtime.naming.regression import (
    Floats,
    Ints,
    NetworkFit,
    fit_linear,
    fit_network,
    one_thread,
    softmax,
)

FITS = ((40, NetworkFit(steps=400, noise=0.25)), (12, NetworkFit()), (0, NetworkFit(noise=1.0)))
"""Clicks per class (median) from which a network is fitted so: the fewer clicks, the more noise."""
PIXELS, DECIDED, PIXEL_FIT = 0.5, 12, NetworkFit(noise=0.1, units=32)
"""Share of a network that sees single pixels only, clicks per class (median) from which cross-validation decides
whether it takes part, and how it is fitted."""
SMALLEST_PLACE = 64
"""Least side in pixels of the squares whose clicks cross-validation keeps together."""
FOLDS = 5
TEMPERATURES = np.geomspace(0.2, 3.0, 28)
FREQUENCY = 0.5
"""Power of the frequencies of classes over the scene by which probabilities are weighted. 1 would be right if they were
known; they are estimated by a head that a few clicks fitted, and 0.5 loses nothing where it is wrong."""
RAREST = 0.05
"""Least frequency of a class, compared with that of all classes alike."""
RECOGNISED = 0.8
"""A class of which a smaller share of clicks is recognised needs more of them."""


@dataclass(frozen=True)
class Samples:
    """Clicked pixels and the neighbours that look like them.

    Attributes:
        rows: Standardised features `[R, F]`.
        weights: Weight of each row; those of one click sum to 1.
        owner: The click that each row belongs to.
        own_row: The row of each click's own pixel `[N]`.
        labels: Class of each click `[N]`.
        places: Row and column of each click in pixels `[N, 2]`.
        side: Side in pixels of the squares whose clicks are of one place.
        classes: Number of classes.
        members: Features that each of the linear heads sees, the first of them all; the mean of the heads is taken.
        single: Features of single pixels.
        learnt: Features that a model has learnt before the clicks.
    """

    rows: Floats
    weights: Floats
    owner: Ints
    own_row: Ints
    labels: Ints
    places: Ints
    side: int
    classes: int
    members: Sequence[Ints]
    single: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    learnt: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def condensed(self) -> "Samples":
        """Return two rows for each click, its own pixel and the mean of its neighbours: a fit takes milliseconds."""
        count = len(self.labels)
        firsts = np.searchsorted(self.owner, np.arange(count))
        means = np.add.reduceat(self.rows * self.weights[:, None], firsts)
        return replace(
            self,
            rows=np.concatenate([self.rows[self.own_row], means]),
            weights=np.full(2 * count, 0.5, np.float32),
            owner=np.tile(np.arange(count), 2),
            own_row=np.arange(count),
        )

    def fit_linear(self, clicks: NDArray[np.bool_], members: Sequence[Ints]) -> Head:
        """Fit the mean of linear heads that see these features to some of the clicks."""
        rows, labels, weights = self._rows_of(clicks)
        weight = np.zeros((self.classes, rows.shape[1]), np.float32)
        bias = np.zeros(self.classes, np.float32)
        for features in members:
            head = fit_linear(rows[:, features], labels, weights, self.classes)
            weight[:, features] += head.weight / len(members)
            bias += head.bias / len(members)
        return Head(weight, bias)

    def fit_network(self, clicks: NDArray[np.bool_], features: Ints, settings: NetworkFit, seed: int) -> Head:
        """Fit a network that sees these features to some of the clicks."""
        rows, labels, weights = self._rows_of(clicks)
        inputs = np.ascontiguousarray(rows[:, features])
        head = fit_network(inputs, labels, weights, self.classes, seed, settings)
        assert head.hidden_weight is not None
        hidden = np.zeros((len(head.hidden_weight), rows.shape[1]), np.float32)
        hidden[:, features] = head.hidden_weight
        return replace(head, weight=np.zeros((self.classes, rows.shape[1]), np.float32), hidden_weight=hidden)

    def computed_and_learnt(self) -> list[Ints]:
        """Return the features that follow a fixed rule, and those that are learnt; one part if all are of one kind."""
        computed = np.setdiff1d(np.arange(self.rows.shape[1]), self.learnt)
        return [part for part in (computed, self.learnt) if len(part)]

    def _rows_of(self, clicks: NDArray[np.bool_]) -> tuple[Floats, Ints, Floats]:
        kept = clicks[self.owner]
        return self.rows[kept], self.labels[self.owner[kept]], self.weights[kept]


@dataclass(frozen=True)
class Judgement:
    """The result of cross-validation: every click is judged by a head fitted without clicks of its place.

    Attributes:
        confusion: `[classes, classes]`: clicks of a class (row) by the class they were taken for.
    """

    confusion: Ints

    @property
    def accuracy(self) -> float | None:
        """Share of the judged clicks that were recognised; None if none could be judged."""
        total = int(self.confusion.sum())
        return int(np.trace(self.confusion)) / total if total else None

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean over classes of the share of clicks that were recognised."""
        totals = self.confusion.sum(1)
        judged = totals > 0
        return float((np.diag(self.confusion)[judged] / totals[judged]).mean()) if judged.any() else None


@one_thread()
def fit_head(samples: Samples, scene: Floats, seed: int = 0, *, full: bool = True) -> tuple[Head, Judgement]:
    """Fit a head to clicks: a small network on all features, averaged with one on those of single pixels.

    From `DECIDED` clicks per class on, cross-validation over places decides whether the second takes part: labels that
    follow from single pixels need it. It also decides how sure the head may be of itself, and says how well it does.
    Fewer clicks cannot tell whether what a model has learnt suits the scene: it has a network of its own then.

    Args:
        scene: Standardised features `[M, F]` of pixels spread over the scene.
        full: Whether to fit networks; without them, linear heads take milliseconds.
    """
    folds = split_by_place(samples.places, samples.side, samples.labels, samples.classes, seed)
    everything = np.ones(len(samples.labels), bool)
    if not full:
        # The head of all features stands for the mean of all members: five folds must not take long.
        logits = cross_validate(samples, folds, lambda some: samples.fit_linear(some, samples.members[:1]))
        head = samples.fit_linear(everything, samples.members)
    else:
        typical = float(np.median(np.bincount(samples.labels, minlength=samples.classes)))
        settings = next(settings for least, settings in FITS if typical >= least)
        parts = samples.computed_and_learnt() if typical < DECIDED else [np.arange(samples.rows.shape[1])]

        def fit(some: NDArray[np.bool_]) -> Head:
            first, *others = (samples.fit_network(some, part, settings, seed) for part in parts)
            return join(first, others[0], 0.5) if others else first

        def fit_pixels(some: NDArray[np.bool_]) -> Head:
            return samples.fit_network(some, samples.single, PIXEL_FIT, seed)

        logits, head = cross_validate(samples, folds, fit), fit(everything)
        if len(samples.single):
            mixed = PIXELS * cross_validate(samples, folds, fit_pixels) + (1 - PIXELS) * logits
            if typical < DECIDED or surprise(mixed, samples.labels) < surprise(logits, samples.labels):
                logits, head = mixed, join(head, fit_pixels(everything), PIXELS)
    head = tempered(head, temperature(logits, samples.labels))
    return weighted_by_frequency(head, scene), judge(logits, samples.labels)


def cross_validate(samples: Samples, folds: Ints, fit: Callable[[NDArray[np.bool_]], Head]) -> Floats:
    """Return logits `[N, classes]` of each click by a head that saw no click of its fold; NaN where there is none."""
    own = samples.rows[samples.own_row]
    return judge_by_fold(
        folds, samples.labels, samples.classes, lambda training, test: fit(training).logits(own[test])
    )


def choose_members(groups: Sequence[FeatureGroup], size: int) -> list[Ints]:
    """Return which of `size` features each linear head takes: all, and if kinds are known, nested parts of them.

    Close surroundings generalise better from few clicks, wide ones contain more; and what was learnt on a scene may be
    less or more than what a fixed rule computes. The mean of heads on each does better than a head on all.
    """
    everything = np.arange(size)
    if sum(group.size for group in groups) != size:
        return [everything]
    sides = np.repeat([group.side for group in groups], [group.size for group in groups])
    learnt = np.repeat([group.learnt for group in groups], [group.size for group in groups])
    distinct = np.unique(sides)
    finest, middle = (distinct[min(index, len(distinct) - 1)] for index in (1, 2))
    parts = (sides <= finest, sides <= middle, ~learnt & (sides <= middle), ~learnt)
    chosen = {part.tobytes(): np.flatnonzero(part) for part in parts if part.any() and not part.all()}
    return [everything, *chosen.values()]


def learnt_features(groups: Sequence[FeatureGroup], size: int) -> Ints:
    """Return which of `size` features are learnt; none if kinds are not known."""
    learnt = np.repeat([group.learnt for group in groups], [group.size for group in groups])
    return np.flatnonzero(learnt) if len(learnt) == size else np.zeros(0, np.int64)


Predict = Callable[[NDArray[np.bool_], NDArray[np.bool_]], Floats]


def judge_by_fold(folds: Ints, labels: Ints, classes: int, predict: Predict) -> Floats:
    """Return `predict(training, test)` for the clicks of each fold, NaN where a class would be missing."""
    logits = np.full((len(labels), classes), np.nan, np.float32)
    for fold in np.unique(folds):
        test = folds == fold
        if len(np.unique(labels[~test])) == classes:  # a class that lies in one place only cannot be judged
            logits[test] = predict(~test, test)
    return logits


def judge(logits: Floats, labels: Ints) -> Judgement:
    """Count what the clicks that were judged were taken for."""
    judged = np.isfinite(logits[:, 0])
    classes = logits.shape[1]
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels[judged], logits[judged].argmax(1)), 1)
    return Judgement(confusion)


def place_side(halo: int) -> int:
    """Return the side in pixels of a place for a model that sees `halo` pixels in each direction."""
    return max(SMALLEST_PLACE, 2 * halo)


def split_by_place(places: Ints, side: int, labels: Ints, classes: int, seed: int = 0) -> Ints:
    """Return a fold for each click: clicks in one square share it, classes are spread over the folds."""
    rng = np.random.default_rng(seed)
    cells, cell_of = np.unique(places // side, axis=0, return_inverse=True)
    cell_of = cell_of.reshape(-1)
    counts = np.zeros((len(cells), classes))
    np.add.at(counts, (cell_of, labels), 1)
    shares = counts / np.maximum(counts.sum(0), 1)
    load, fold_of = np.zeros((FOLDS, classes)), np.zeros(len(cells), np.int64)
    for cell in sorted(rng.permutation(len(cells)), key=lambda index: -float(shares[index].max())):
        cost = load + shares[cell]
        fold_of[cell] = int(np.argmin(cost.max(1) + cost.sum(1) + 1e-3 * rng.random(FOLDS)))
        load[fold_of[cell]] += shares[cell]
    return fold_of[cell_of]


def temperature(logits: Floats, labels: Ints) -> float:
    """Return the number to divide logits by so that confidence is a probability, by the clicks that were judged."""
    if not np.isfinite(logits[:, 0]).any():
        return 1.0
    return float(min(TEMPERATURES, key=lambda divisor: _loss(logits, labels, divisor)))


def surprise(logits: Floats, labels: Ints) -> float:
    """Return the mean negative logarithm of the probability of the right class, of logits with the best temperature."""
    return _loss(logits, labels, temperature(logits, labels))


def _loss(logits: Floats, labels: Ints, divisor: float) -> float:
    judged = np.isfinite(logits[:, 0])
    if not judged.any():
        return 0.0
    own = np.arange(int(judged.sum())), labels[judged]
    return float(-np.log(softmax(logits[judged] / divisor)[own] + 1e-6).mean())


def join(head: Head, other: Head, share: float) -> Head:
    """Average the logits of two heads, of which the other has this share; at least one has a hidden layer."""
    parts = ((head, np.float32(1 - share)), (other, np.float32(share)))
    hidden = [
        (part.hidden_weight, part.hidden_bias, weight * part.hidden_out)
        for part, weight in parts
        if part.hidden_weight is not None and part.hidden_bias is not None and part.hidden_out is not None
    ]
    weights, biases, outs = zip(*hidden, strict=True)
    return Head(
        np.sum([weight * part.weight for part, weight in parts], 0),
        np.sum([weight * part.bias for part, weight in parts], 0),
        np.concatenate(weights),
        np.concatenate(biases),
        np.concatenate(outs, 1),
    )


def tempered(head: Head, divisor: float) -> Head:
    """Return the head with its logits divided."""
    hidden = None if head.hidden_out is None else head.hidden_out / divisor
    return replace(head, weight=head.weight / divisor, bias=head.bias / divisor, hidden_out=hidden)


def weighted_by_frequency(head: Head, scene: Floats) -> Head:
    """Return the head with more weight on the classes that it finds often.

    Clicks say nothing about how common a class is, so a head is fitted as if all were equally common, and a class that
    covers little of the scene takes too much of it.

    Args:
        scene: Features `[M, F]` of pixels spread over the scene.
    """
    frequencies = softmax(head.logits(scene)).mean(0) * head.classes
    shift = FREQUENCY * np.log(np.maximum(frequencies, RAREST))
    return replace(head, bias=(head.bias + shift).astype(np.float32))


@one_thread()
def unstandardised(head: Head, mean: Floats, factor: Floats) -> Head:
    """Return the head for raw features, of one that was fitted to `(features - mean) * factor`."""

    def raw(weight: Floats, bias: Floats) -> tuple[Floats, Floats]:
        scaled = weight * factor
        return scaled, np.asarray(bias - scaled @ mean, np.float32)

    weight, bias = raw(head.weight, head.bias)
    if head.hidden_weight is None or head.hidden_bias is None:
        return replace(head, weight=weight, bias=bias)
    hidden_weight, hidden_bias = raw(head.hidden_weight, head.hidden_bias)
    return replace(head, weight=weight, bias=bias, hidden_weight=hidden_weight, hidden_bias=hidden_bias)


def advise(judgement: Judgement, names: Sequence[str]) -> tuple[str, ...]:
    """Say which classes need more clicks, and what they are taken for."""
    sentences = []
    for index, row in enumerate(judgement.confusion):
        total = int(row.sum())
        if not total:
            sentences.append(f"{names[index]}: all clicks lie in one place; click it elsewhere too.")
        elif row[index] / total < RECOGNISED:
            others = np.where(np.arange(len(row)) == index, -1, row)
            sentences.append(
                f"{names[index]}: {row[index]} of {total} clicks are recognised from the others, most of the rest are "
                f"taken for {names[int(others.argmax())]}; click more of both."
            )
    return tuple(sentences)
