"""The paper's Potsdam-3 training step (10a, k 24 and 3, 200 px) in pairs/s, next to the same with a plain loss.

    python benchmarks/train_step.py [--batch 2] [--network 10a] [--threads 1] [--repeat 1]
    python benchmarks/train_step.py --memory [--network context]
    python benchmarks/train_step.py --peak [--network context] [--batch 2]

The plain loss is a convolution with a whole map as kernel, differentiated by autograd. Both steps make the
same pairs, run the same network and update with Adam; times are CPU seconds of this process, so that
other work on the machine matters little.

--memory compares the step as the C library hands out memory by itself with the step as `iic-train` runs it, which keeps
the memory of freed tensors: processor seconds of the program and of the system.

--peak compares the memory that a step of 384 px takes with what is estimated before training.
"""

import argparse
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any


def main() -> None:
    """Print pairs/s of both forms for a pass of head A and of head B, and an epoch's worth of both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--network", default="10a")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", action="store_true")
    options = parser.parse_args()
    if options.peak:
        compare_peak(options.network, options.batch)
        return

    import torch
    from torch import Tensor
    from torch.nn import functional as F

    from iic_train.data.loader import Batch
    from iic_train.losses import objective
    from iic_train.losses.objective import joint_counts
    from iic_train.losses.step import Step, pair_terms
    from iic_train.models.networks import Network
    from iic_train.recipes.presets import preset

    def plain_counts(a: Tensor, b: Tensor, radius: int, chunk: int | None = None) -> Tensor:
        return F.conv2d(a.transpose(0, 1), b.transpose(0, 1), padding=radius).permute(2, 3, 0, 1)

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    published = preset("potsdam-3")
    config = replace(
        published, network=replace(published.network, name=options.network, widths=()), batch=options.batch
    )
    network = Network(config.network).train()
    optimiser = torch.optim.Adam(network.parameters(), lr=config.lr)
    batch = Batch(torch.randint(0, 256, (options.batch, 4, 200, 200), dtype=torch.uint8), None)

    def step(head: str) -> float:
        started = time.process_time()
        optimiser.zero_grad(set_to_none=True)
        objectives = pair_terms(network, network.features, batch, head, config, Step((0,), nullcontext()))
        next(iter(objectives.values()))[0].loss.backward()
        optimiser.step()
        return time.process_time() - started

    if options.memory:
        compare_memory(step, max(5, options.repeat))
        return
    print(
        f"{options.network}, 200 px, batch {options.batch}, {options.threads} thread(s): pairs per CPU second"
    )
    print("head   plain    ours  speed-up")
    totals = {}
    for head in ("a", "b"):
        seconds = {}
        for form, counts in (("ours", joint_counts), ("plain", plain_counts)):
            objective.joint_counts = counts  # type: ignore[assignment]
            step(head)
            seconds[form] = min(step(head) for _ in range(options.repeat))
            totals[form] = totals.get(form, 0.0) + seconds[form]
        plain, ours = (options.batch / seconds[form] for form in ("plain", "ours"))
        print(f"{head.upper():>4} {plain:>7.3f} {ours:>7.3f} {ours / plain:>8.1f}x", flush=True)
    plain, ours = (2 * options.batch / totals[form] for form in ("plain", "ours"))
    print(f"both {plain:>7.3f} {ours:>7.3f} {ours / plain:>8.1f}x")


def compare_peak(name: str, pairs: int) -> None:
    """Print the estimated memory of a step next to what it took."""
    import resource

    import torch

    from iic_train.config import DataConfig, TrainConfig
    from iic_train.data.loader import Batch
    from iic_train.losses.step import Step, estimate_memory, step_objective
    from iic_train.models.networks import Network
    from iic_train.models.registry import NetworkConfig
    from iic_train.recipes.rasters import PAIRS

    torch.set_num_threads(1)
    network = NetworkConfig(name, ("red", "green", "blue", "nir"), 6, 24, bias=name == "bank")
    start: Any = "kmeans" if name == "bank" else "random"
    config = TrainConfig(
        "rasters", DataConfig("rasters"), network, PAIRS, 384, batch=pairs, passes=("ab",), start=start
    )
    estimated = estimate_memory(config, pairs) / 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    built = Network(network).train()
    batch = Batch(torch.randint(0, 256, (pairs, 4, 384, 384), dtype=torch.uint8), None)
    objective = step_objective(built, built.features, batch, "ab", config, Step((0,), nullcontext()))
    objective.backward(objective.loss())
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    print(f"{name}, 384 px, {pairs} pairs: estimated {estimated:.0f} MB, took {taken:.0f} MB")


def compare_memory(step: Callable[[str], float], repeat: int) -> None:
    """Print what a step costs before and after freed memory is kept."""
    from iic_train.distributed import keep_freed_memory

    print("memory of freed tensors   program s  system s     all s")
    totals = []
    for label in ("given back", "kept"):
        if label == "kept" and not keep_freed_memory():
            raise SystemExit("This C library cannot keep freed memory.")
        step("b")
        before = os.times()
        for _ in range(repeat):
            step("b")
        after = os.times()
        program, system = (after[index] - before[index] for index in (0, 1))
        totals.append(program + system)
        print(f"{label:<25} {program:>9.2f} {system:>9.2f} {program + system:>9.2f}", flush=True)
    print(f"{totals[0] / totals[1]:.1f} times as fast")


if __name__ == "__main__":
    main()
