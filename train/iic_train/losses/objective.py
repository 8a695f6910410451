"""The objective of Invariant Information Clustering: mutual information of the labels of paired views.

Small pure functions. A *joint* is a matrix of how often cluster c of one view meets cluster e of the other;
`terms` turns it into the loss. Everything from the counts on is float32 (or float64 if given) whatever
autocast says: half precision cannot hold the counts, and its logarithms are infinite.

Under `torch.distributed` the counts are summed over all ranks before the logarithms. Each rank then holds
the loss of the whole batch, and its gradient is its own share of that batch's: *sum* the ranks' gradients
to get the whole.

**Joint counts.** `joint_counts(a, b, radius)[i, j, c, e]` is the sum over images n and pixels u of
`a[n, c, u + t] * b[n, e, u]` with `t = (i - radius, j - radius)` and zeros outside the maps: a cross-correlation whose
kernel is a whole map, a shape convolution libraries do not tune for.

Two exact forms, chosen by shape:

- spectral: transform both stacks, take one small matrix product per frequency, and transform back only the
  few displacements that are needed (two thin matrix products). The backward pass is written by hand: it
  transforms each chunk again instead of keeping spectra, so that memory depends on `chunk`, not on the batch.
- weight gradient: the counts are the weight gradient of a (2 radius + 1)-sized convolution; faster for
  small radii.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.grad import conv2d_weight

CLUSTERING_FLOOR = 2.220446e-16
"""Least probability under a logarithm, as published."""

SEGMENTATION_FLOOR = 1e-9
"""The same for dense maps: above the rounding of a float32 transform, which may leave zeros negative."""

SPECTRUM_BYTES = 48 * 2**20
"""About what the spectra of one chunk may take when the caller leaves `chunk` open."""


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
        p2: Probabilities of the second view, already brought back onto the first view's pixels.
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
        masses: Share of each cluster, `[k]`.
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
    """Return the counts of `segmentation_joint`, of this rank alone."""
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


def joint_counts(a: Tensor, b: Tensor, radius: int, chunk: int | None = None) -> Tensor:
    """Count joint occurrences of the channels of `a` and `b` at all displacements up to `radius`.

    Args:
        chunk: Number of images that are transformed at once. None means as many as fit `SPECTRUM_BYTES`.

    Returns:
        `[2 radius + 1, 2 radius + 1, C, E]`, indexed by (vertical, horizontal) displacement + radius.
    """
    if spectral_is_faster(a.shape, b.shape[1], radius):
        return _SpectralCounts.apply(a, b, radius, chunk)  # type: ignore[no-any-return]
    return weight_gradient_counts(a, b, radius)


def spectral_is_faster(shape: torch.Size, other_channels: int, radius: int) -> bool:
    """Return whether the spectral form is faster for these shapes (see benchmarks/objective.py)."""
    few = min(shape[1], other_channels) < 6  # thin convolutions run far below the speed of the machine
    return radius > (1 if few else 2)


def weight_gradient_counts(a: Tensor, b: Tensor, radius: int) -> Tensor:
    """`joint_counts` as the weight gradient of a convolution of `a` whose output gradient is `b`."""
    if radius == 0:
        return torch.einsum("nchw,nehw->ce", a, b)[None, None]
    weight_shape = (b.shape[1], a.shape[1], 2 * radius + 1, 2 * radius + 1)
    weight: Tensor = conv2d_weight(a, weight_shape, b, padding=radius)  # type: ignore[no-untyped-call]
    return weight.permute(2, 3, 1, 0)


class _SpectralCounts(torch.autograd.Function):
    """`joint_counts` by Fourier transforms, with a backward pass that recomputes spectra chunk by chunk."""

    @staticmethod
    def forward(ctx: FunctionCtx, a: Tensor, b: Tensor, radius: int, chunk: int | None) -> Tensor:
        ctx.save_for_backward(a, b)
        plan = _Plan(a, b, radius, chunk)
        ctx.plan = plan  # type: ignore[attr-defined]
        total = a.new_zeros(plan.size, plan.columns, a.shape[1] * b.shape[1], dtype=plan.complex)
        for images in plan.chunks():
            fa, fb = plan.spectrum(a[images]), plan.spectrum(b[images])
            for rows in plan.row_blocks():
                joint = torch.matmul(fa[rows], fb[rows].mH)
                total += torch.tensordot(plan.rows_out[:, rows], joint.flatten(-2), dims=1)
        counts = torch.einsum("jf,ifp->ijp", plan.columns_out, total).real
        return counts.reshape(plan.size, plan.size, a.shape[1], b.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, b = ctx.saved_tensors  # type: ignore[attr-defined]
        plan: _Plan = ctx.plan  # type: ignore[attr-defined]
        grad_a = torch.empty_like(a, memory_format=torch.contiguous_format)
        grad_b = torch.empty_like(b, memory_format=torch.contiguous_format)
        kernel = torch.einsum("jf,ijp->ifp", plan.columns_in, grad.flatten(-2).to(plan.complex))
        for images in plan.chunks():
            fa, fb = plan.spectrum(a[images]), plan.spectrum(b[images])
            for rows in plan.row_blocks():
                block = torch.tensordot(plan.rows_in[rows], kernel, dims=1).unflatten(
                    -1, (a.shape[1], b.shape[1])
                )
                ga, gb = torch.matmul(block, fb[rows]), torch.matmul(block.mH, fa[rows])
                fa[rows], fb[rows] = ga, gb  # the spectra of these rows are not needed again
            grad_a[images], grad_b[images] = plan.image(fa), plan.image(fb)
        return grad_a, grad_b, None, None


class _Plan:
    """Padded size, chunks and the thin transform matrices of one call."""

    def __init__(self, a: Tensor, b: Tensor, radius: int, chunk: int | None) -> None:
        self.height, self.width = a.shape[-2:]
        self.images = a.shape[0]
        self.size = 2 * radius + 1
        self.complex = torch.complex128 if a.dtype == torch.float64 else torch.complex64
        # Wrapped-around products land on displacements beyond the radius once the padding is as wide as it.
        self.padded = fast_size(self.height + radius), fast_size(self.width + radius)
        self.columns = self.padded[1] // 2 + 1
        plane = self.padded[0] * self.columns * self.complex.itemsize
        # Fewer than four images do not pay for the transforms that every chunk makes of the counts.
        self.chunk = chunk or max(4, SPECTRUM_BYTES // (plane * (a.shape[1] + b.shape[1])))
        row = self.columns * a.shape[1] * b.shape[1] * self.complex.itemsize
        self.block = max(1, SPECTRUM_BYTES // (2 * row))

        shifts = torch.arange(-radius, radius + 1, device=a.device, dtype=torch.float64)
        rows = torch.outer(shifts, torch.arange(self.padded[0], device=a.device)) / self.padded[0]
        columns = torch.outer(shifts, torch.arange(self.columns, device=a.device)) / self.padded[1]
        # A half spectrum holds once what a whole one holds twice, but for the first (and an even last).
        twice = torch.full((self.columns,), 2.0, device=a.device, dtype=torch.float64)
        twice[0] = 1.0
        if self.padded[1] % 2 == 0:
            twice[-1] = 1.0
        scale = 1.0 / (self.padded[0] * self.padded[1])
        self.rows_out = _wave(rows, self.complex)
        self.columns_out = (twice * scale * _wave(columns, torch.complex128)).to(self.complex)
        self.rows_in = _wave(-rows, self.complex).T
        self.columns_in = _wave(-columns, self.complex)

    def chunks(self) -> Iterator[slice]:
        return (slice(i, i + self.chunk) for i in range(0, self.images, self.chunk))

    def row_blocks(self) -> Iterator[slice]:
        return (slice(i, i + self.block) for i in range(0, self.padded[0], self.block))

    def spectrum(self, maps: Tensor) -> Tensor:
        """Half spectra with frequencies first, `[rows, columns, C, N]`: one matrix per frequency."""
        spectrum: Tensor = torch.fft.rfft2(maps, s=self.padded)
        return spectrum.permute(2, 3, 1, 0).contiguous()

    def image(self, spectrum: Tensor) -> Tensor:
        """The maps `[N, C, H, W]` of spectra with frequencies first."""
        maps: Tensor = torch.fft.irfft2(spectrum.permute(3, 2, 0, 1).contiguous(), s=self.padded)
        return maps[..., : self.height, : self.width]


def _wave(turns: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.polar(torch.ones_like(turns), 2.0 * math.pi * turns).to(dtype)


def fast_size(least: int) -> int:
    """Return the smallest length from `least` on without a prime factor above 5, as other transforms are slow."""
    size = least
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 1
