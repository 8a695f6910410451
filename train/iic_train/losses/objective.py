"""The objective of Invariant Information Clustering: mutual information of the labels of paired views.

Small pure functions. A *joint* is a matrix of how often cluster c of one view meets cluster e of the other;
`terms` turns it into the loss. Everything from the counts on is float32 (or float64 if given) whatever
autocast says: half precision cannot hold the counts, and its logarithms are infinite.

Under `torch.distributed` the counts are summed over all ranks before the logarithms. Each rank then holds
the loss of the whole batch, and its gradient is its own share of that batch's: *sum* the ranks' gradients
to get the whole.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx

from iic_train.losses.correlation import joint_counts

CLUSTERING_FLOOR = 2.220446e-16
"""Least probability under a logarithm, as published."""

SEGMENTATION_FLOOR = 1e-9
"""The same for dense maps: above the rounding of a float32 transform, which may leave zeros negative."""


class Terms(NamedTuple):
    """The loss and what it is made of; `loss == -information - (entropy_weight - 1) * 2 * entropy`."""

    loss: Tensor
    information: Tensor
    """Mutual information of the two views' labels in nats, at most ln k."""
    entropy: Tensor
    """Entropy of the cluster masses in nats, at most ln k."""
    masses: Tensor
    """Share of each cluster, `[k]`."""


def iic_loss(z: Tensor, z2: Tensor, entropy_weight: float = 1.0) -> Tensor:
    """Return the clustering loss of paired cluster probabilities `[N, k]`; its least value is -ln k at weight 1."""
    return terms(clustering_joint(z, z2), entropy_weight, CLUSTERING_FLOOR).loss


def iic_segmentation_loss(
    p1: Tensor,
    p2: Tensor,
    *,
    radius: int = 10,
    entropy_weight: float = 1.0,
    mask: Tensor | None = None,
    collapsed: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """Return the segmentation loss of two aligned probability maps `[N, k, H, W]`.

    Args:
        p1: Probabilities of the first view.
        p2: Probabilities of the second view, already brought back onto the first view's pixels.
        radius: Largest displacement between paired pixels on either axis.
        entropy_weight: Weight of the entropy of the masses; above 1 it favours clusters of equal size.
        mask: Pixels that count, `[N, H, W]`; a pair counts if both of its pixels do.
        collapsed: Sum one joint over all displacements instead of averaging one loss per displacement.
        chunk: Number of images that are correlated at once; lower it if memory is short.
    """
    joint = segmentation_joint(p1, p2, radius=radius, mask=mask, collapsed=collapsed, chunk=chunk)
    return terms(joint, entropy_weight, SEGMENTATION_FLOOR).loss


def iic_loss_at_masses(z: Tensor, z2: Tensor, masses: Tensor, weight: float) -> Tensor:
    """Return the clustering loss of paired probabilities `[N, k]` whose cluster masses are held at given ones.

    The entropy of the masses, which pulls towards clusters of equal size, is replaced by the divergence from `masses`,
    so that borders move but rare clusters stay rare.

    Args:
        z: Probabilities of the first view.
        z2: Probabilities of the second view.
        masses: Share of each cluster, `[k]`.
        weight: Weight of the divergence.
    """
    joint = clustering_joint(z, z2)[0]
    P = 0.5 * (joint + joint.T) / joint.sum()
    marginal, P = P.sum(1).clamp_min(CLUSTERING_FLOOR), P.clamp_min(CLUSTERING_FLOOR)
    conditional_entropy = (marginal * marginal.log()).sum() - (P * P.log()).sum()
    divergence = (marginal * (marginal / masses.clamp_min(CLUSTERING_FLOOR)).log()).sum()
    return conditional_entropy + weight * divergence


def clustering_joint(z: Tensor, z2: Tensor) -> Tensor:
    """Return counts `[1, k, k]` of paired cluster probabilities `[N, k]`, over all ranks."""
    return sum_over_ranks(clustering_counts(z, z2))


def clustering_counts(z: Tensor, z2: Tensor) -> Tensor:
    """Return counts `[1, k, k]` of paired cluster probabilities `[N, k]`, of this rank alone."""
    with _full_precision(z):
        return (_real(z).T @ _real(z2))[None]


def segmentation_joint(
    p1: Tensor,
    p2: Tensor,
    *,
    radius: int = 10,
    mask: Tensor | None = None,
    collapsed: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """Return counts `[T, k, k]`, one matrix per displacement (a single one if `collapsed`), over all ranks."""
    counts = segmentation_counts(p1, p2, radius=radius, mask=mask, collapsed=collapsed, chunk=chunk)
    return sum_over_ranks(counts)


def segmentation_counts(
    p1: Tensor,
    p2: Tensor,
    *,
    radius: int = 10,
    mask: Tensor | None = None,
    collapsed: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """Return what `segmentation_joint` does, of this rank alone."""
    with _full_precision(p1):
        a, b = _real(p1), _real(p2)
        if mask is not None:
            weight = mask.to(a.dtype)[:, None]
            a, b = a * weight, b * weight
        if collapsed:
            return torch.einsum("nchw,nehw->ce", _box_sum(a, radius), b)[None]
        return joint_counts(a, b, radius, chunk).flatten(0, 1)


def terms(joint: Tensor, entropy_weight: float = 1.0, floor: float = SEGMENTATION_FLOOR) -> Terms:
    """Return the loss of counts `[T, k, k]`, each matrix normalised and symmetrised on its own, averaged over T."""
    totals = joint.sum(dim=(1, 2), keepdim=True)
    # A displacement at which no two counted pixels meet is left out, so as not to divide by zero.
    met = totals > 1e-5 * totals.detach().max().clamp_min(1.0)
    weights = met.to(joint.dtype) / met.sum().clamp_min(1)
    P = joint / torch.where(met, totals, 1.0)
    P = 0.5 * (P + P.transpose(1, 2))
    marginal = P.sum(dim=2)
    P, log_marginal = P.clamp_min(floor), marginal.clamp_min(floor).log()
    cross = -(P * (log_marginal[:, :, None] + log_marginal[:, None, :])).sum(dim=(1, 2), keepdim=True)
    negentropy = (P * P.log()).sum(dim=(1, 2), keepdim=True)
    loss = (weights * -(negentropy + entropy_weight * cross)).sum()
    with torch.no_grad():
        information = (weights * (negentropy + cross)).sum()
        entropy = (weights * cross).sum() / 2
        masses = (weights[:, 0] * marginal).sum(dim=0)
    return Terms(loss, information, entropy, masses)


def sum_over_ranks(counts: Tensor) -> Tensor:
    """Return the sum over all processes of the default group; one process alone returns `counts` itself."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return _SumOverRanks.apply(counts)  # type: ignore[no-any-return]
    return counts


class _SumOverRanks(torch.autograd.Function):
    """All ranks see the same sum, hence the same gradient, so the backward pass communicates nothing."""

    @staticmethod
    def forward(ctx: FunctionCtx, counts: Tensor) -> Tensor:
        total = counts.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        return grad


def _box_sum(maps: Tensor, radius: int) -> Tensor:
    """Sum over the (2 radius + 1)-sided square around each pixel, zeros outside."""
    size = 2 * radius + 1
    pooled = torch.nn.functional.avg_pool2d(maps, (size, 1), stride=1, padding=(radius, 0))
    return torch.nn.functional.avg_pool2d(pooled, (1, size), stride=1, padding=(0, radius)) * size**2


def _full_precision(like: Tensor) -> torch.autocast:
    return torch.autocast(like.device.type, enabled=False)


def _real(probabilities: Tensor) -> Tensor:
    return probabilities if probabilities.dtype == torch.float64 else probabilities.float()
