"""The gradient of a step does not depend on how its batch is split, over parts or over processes."""

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.steps import (
    DENSE,
    IMAGE,
    IMAGES,
    KEY,
    gradient,
    make_network,
    make_objective,
    share_of_batch,
)
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from iic_train.config import TrainConfig
from iic_train.losses.step import Pairs, make_pairs, slices_of
from iic_train.views.pairs import Move


@pytest.mark.parametrize("heads", ["b", "ab"])
@pytest.mark.parametrize("config", [DENSE, replace(DENSE, cells=True, collapsed=True, margin=2), IMAGE])
@pytest.mark.parametrize("images", [1, 3, 4])
def test_micro_batches_have_loss_and_gradient_of_the_batch(
    config: TrainConfig, heads: str, images: int
) -> None:
    network, batch = make_network(config), share_of_batch(config)
    micro = replace(config, micro_batch=images * config.repeats)
    loss, expected = gradient(network, make_objective(network, batch, config, heads))
    micro_loss, actual = gradient(network, make_objective(network, batch, micro, heads))
    torch.testing.assert_close(micro_loss, loss, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-13)
    assert expected.abs().max() > 1e-6


def test_parts_are_of_about_the_same_size() -> None:
    assert slices_of(7, 3) == [slice(0, 2), slice(2, 4), slice(4, 7)]
    assert slices_of(7, 7) == slices_of(7, None) == [slice(0, 7)]


def _one_rank(rank: int, ranks: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for name, config in (("dense", replace(DENSE, micro_batch=2)), ("image", IMAGE)):
        network, batch = make_network(config), share_of_batch(config, rank, ranks)
        torch.save(
            (len(batch.pixels), *gradient(network, make_objective(network, batch, config, "ab"))),
            f"{folder}/{name}-{rank}.pt",
        )
    dist.destroy_process_group()


def joined(pairs: list[Pairs], repeats: int) -> Pairs:
    """The pairs of all ranks as one batch."""
    rounds = [part.second.unflatten(0, (repeats, -1)) for part in pairs]
    moves: list[Any] = [
        torch.cat(changes) if isinstance(changes[0], Tensor) else None
        for changes in zip(*(vars(part.move).values() for part in pairs), strict=True)
    ]
    return Pairs(
        torch.cat([part.first for part in pairs]),
        torch.cat(rounds, 1).flatten(0, 1),
        Move(*moves),
        None
        if pairs[0].valid is None
        else torch.cat([part.valid for part in pairs if part.valid is not None]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_unequal_shares_have_loss_and_gradient_of_one_batch(
    tmp_path: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn(_one_rank, args=(ranks, port, str(tmp_path)), nprocs=ranks)
    for name, config in (("dense", DENSE), ("image", IMAGE)):
        network = make_network(config)
        shares = [share_of_batch(config, rank, ranks) for rank in range(ranks)]
        together = joined(
            [make_pairs(network, share, config, (*KEY, rank)) for rank, share in enumerate(shares)],
            config.repeats,
        )
        monkeypatch.setattr("iic_train.losses.step.make_pairs", lambda *_, pairs=together: pairs)
        loss, expected = gradient(network, make_objective(network, shares[0], config, "ab"))
        results = [torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in range(ranks)]
        assert sum(count for count, _, _ in results) == IMAGES
        assert len({count for count, _, _ in results}) == 2
        for _, rank_loss, rank_gradient in results:
            torch.testing.assert_close(rank_loss, loss, rtol=1e-9, atol=1e-14)
            torch.testing.assert_close(rank_gradient, expected, rtol=1e-8, atol=1e-13)
