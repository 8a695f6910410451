import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from iic_train.losses import objective
from iic_train.losses.objective import (
    SEGMENTATION_FLOOR,
    clustering_joint,
    fast_size,
    iic_loss,
    iic_segmentation_loss,
    joint_counts,
    segmentation_joint,
    terms,
    weight_gradient_counts,
)


def direct_counts(a: Tensor, b: Tensor, radius: int) -> Tensor:
    """The definition, one displacement and one pixel rectangle at a time."""
    height, width = a.shape[-2:]
    size = 2 * radius + 1
    counts = a.new_zeros(size, size, a.shape[1], b.shape[1])
    for i in range(size):
        for j in range(size):
            ty, tx = i - radius, j - radius
            top, bottom = max(0, -ty), min(height, height - ty)
            left, right = max(0, -tx), min(width, width - tx)
            if top < bottom and left < right:
                moved = a[:, :, top + ty : bottom + ty, left + tx : right + tx]
                counts[i, j] = torch.einsum("nchw,nehw->ce", moved, b[:, :, top:bottom, left:right])
    return counts


def direct_loss(joint: Tensor, entropy_weight: float) -> Tensor:
    losses = []
    for P in joint:
        p = P / P.sum()
        p = (p + p.T) / 2
        rows, columns = p.sum(1), p.sum(0)
        ratio = p.log() - entropy_weight * rows[:, None].log() - entropy_weight * columns[None, :].log()
        losses.append(-(p * ratio).sum())
    return torch.stack(losses).mean()


def probabilities(*shape: int, seed: int = 0, sharpness: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(*shape, generator=generator, dtype=torch.float64)).softmax(1)


def gradients(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, inputs)


@settings(max_examples=40)
@given(
    n=st.integers(1, 4),
    c=st.integers(1, 5),
    e=st.integers(1, 5),
    height=st.integers(1, 14),
    width=st.integers(1, 14),
    radius=st.integers(0, 6),
    chunk=st.sampled_from([None, 1, 3]),
    form=st.sampled_from(["chosen", "spectral", "weight gradient"]),
)
def test_counts_and_their_gradients_are_the_definition(
    *, n: int, c: int, e: int, height: int, width: int, radius: int, chunk: int | None, form: str
) -> None:
    a = probabilities(n, c, height, width).requires_grad_()
    b = probabilities(n, e, height, width, seed=1).requires_grad_()
    if form == "chosen":
        counts = joint_counts(a, b, radius, chunk)
    elif form == "spectral":
        counts = objective._SpectralCounts.apply(a, b, radius, chunk)
    else:
        counts = weight_gradient_counts(a, b, radius)
    expected = direct_counts(a, b, radius)
    torch.testing.assert_close(counts, expected, rtol=1e-11, atol=1e-11)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for got, want in zip(
        gradients((counts * weight).sum(), a, b), gradients((expected * weight).sum(), a, b), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_spectra_work_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = probabilities(5, 3, 12, 9), probabilities(5, 4, 12, 9, seed=1)
    expected = direct_counts(a, b, 4)
    monkeypatch.setattr(objective, "SPECTRUM_BYTES", 4000)
    torch.testing.assert_close(
        objective._SpectralCounts.apply(a, b, 4, None), expected, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("entropy_weight", [1.0, 1.5])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("collapsed", [False, True])
def test_segmentation_loss_and_gradient_are_the_definition(
    entropy_weight: float, masked: bool, collapsed: bool
) -> None:
    p1 = probabilities(3, 4, 11, 13).requires_grad_()
    p2 = probabilities(3, 4, 11, 13, seed=1).requires_grad_()
    mask = torch.rand(3, 11, 13, generator=torch.Generator().manual_seed(3)) > 0.4 if masked else None
    weight = 1.0 if mask is None else mask[:, None].double()
    joint = direct_counts(p1 * weight, p2 * weight, 3).flatten(0, 1)
    expected = direct_loss(joint.sum(0, keepdim=True) if collapsed else joint, entropy_weight)
    loss = iic_segmentation_loss(
        p1, p2, radius=3, entropy_weight=entropy_weight, mask=mask, collapsed=collapsed, chunk=2
    )
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-12)
    for got, want in zip(gradients(loss, p1, p2), gradients(expected, p1, p2), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("entropy_weight", [1.0, 1.5])
def test_clustering_loss_and_gradient_are_the_definition(entropy_weight: float) -> None:
    z, z2 = probabilities(40, 7).requires_grad_(), probabilities(40, 7, seed=1).requires_grad_()
    expected = direct_loss(torch.einsum("nc,ne->ce", z, z2)[None], entropy_weight)
    loss = iic_loss(z, z2, entropy_weight)
    torch.testing.assert_close(loss, expected)
    for got, want in zip(gradients(loss, z, z2), gradients(expected, z, z2), strict=True):
        torch.testing.assert_close(got, want)


AUTHORS_CLUSTERING = {
    1.0: (-0.06869705382279512, 1.2157219988359689, -0.027999708126513083),
    1.5: (-1.9979641566405397, 1.2054836323747713, -0.015370696815879652),
}
AUTHORS_SEGMENTATION = {
    (1.0, False): (-0.002585361935151792, 0.029457429140646536, -0.0006677327146711683),
    (1.0, True): (-0.0038965090698355426, 0.04569807789461717, -0.00015699031972455),
    (1.5, False): (-1.3868384868809875, 0.10261862214138093, -0.001249099182376736),
    (1.5, True): (-1.3861886911413115, 0.12986567888037082, -0.0013935414840349938),
}
"""Loss, sum of the gradient's absolute values, and its sum weighted by cosines, from the authors' code: for
segmentation without and with a mask, by the loss that all their commands use."""


def waves(*shape: int, phase: float = 0.0) -> Tensor:
    """Return probabilities that need no random numbers."""
    index = torch.arange(math.prod(shape), dtype=torch.float64)
    return (2 * torch.sin(index * index * 0.37 + phase)).reshape(shape).softmax(1)


def figures(loss: Tensor, p: Tensor) -> tuple[float, ...]:
    (gradient,) = gradients(loss, p)
    weight = torch.cos(torch.arange(gradient.numel(), dtype=torch.float64)).reshape(gradient.shape)
    return loss.item(), gradient.abs().sum().item(), (gradient * weight).sum().item()


@pytest.mark.parametrize("entropy_weight", AUTHORS_CLUSTERING)
def test_clustering_loss_and_gradient_are_those_of_the_authors_code(entropy_weight: float) -> None:
    z = waves(40, 7).requires_grad_()
    loss = iic_loss(z, waves(40, 7, phase=0.5), entropy_weight)
    assert figures(loss, z) == pytest.approx(AUTHORS_CLUSTERING[entropy_weight], rel=1e-10)


@pytest.mark.parametrize(("entropy_weight", "masked"), AUTHORS_SEGMENTATION)
def test_segmentation_loss_and_gradient_are_those_of_the_authors_code(
    entropy_weight: float, masked: bool
) -> None:
    p = waves(3, 4, 11, 13).requires_grad_()
    mask = torch.sin(torch.arange(3 * 11 * 13, dtype=torch.float64) * 0.9).reshape(3, 11, 13) > -0.4
    other = waves(3, 4, 11, 13, phase=0.5)
    loss = iic_segmentation_loss(
        p, other, radius=3, entropy_weight=entropy_weight, mask=mask if masked else None, collapsed=False
    )
    assert figures(loss, p) == pytest.approx(AUTHORS_SEGMENTATION[entropy_weight, masked], rel=1e-10)


@settings(max_examples=30)
@given(k=st.integers(2, 12), seed=st.integers(0, 1000), sharpness=st.floats(0.1, 20.0))
def test_loss_lies_between_minus_log_k_and_zero(k: int, seed: int, sharpness: float) -> None:
    z = probabilities(50, k, seed=seed, sharpness=sharpness)
    z2 = probabilities(50, k, seed=seed + 1, sharpness=sharpness)
    for loss in (iic_loss(z, z), iic_loss(z, z2)):
        assert -math.log(k) - 1e-9 <= loss <= 1e-9


def test_certain_and_even_clusters_reach_minus_log_k() -> None:
    z = torch.eye(5, dtype=torch.float64).repeat(8, 1)
    assert iic_loss(z, z).item() == pytest.approx(-math.log(5))
    assert iic_loss(z, z, entropy_weight=1.5).item() == pytest.approx(-2 * math.log(5))
    assert iic_loss(torch.full((8, 5), 0.2), torch.full((8, 5), 0.2)).item() == pytest.approx(0, abs=1e-6)


def test_relabelling_changes_nothing() -> None:
    p1, p2 = probabilities(2, 5, 9, 9), probabilities(2, 5, 9, 9, seed=1)
    order = torch.tensor([3, 0, 4, 1, 2])
    loss = iic_segmentation_loss(p1, p2, radius=4, entropy_weight=1.5)
    relabelled = iic_segmentation_loss(p1[:, order], p2[:, order], radius=4, entropy_weight=1.5)
    torch.testing.assert_close(loss, relabelled)
    z, z2 = probabilities(30, 5), probabilities(30, 5, seed=1)
    torch.testing.assert_close(iic_loss(z, z2, 1.5), iic_loss(z[:, order], z2[:, order], 1.5))


@pytest.mark.parametrize("entropy_weight", [0.5, 1.0, 1.5])
def test_lambda_weighs_the_entropy_of_the_masses(entropy_weight: float) -> None:
    joint = segmentation_joint(probabilities(2, 4, 9, 9), probabilities(2, 4, 9, 9, seed=1), radius=2)
    parts = terms(joint, entropy_weight)
    torch.testing.assert_close(parts.loss, -parts.information - (entropy_weight - 1) * 2 * parts.entropy)
    torch.testing.assert_close(parts.masses.sum(), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(-terms(joint, 1.0).loss, parts.information)


def test_masked_pixels_do_not_matter() -> None:
    p1, p2 = probabilities(2, 3, 12, 12), probabilities(2, 3, 12, 12, seed=1)
    mask = torch.ones(2, 12, 12, dtype=torch.bool)
    mask[:, 3:7, 5:] = False
    other1 = torch.where(mask[:, None], p1, probabilities(2, 3, 12, 12, seed=5))
    other2 = torch.where(mask[:, None], p2, probabilities(2, 3, 12, 12, seed=6))
    loss = iic_segmentation_loss(p1, p2, radius=3, mask=mask)
    torch.testing.assert_close(loss, iic_segmentation_loss(other1, other2, radius=3, mask=mask))
    assert not torch.isclose(loss, iic_segmentation_loss(p1, p2, radius=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_displacements_without_a_pair_are_left_out(dtype: Any) -> None:
    p1, p2 = probabilities(1, 3, 40, 40).to(dtype), probabilities(1, 3, 40, 40, seed=1).to(dtype)
    mask = torch.zeros(1, 40, 40)
    mask[:, 10:14, 10:14] = 1
    inner = direct_counts(p1[..., 10:14, 10:14], p2[..., 10:14, 10:14], 3).flatten(0, 1)
    loss = iic_segmentation_loss(p1.requires_grad_(), p2, radius=10, mask=mask)
    torch.testing.assert_close(loss, direct_loss(inner, 1.0), rtol=1e-4, atol=1e-4)
    assert gradients(loss, p1)[0].isfinite().all()
    nothing = iic_segmentation_loss(p1, p2, radius=4, mask=torch.zeros(1, 40, 40))
    assert nothing.isfinite()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_under_autocast_are_counted_in_float32(dtype: Any) -> None:
    p1, p2 = probabilities(16, 3, 96, 96).to(dtype), probabilities(16, 3, 96, 96, seed=1).to(dtype)
    expected = iic_segmentation_loss(p1.double(), p2.double(), radius=5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = iic_segmentation_loss(p1.requires_grad_(), p2, radius=5)
        clustering = iic_loss(p1[:, :, 0, 0], p2[:, :, 0, 0])
    assert loss.dtype == clustering.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=2e-7)
    assert gradients(loss, p1)[0].dtype == dtype


def test_certain_maps_in_float32_stay_finite() -> None:
    labels = torch.zeros(2, 60, 60, dtype=torch.long)
    labels[:, 30:] = 1
    p = torch.nn.functional.one_hot(labels, 4).permute(0, 3, 1, 2).float().requires_grad_()
    loss = iic_segmentation_loss(p, p, radius=10)
    assert loss.isfinite()
    assert gradients(loss, p)[0].isfinite().all()
    assert SEGMENTATION_FLOOR < 1e-7


def test_fast_sizes_have_small_factors_only() -> None:
    assert [fast_size(n) for n in (1, 7, 11, 138, 210, 217)] == [1, 8, 12, 144, 216, 225]


def _one_rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    mine = slice(0, 2) if rank == 0 else slice(2, 5)  # unequal shares on purpose
    p1 = probabilities(5, 4, 10, 12)[mine].requires_grad_()
    p2 = probabilities(5, 4, 10, 12, seed=1)[mine].requires_grad_()
    loss = iic_segmentation_loss(p1, p2, radius=3, entropy_weight=1.5) + iic_loss(
        p1[:, :, 0, 0], p2[:, :, 0, 0]
    )
    torch.save((loss.detach(), *gradients(loss, p1, p2)), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_give_the_loss_and_gradients_of_one_large_batch(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_one_rank, args=(port, str(tmp_path)), nprocs=2)
    p1, p2 = (
        probabilities(5, 4, 10, 12).requires_grad_(),
        probabilities(5, 4, 10, 12, seed=1).requires_grad_(),
    )
    loss = iic_segmentation_loss(p1, p2, radius=3, entropy_weight=1.5) + iic_loss(
        p1[:, :, 0, 0], p2[:, :, 0, 0]
    )
    shares = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for share in shares:
        torch.testing.assert_close(share[0], loss.detach())
    for i, whole in enumerate(gradients(loss, p1, p2), start=1):
        torch.testing.assert_close(torch.cat([share[i] for share in shares]), whole)


def test_joint_counts_every_pair_once() -> None:
    z, z2 = probabilities(9, 4), probabilities(9, 4, seed=1)
    assert clustering_joint(z, z2).sum().item() == pytest.approx(9)
    p = probabilities(2, 4, 6, 7)
    assert segmentation_joint(p, p, radius=1)[4].sum().item() == pytest.approx(2 * 6 * 7)
