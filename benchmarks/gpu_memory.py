"""How much memory a training step of each preset takes, counted without a GPU and without running it.

    python benchmarks/gpu_memory.py [PRESET ...] [--parts 1 2 4 8]

A step of the more demanding head (forwards, backwards and Adam) is traced with tensors that have a size and no
values; printed is the peak of what is alive at once. What cuDNN takes as workspace, what the allocator cannot use and
the CUDA context itself (together often 1 to 2 GB) come on top.
"""

import argparse
import weakref
from dataclasses import replace
from typing import Any
from unittest.mock import patch

SIDES = {"mnist": 28, "fashion-mnist": 28, "stl10": 96}


def peak_bytes(name: str, micro_batch: int | None, amp: bool) -> int:
    """Return the peak of the tensors that are alive at once in a step of head A."""
    import torch
    from torch import Tensor
    from torch._subclasses import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from iic_train.data.loader import Batch
    from iic_train.losses.step import Pairs, Step, make_pairs, step_objective
    from iic_train.models.networks import Network
    from iic_train.recipes.presets import preset
    from iic_train.views.pairs import Move

    class Meter(TorchDispatchMode):
        """Counts the bytes of all storages that operations make, until they are freed."""

        def __init__(self) -> None:
            super().__init__()
            self.alive: dict[int, int] = {}
            self.now = self.peak = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, list | tuple) else [result]:
                if isinstance(tensor, Tensor):
                    self.note(tensor)
            return result

        def note(self, tensor: Tensor) -> None:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self.alive:
                self.alive[key] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.forget, key)

        def forget(self, key: int) -> None:
            self.now -= self.alive.pop(key)

    config = replace(preset(name), micro_batch=micro_batch)
    side = config.size or SIDES.get(name, 32)
    shape = (config.batch // config.repeats, len(config.network.channels), side, side)
    batch = Batch(torch.zeros(shape, dtype=torch.uint8), None)
    real = make_pairs(Network(config.network), batch, config, (0,))  # which needs values
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, Meter() as meter:
        flipped = None if real.move.flipped_x is None else mode.from_tensor(real.move.flipped_x)
        pairs = Pairs(
            torch.empty(real.first.shape), torch.empty(real.second.shape), Move(flipped_x=flipped), None
        )
        network = Network(config.network)
        optimiser = torch.optim.Adam(network.parameters())
        with patch("iic_train.losses.step.make_pairs", lambda *_: pairs):
            autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp)
            objective = step_objective(network, network.features, batch, "a", config, Step((0,), autocast))
            objective.backward(torch.stack([term.loss for term in objective.terms["a"]]).mean())
            optimiser.step()
    return meter.peak


def main() -> None:
    """Print the table."""
    from iic_train.recipes.presets import PRESETS, preset

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("presets", nargs="*", default=[name for name in PRESETS if name != "fashion-mnist"])
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    print("GB of tensors alive at once in a step (pairs that pass the network at once)")
    for name in options.presets:
        for amp in (False, True):
            cells = []
            for parts in options.parts:
                micro = -(-preset(name).batch // parts)
                peak = peak_bytes(name, None if parts == 1 else micro, amp)
                cells.append(f"{peak / 1e9:6.1f} ({micro})")
            print(f"{name:>14} {'bf16' if amp else 'fp32'}  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
