import math

import pytest
import torch

from iic_train.losses.set_loss import set_loss


def test_a_label_of_one_class_is_cross_entropy() -> None:
    logits, labels = torch.randn(7, 3), torch.randint(0, 3, (7,))
    allowed = torch.nn.functional.one_hot(labels, 3).bool()
    expected = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(set_loss(logits.log_softmax(1), allowed), expected)


def test_a_label_of_several_classes_asks_for_their_sum_only() -> None:
    probabilities = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])
    allowed = torch.tensor([[True, True, False], [True, True, False]])
    loss = set_loss(probabilities.log(), allowed)
    assert loss.item() == pytest.approx(-math.log(0.7))
    everything = torch.ones(2, 3, dtype=torch.bool)
    assert set_loss(probabilities.log(), everything).item() == pytest.approx(0.0, abs=1e-6)


def test_weights_and_smoothing() -> None:
    logs = torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.3, 0.4], [0.25, 0.5, 0.25]]).log()
    allowed = torch.tensor([[True, False, False], [False, False, True], [True, True, False]])
    weights = torch.tensor([1.0, 5.0, 3.0])
    loss = set_loss(logs, allowed, weights, set_weight=0.5)
    parts = [-math.log(0.8) * 1.0, -math.log(0.4) * 3.0, -math.log(0.75) * 0.5]
    assert loss.item() == pytest.approx(sum(parts) / 4.5)
    smooth = set_loss(logs[:1], allowed[:1], smoothing=0.1)
    assert smooth.item() == pytest.approx(
        -0.9 * math.log(0.8) - 0.1 * (math.log(0.8) + 2 * math.log(0.1)) / 3
    )


def test_nothing_labelled_is_no_loss() -> None:
    logs = torch.zeros(0, 3, requires_grad=True)
    loss = set_loss(logs, torch.zeros(0, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0.0
