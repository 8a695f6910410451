"""A linear head on frozen features, for few labels."""

import numpy as np
import torch
from torch import Tensor, nn

from iic_train.finetune.chips import LabelledChips
from iic_train.finetune.settings import FinetuneConfig
from iic_train.losses.set_loss import set_loss
from iic_train.models.networks import Network

PIXELS_PER_CHIP = 4000
"""Largest number of labelled pixels of a chip that a head is fitted to."""
ITERATIONS = 100


def fit_head(network: Network, data: LabelledChips, settings: FinetuneConfig, fold: int | None) -> None:
    """Fit head B of a network to the labels of all places except those of a fold; the trunk stays as it is.

    The head is a logistic regression with a penalty on squared weights, on features of mean 0 and deviation 1.
    """
    features, codes = labelled_features(network, data, fold)
    members = torch.from_numpy(data.legend.members())
    allowed = members[codes]
    mean, deviation = features.mean(0), features.std(0).clamp_min(1e-3)
    standard = (features - mean) / deviation
    weights = torch.zeros(features.shape[1], len(data.legend.classes), requires_grad=True)
    bias = torch.zeros(len(data.legend.classes), requires_grad=True)
    class_weights = balanced_weights(codes, members, settings.balance)
    optimiser = torch.optim.LBFGS([weights, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        logs = (standard @ weights + bias).log_softmax(1)
        loss = set_loss(logs, allowed, class_weights, settings.set_weight, settings.smoothing)
        loss = loss + settings.penalty * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    head_weight, head_bias = class_head(network)
    with torch.no_grad():
        unscaled = weights / deviation[:, None]
        head_weight.copy_(unscaled.T[:, :, None, None])
        head_bias.copy_(bias - mean @ unscaled)


def class_head(network: Network) -> tuple[Tensor, Tensor]:
    """Return the weights `[classes, features, 1, 1]` and the constants `[classes]` of head B."""
    head = network.heads["b"]
    if not isinstance(head, nn.Conv2d) or head.bias is None:
        raise ValueError("A head that is fitted to labels needs a constant for each class.")
    return head.weight, head.bias


@torch.no_grad()
def correct_logits(network: Network, bias: tuple[float, ...], temperature: float) -> None:
    """Add constants to the logits of the classes and divide them by a temperature, in the weights of the head."""
    head_weight, head_bias = class_head(network)
    if bias:
        head_bias.add_(torch.tensor(bias, device=head_bias.device))
    head_weight.div_(temperature)
    head_bias.div_(temperature)


def balanced_weights(codes: Tensor, members: Tensor, balance: float) -> Tensor:
    """Return the weight of each class: its share of the labels that name one class to the power of minus `balance`."""
    single = members.sum(1) == 1
    counts = torch.bincount(codes, minlength=len(members)).float()
    share = (counts[single, None] * members[single]).sum(0)
    share = share / share.sum().clamp_min(1.0)
    weights = torch.where(share > 0, share.clamp_min(1e-6) ** -balance, torch.ones(()))
    return weights / (weights * share).sum().clamp_min(1e-6)


@torch.no_grad()
def labelled_features(network: Network, data: LabelledChips, fold: int | None) -> tuple[Tensor, Tensor]:
    """Return features `[M, features]` and codes `[M]` of labelled pixels, except those of a fold."""
    network.eval()
    rng = np.random.default_rng(0)
    parts, codes = [], []
    for chip in data.chips:
        labels = chip.codes_without(fold)
        labelled = np.flatnonzero(labels)
        if not len(labelled):
            continue
        chosen = np.sort(rng.permutation(labelled)[:PIXELS_PER_CHIP])
        rows, columns = np.divmod(chosen, labels.shape[1])
        scaled = network.scale(torch.from_numpy(np.ascontiguousarray(chip.pixels))[None])
        features = network.features(scaled)[0]
        parts.append(features[:, rows // network.cell, columns // network.cell].T)
        codes.append(torch.from_numpy(labels.ravel()[chosen].astype(np.int64)))
    return torch.cat(parts), torch.cat(codes)
