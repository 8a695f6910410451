"""Small classifiers of features, and the solvers that fit them: numpy only, seconds at most."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from iic_runtime.model.onnx_head import Head

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

PENALTY = 0.01
"""Weight of the squared weights over the number of clicks."""
BIAS_PENALTY = 1e-4
RATE, DECAY = 1e-2, 1e-3
SMALLEST_BATCH, LARGEST_BATCH = 128, 1024


class _OneThread:
    """How many functions want products of matrices on one thread at the moment."""

    def __init__(self) -> None:
        self.controller = ThreadpoolController()
        self.lock, self.users = Lock(), 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        with self.lock:
            if self.users == 0:
                self.limiter = self.controller.limit(limits=1, user_api="blas")
            self.users += 1
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if self.users == 0:
                    self.limiter.restore_original_limits()


one_thread = _OneThread().hold
"""A context, or a decorator, for fits: the number of threads decides in what order numpy adds, and the last digit can
decide what a fit comes to. With one thread the result is the same in every process of a machine."""


@dataclass(frozen=True)
class NetworkFit:
    """How a small network is fitted.

    Attributes:
        steps: Number of steps.
        noise: Standard deviation of the noise on its standardised inputs, without which it remembers single clicks.
        balance: Whether classes are drawn alike.
        units: Number of units of its hidden layer.
    """

    steps: int = 200
    noise: float = 0.5
    balance: bool = True
    units: int = 64


NETWORK_FIT = NetworkFit()


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Turn logits `[N, classes]` into probabilities."""
    masses = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(masses / masses.sum(-1, keepdims=True))


def balanced(labels: Ints, weights: Floats, classes: int) -> Floats:
    """Scale the weights of rows so that every class that is there has the same sum, and all together 1."""
    totals = np.bincount(labels, weights, minlength=classes)
    shares = weights / np.maximum(totals, 1e-9)[labels] / np.count_nonzero(totals)
    return shares.astype(np.float32)


def fit_linear(rows: Floats, labels: Ints, weights: Floats, classes: int) -> Head:
    """Fit a class-balanced multinomial logistic regression with a penalty on its weights.

    Args:
        rows: Standardised features `[N, F]`.
        labels: Class of each row.
        weights: Weight of each row; those of one click sum to 1.
    """
    count, size = rows.shape
    ridge = np.full((size + 1, 1), PENALTY / float(weights.sum()))
    ridge[-1] = BIAS_PENALTY
    shares = balanced(labels, weights, classes)
    inputs = np.c_[rows / np.sqrt(size), np.ones(count)].astype(np.float32)
    own = np.arange(count), labels

    def loss(flat: Doubles) -> tuple[float, Doubles]:
        matrix = flat.reshape(size + 1, classes)
        errors = softmax(inputs @ matrix.astype(np.float32))
        value = -(shares * np.log(errors[own] + 1e-12)).sum() + 0.5 * (ridge * matrix * matrix).sum()
        errors[own] -= 1.0
        gradient = inputs.T @ (shares[:, None] * errors) + ridge * matrix
        return float(value), gradient.astype(np.float64).ravel()

    matrix = minimise(loss, np.zeros((size + 1) * classes)).reshape(size + 1, classes)
    weight = (matrix[:-1] / np.sqrt(size)).T
    return Head(weight.astype(np.float32), matrix[-1].astype(np.float32))


def fit_network(
    rows: Floats,
    labels: Ints,
    weights: Floats,
    classes: int,
    seed: int = 0,
    settings: NetworkFit = NETWORK_FIT,
) -> Head:
    """Train a network with one hidden layer; each step draws rows by weight, and adds noise.

    Args:
        labels: Class of each row.
        weights: Weight of each row.
    """
    rng = np.random.default_rng(seed)
    size = rows.shape[1]
    chances = np.cumsum(balanced(labels, weights, classes) if settings.balance else weights / weights.sum())
    batch = int(np.clip(round(float(weights.sum())), SMALLEST_BATCH, LARGEST_BATCH))
    units = settings.units
    shapes = ((size, units, 2 / size), (1, units, 0.0), (units, classes, 1 / units), (1, classes, 0.0))
    parameters = [
        rng.normal(0, np.sqrt(variance), (high, wide)).astype(np.float32) for high, wide, variance in shapes
    ]
    optimiser = Adam(parameters)
    for step in range(settings.steps):
        drawn = np.searchsorted(chances, (np.arange(batch) + rng.random()) / batch)
        drawn = np.minimum(drawn, len(chances) - 1)
        noisy = rows[drawn] + settings.noise * rng.standard_normal((batch, size), np.float32)
        first, first_bias, second, second_bias = parameters
        hidden = np.maximum(noisy @ first + first_bias, 0)
        errors = softmax(hidden @ second + second_bias)
        errors[np.arange(batch), labels[drawn]] -= 1.0
        errors /= batch
        back = (errors @ second.T) * (hidden > 0)
        gradients = [
            noisy.T @ back + DECAY * first,
            back.sum(0, keepdims=True),
            hidden.T @ errors + DECAY * second,
            errors.sum(0, keepdims=True),
        ]
        optimiser.step(gradients, RATE * 0.5 * (1 + np.cos(np.pi * (step + 1) / settings.steps)))
    first, first_bias, second, second_bias = parameters
    linear = np.zeros((classes, size), np.float32)
    return Head(linear, second_bias[0], first.T.copy(), first_bias[0], second.T.copy())


class Adam:
    """Adam on arrays that are changed in place."""

    def __init__(self, parameters: list[NDArray[Any]]) -> None:
        self._parameters = parameters
        self._means = [np.zeros_like(parameter) for parameter in parameters]
        self._squares = [np.zeros_like(parameter) for parameter in parameters]
        self._steps = 0

    def step(self, gradients: list[NDArray[Any]], rate: float) -> None:
        """Move against the gradients."""
        self._steps += 1
        for index, gradient in enumerate(gradients):
            self._means[index] += 0.1 * (gradient - self._means[index])
            self._squares[index] += 0.01 * (gradient**2 - self._squares[index])
            mean = self._means[index] / (1 - 0.9**self._steps)
            square = self._squares[index] / (1 - 0.99**self._steps)
            self._parameters[index] -= rate * mean / (np.sqrt(square) + 1e-8)


def minimise(
    function: Callable[[Doubles], tuple[float, Doubles]], start: Doubles, steps: int = 200, memory: int = 8
) -> Doubles:
    """Minimise a smooth convex function with L-BFGS.

    Args:
        function: Returns its value and gradient at a point.
        start: Where to begin.
    """
    point = start
    value, gradient = function(point)
    pairs: list[tuple[Doubles, Doubles]] = []
    for _ in range(steps):
        direction = _newton_direction(gradient, pairs)
        slope, rate = float(gradient @ direction), 1.0
        new_value, new_gradient = function(point + direction)
        while new_value > value + 1e-4 * rate * slope and rate > 1e-8:
            rate *= 0.5
            new_value, new_gradient = function(point + rate * direction)
        move, change = rate * direction, new_gradient - gradient
        if move @ change > 1e-12:
            pairs = [*pairs, (move, change)][-memory:]
        fall = value - new_value
        point, value, gradient = point + move, new_value, new_gradient
        if fall < 1e-7 * max(abs(value), 1e-3) or np.abs(gradient).max() < 1e-6:
            break
    return point


def _newton_direction(gradient: Doubles, pairs: list[tuple[Doubles, Doubles]]) -> Doubles:
    """Return where to go: the two-loop recursion of L-BFGS."""
    direction = -gradient
    shares = []
    for move, change in reversed(pairs):
        share = (move @ direction) / (move @ change)
        shares.append(share)
        direction = direction - share * change
    if pairs:
        move, change = pairs[-1]
        direction = direction * ((move @ change) / (change @ change))
    for (move, change), share in zip(pairs, reversed(shares), strict=True):
        direction = direction + (share - (change @ direction) / (move @ change)) * move
    return direction
