"""Two tasks on pairs of places in an image: whether they are near each other, and in which direction.

Isola et al. 2016 ask whether two patches occur together, Doersch et al. 2015 where one lies as seen from the other. As
in the paper's comparison, patches are what the cells of the trunk see, and k-means clusters the features of the cells.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import UsageError
from iic_research.features import Features, feature_count, trunk_features
from iic_train.config import TrainConfig
from iic_train.data.loader import Batch
from iic_train.losses.step import Pairs
from iic_train.models.networks import Network
from iic_train.views.random_numbers import Draw

PAIRS = 256
"""Number of pairs of places per image and step."""
HIDDEN = 256
DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))


class _PairTask:
    """What the two tasks share: a head of two layers that sees the features of two places."""

    def __init__(self, network: Network, config: TrainConfig, answers: int) -> None:
        self.network, self.config = network, config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed + 1)
            head = nn.Sequential(
                nn.Linear(2 * feature_count(network), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, answers)
            )
        self.head = head.to(next(network.parameters()).device)

    def start_epoch(self, epoch: int) -> Iterable[nn.Parameter]:
        """Return the parameters of the head."""
        return self.head.parameters()

    def features(self) -> Features:
        """Return the features of the trunk."""
        return trunk_features(self.network, self.config)

    def _answers(self, first: Tensor, second: Tensor) -> Tensor:
        answers: Tensor = self.head(torch.cat([first, second], 1).transpose(1, 2))
        return answers

    def _valid(self, batch: Batch, like: Tensor) -> Tensor:
        """Return which cells of features `[N, F, h, w]` count, `[N, 1, h, w]`."""
        if batch.valid is None:
            return like.new_ones(len(like), 1, *like.shape[-2:])
        cell = self.network.cell
        return batch.valid[:, None, ::cell, ::cell].to(like.dtype)


class Isola(_PairTask):
    """Whether two places are near each other in one image, or come from two images."""

    def __init__(self, network: Network, config: TrainConfig) -> None:
        super().__init__(network, config, answers=1)
        self.radius = max(1, config.radius // network.cell)

    def loss(self, batch: Batch, pairs: Pairs, draw: Draw) -> Tensor:
        """Return the cross-entropy of the answers for as many near pairs as pairs from two images."""
        features = self.network.features(pairs.first)
        count, _, height, width = features.shape
        rows, columns = (_whole(draw, (count, PAIRS), length) for length in (height, width))
        shifts = _whole(draw, (2, count, PAIRS), 2 * self.radius + 1) - self.radius
        near = ((rows + shifts[0]).clamp(0, height - 1), (columns + shifts[1]).clamp(0, width - 1))
        far = tuple(_whole(draw, (count, PAIRS), length) for length in (height, width))
        valid = self._valid(batch, features)
        first, first_valid = _take(features, rows, columns), _take(valid, rows, columns)
        losses, weights = [], []
        for truth, (places, shifted) in enumerate(((far, 1), (near, 0))):
            second, second_valid = (
                _take(maps.roll(shifted, 0), places[0], places[1]) for maps in (features, valid)
            )
            answers = self._answers(first, second).squeeze(2)
            target = torch.full_like(answers, float(truth))
            losses.append(F.binary_cross_entropy_with_logits(answers, target, reduction="none"))
            weights.append((first_valid * second_valid)[:, 0])
        return _mean(torch.stack(losses), torch.stack(weights))


class Doersch(_PairTask):
    """In which of eight directions the second of two places lies, which are too far apart to see the same pixels."""

    def __init__(self, network: Network, config: TrainConfig) -> None:
        super().__init__(network, config, answers=len(DIRECTIONS))
        side, cell = config.size or 0, network.cell
        self.nearest = -(-network.receptive_field // cell)
        self.farthest = min(self.nearest * 3 // 2, -(-side // cell) - 1)
        if self.farthest < self.nearest:
            raise UsageError(
                f"Doersch compares places {self.nearest * cell} pixels apart, and windows of {side} pixels are too "
                f"small for that: choose a `network` that sees less than {network.receptive_field} pixels."
            )

    def loss(self, batch: Batch, pairs: Pairs, draw: Draw) -> Tensor:
        """Return the cross-entropy of the directions."""
        features = self.network.features(pairs.first)
        count, _, height, width = features.shape
        truth = _whole(draw, (count, PAIRS), len(DIRECTIONS))
        distance = self.nearest + _whole(draw, (count, PAIRS), self.farthest - self.nearest + 1)
        shifts = torch.tensor(DIRECTIONS, device=features.device)[truth] * distance[..., None]
        rows, columns = (
            _inside(draw, shift, length)
            for shift, length in zip(shifts.unbind(-1), (height, width), strict=True)
        )
        valid = self._valid(batch, features)
        first, first_valid = (_take(maps, rows, columns) for maps in (features, valid))
        second, second_valid = (
            _take(maps, rows + shifts[..., 0], columns + shifts[..., 1]) for maps in (features, valid)
        )
        losses = F.cross_entropy(self._answers(first, second).transpose(1, 2), truth, reduction="none")
        return _mean(losses, (first_valid * second_valid)[:, 0])


def _whole(draw: Draw, shape: tuple[int, ...], below: int) -> Tensor:
    """Draw whole numbers from 0 to `below` - 1."""
    return (draw.uniform(shape, 0.0, 1.0) * below).long().clamp_max(below - 1)


def _inside(draw: Draw, shift: Tensor, length: int) -> Tensor:
    """Draw positions in a row of this length that stay in it when they are shifted."""
    room = length - shift.abs()
    place = (draw.uniform(tuple(shift.shape), 0.0, 1.0) * room).long().minimum(room - 1)
    return place - shift.clamp_max(0)


def _take(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the values of maps `[N, F, h, w]` at places `[N, P]`, `[N, F, P]`."""
    places = (rows * maps.shape[-1] + columns)[:, None].expand(-1, maps.shape[1], -1)
    return maps.flatten(2).gather(2, places)


def _mean(losses: Tensor, weights: Tensor) -> Tensor:
    return (losses * weights).sum() / weights.sum().clamp_min(1)
