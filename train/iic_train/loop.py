"""The training loop, which every kind of run shares: gradient descent in any precision, on one device or by all ranks.

What is learnt is a function from a batch to an objective: `Loss`, or `StepObjective`, which can divide its batch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from iic_geotools.errors import TrainingError
from iic_train.config import Amp
from iic_train.distributed import choose_precision, sum_gradients
from iic_train.losses.step import StepObjective

CHECK_EVERY = 10
"""Number of steps between looks at the loss, each of which makes a GPU wait."""


class Loss(NamedTuple):
    """The objective of a batch that passes the network at once."""

    value: Tensor

    def loss(self) -> Tensor:
        """Return the loss."""
        return self.value

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of the loss, which may be scaled, to the parameters."""
        loss.backward()  # type: ignore[no-untyped-call]


BatchT = TypeVar("BatchT")
ObjectiveT = TypeVar("ObjectiveT", Loss, StepObjective)


class Loop:
    """What the steps of a run share: the optimiser, the precision and the running loss.

    Without weight decay the optimiser is Adam.

    Args:
        groups: Groups of parameters, each perhaps with settings of its own.
        lr: The learning rate of groups that have none.
        amp: The precision of the network; on a CPU it is float32.
        clip: Largest norm of the gradient.
        kept: Function that says what is kept of a run whose loss is not finite.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        device: torch.device,
        *,
        amp: Amp = "auto",
        clip: float | None = None,
        kept: Callable[[], str] | None = None,
    ) -> None:
        cuda = device.type == "cuda"
        torch.backends.cudnn.benchmark = cuda  # batches of a run have one shape
        self.device, self.clip, self.kept = device, clip, kept
        self.amp = choose_precision(amp, device)
        self.half = cuda and self.amp != "off"
        self.optimiser = torch.optim.AdamW(groups, lr=lr, weight_decay=0.0, fused=cuda)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.half and self.amp == "fp16")
        self._sum, self._count = torch.zeros((), dtype=torch.float64, device=device), 0

    def descend(
        self,
        batches: Iterable[BatchT],
        objective: Callable[[BatchT, int], ObjectiveT],
        steps: int,
        name: str,
        *,
        first: int = 0,
        rate: Callable[[int], float] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[int, ObjectiveT]]:
        """Take the steps of a pass from number `first` on, and yield each with its objective when it is done.

        Args:
            objective: Function that returns the objective of a batch and the number of its step.
            name: What the pass is called in errors.
            rate: Function that returns the learning rate of a step; by default that of each group stays.
            check: Function that is called now and then before a step, when the loss is known to be finite.
        """
        self._sum, self._count = torch.zeros_like(self._sum), 0
        for step, batch in enumerate(batches, first):
            if rate is not None:
                self._set_rate(rate(step))
            self.optimiser.zero_grad(set_to_none=True)
            made = objective(batch, step)
            loss = made.loss()
            if is_checked(step, steps):
                if not torch.isfinite(loss):
                    raise self.not_finite(f"in {name}, step {step}")
                check()
            made.backward(self.scaler.scale(loss))
            self._update()
            self._sum += loss.detach()
            self._count += 1
            yield step, made

    def train(self, *arguments: Any) -> float:
        """Take all steps of a pass, as `descend` does, and return their mean loss."""
        for _ in self.descend(*arguments):
            pass
        return self.mean_loss()

    def mean_loss(self) -> float:
        """Return the mean loss over the steps of the last pass."""
        return float(self._sum) / max(1, self._count)

    def train_with(self, parameters: Iterable[Tensor]) -> None:
        """Train these parameters, with moments of their own, next to the first group and instead of those before."""
        for group in self.optimiser.param_groups[1:]:
            for parameter in group["params"]:
                self.optimiser.state.pop(parameter, None)
        del self.optimiser.param_groups[1:]
        self.optimiser.add_param_group({"params": list(parameters)})

    def not_finite(self, when: str, what: str = "The loss") -> TrainingError:
        """Return the error for a loss or weight that is not finite."""
        kept = "" if self.kept is None else f" ({self.kept()})"
        advice = "`amp` off, or " if self.half else ""
        return TrainingError(
            f"{what} is not finite {when}{kept}: try {advice}a learning rate below "
            f"{self.optimiser.defaults['lr']:g}, and look for pixels that are not finite or huge (3e38), "
            "which should be nodata."
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which networks compute in the precision of the run."""
        dtype = torch.bfloat16 if self.amp == "bf16" else torch.float16
        return torch.autocast(self.device.type, dtype=dtype, enabled=self.half)

    def state(self) -> dict[str, Any]:
        """Return what resuming needs besides weights."""
        return {"optimiser": self.optimiser.state_dict(), "scaler": self.scaler.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.optimiser.load_state_dict(state["optimiser"])
        if state.get("scaler"):  # empty where half precision was off, as on a CPU; then it starts again
            self.scaler.load_state_dict(state["scaler"])

    def _update(self) -> None:
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        sum_gradients(parameters)
        if self.clip is not None:
            self.scaler.unscale_(self.optimiser)
            nn.utils.clip_grad_norm_(parameters, self.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate


def cosine(part_done: float) -> float:
    """Return the factor of the learning rate that falls from 1 to 0 along a cosine."""
    return 0.5 * (1.0 + math.cos(math.pi * part_done))


def is_checked(step: int, steps: int) -> bool:
    """Return whether the loss is looked at in this step of a pass."""
    return step % CHECK_EVERY == 0 or step == steps - 1
