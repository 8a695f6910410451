"""Joint counts of two stacks of maps at every displacement, exactly and fast.

`joint_counts(a, b, radius)[i, j, c, e]` is the sum over images n and pixels u of
`a[n, c, u + t] * b[n, e, u]` with `t = (i - radius, j - radius)` and zeros outside the maps: a
cross-correlation whose kernel is a whole map, a shape convolution libraries do not tune for.

Two exact forms, chosen by shape:

- spectral: transform both stacks, take one small matrix product per frequency, and transform back only the
  few displacements that are needed (two thin matrix products). The backward pass is written by hand: it
  transforms each chunk again instead of keeping spectra, so that memory depends on `chunk`, not on the batch.
- weight gradient: the counts are the weight gradient of a (2 radius + 1)-sized convolution; faster for
  small radii.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.grad import conv2d_weight

SPECTRUM_BYTES = 48 * 2**20
"""About what the spectra of one chunk may take when the caller leaves `chunk` open."""


def joint_counts(a: Tensor, b: Tensor, radius: int, chunk: int | None = None) -> Tensor:
    """Count joint occurrences of the channels of `a` and `b` at all displacements up to `radius`.

    Args:
        a: Maps `[N, C, H, W]`, float32 or float64.
        b: Maps `[N, E, H, W]`, same dtype.
        radius: Largest displacement on either axis, in pixels.
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
