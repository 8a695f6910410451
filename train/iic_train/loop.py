"""The training loop.

An epoch makes the passes that its config names, each over the data of the heads it trains, in an order and
with pairs that follow from (seed, epoch, pass, step) alone. One Adam moves everything; a head that a pass
does not train has no gradient and stays still. After each epoch batch norm is calibrated on unaltered
images, and head B's loss on a fixed set of pairs says which sub-head and which epoch are best: no label
is looked at. Everything is saved then, so that a run goes on exactly where it stopped.
"""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from iic_geotools.errors import DataError, TrainingError, UsageError
from iic_train.config import TrainConfig
from iic_train.distributed import Ranks, average_statistics, joined, sum_gradients
from iic_train.loading import Batch, Source, batches, steps_of
from iic_train.networks import HeadName, Network
from iic_train.objective import Terms
from iic_train.opening import TrainingData, open_training_data
from iic_train.progress import Progress
from iic_train.runs import Choice, Run, create_run, load_run
from iic_train.step import HeadMeans, pair_terms, plain_views
from iic_train.watch import Watch

SELECTION_PASS = 1_000  # no epoch has that many passes
CHECK_EVERY = 10
"""Steps between looks at the loss: each makes a GPU wait."""


def train(
    config: TrainConfig,
    *,
    runs: Path = Path("runs"),
    name: str | None = None,
    device: str = "auto",
    workers: int = 0,
    quiet: bool = False,
) -> Run:
    """Train as `config` says in a new run folder.

    Args:
        config: All settings.
        runs: Folder of the run folders.
        name: Name of the new one; by default preset and time.
        device: `auto`, `cpu` or `cuda`.
        workers: Processes that read ahead; 0 reads in between.
        quiet: Say only what is wrong.

    Raises:
        DataError: The data is missing.
        TrainingError: The loss is not finite any more.
    """
    with joined(device) as (ranks, chosen):
        data = open_training_data(config)
        if ranks.first:
            run = create_run(config, data.facts, runs, name)
        else:
            run = Run(runs, name or "", config, data.facts, {})  # only the first rank writes
        Trainer(run, data, chosen, ranks, workers, Progress(quiet=quiet or not ranks.first)).run_all()
    return run


def resume(
    path: Path, *, epochs: int | None = None, device: str = "auto", workers: int = 0, quiet: bool = False
) -> Run:
    """Go on with a run from its last finished epoch, as if it had not stopped.

    Args:
        path: The run folder.
        epochs: Train to this epoch instead of the one the run was meant for.
        device: `auto`, `cpu` or `cuda`.
        workers: Processes that read ahead.
        quiet: Say only what is wrong.
    """
    with joined(device) as (ranks, chosen):
        run = load_run(path)
        if epochs is not None:
            run = replace(run, config=replace(run.config, epochs=epochs))
        data = open_training_data(run.config)
        if data.facts.get("fingerprint") != run.data.get("fingerprint"):
            raise DataError(f"The data is not what {path} was trained on: put it back, or start a new run.")
        Trainer(run, data, chosen, ranks, workers, Progress(quiet=quiet or not ranks.first)).run_all()
    return run


class Trainer:
    """What the epochs of one run share."""

    def __init__(
        self,
        run: Run,
        data: TrainingData,
        device: torch.device,
        ranks: Ranks,
        workers: int,
        progress: Progress,
    ) -> None:
        self.run, self.data, self.device, self.ranks = run, data, device, ranks
        self.workers, self.progress = workers, progress
        self.config = config = run.config
        torch.manual_seed(config.seed)
        self.network = Network(config.network).to(device)
        if device.type == "cuda":
            self.network = self.network.to(memory_format=torch.channels_last)
        self.features = torch.compile(self.network.features) if config.compile else self.network.features
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=config.lr)
        self.scaler = torch.amp.GradScaler(
            device.type, enabled=config.amp == "fp16" and device.type == "cuda"
        )
        self.images = config.batch // config.repeats  # read for a step, over all ranks
        if self.images % ranks.count:
            raise UsageError(
                f"{self.images} images a step cannot be shared by {ranks.count} processes; change --batch."
            )
        if config.amp != "off" and device.type != "cuda":
            progress.say(
                f"--amp {config.amp} is for CUDA: on this {device.type.upper()} training is in float32."
            )
        self.epoch, self.best = 0, math.inf
        self.watch = Watch(config)
        self._restore()

    def run_all(self) -> None:
        """Train the epochs that are left."""
        try:
            while self.epoch < self.config.epochs:
                self._train_epoch(self.epoch + 1)
        except KeyboardInterrupt:
            self.progress.say(
                f"Interrupted in epoch {self.epoch + 1}; {self.epoch} are kept. "
                f"Go on with: iic-train resume {self.run.path}"
            )
            raise

    def _train_epoch(self, epoch: int) -> None:
        started, seen = time.perf_counter(), 0
        means = {head: HeadMeans() for head in "ab"}
        for index, heads in enumerate(self.config.passes):
            seen += self._train_pass(epoch, index, heads, means)
        seconds = time.perf_counter() - started
        selection = self._select()
        sub_head = selection.best()
        loss = selection.losses()[sub_head]
        if not math.isfinite(loss):
            raise self._not_finite(f"after epoch {epoch}")
        choice = Choice(epoch, sub_head, loss)
        row: dict[str, Any] = {
            "epoch": epoch,
            "lr": self.optimiser.param_groups[0]["lr"],
            "seconds": round(seconds, 3),
            "images_per_second": round(seen / seconds, 2),
            "train": {head: mean.to_json() for head, mean in means.items() if mean.count},
            "selection": selection.to_json(),
            "sub_head": sub_head,
            "loss": loss,
            "best": loss < self.best,
        }
        if self.ranks.first and (accuracy := self.data.accuracy(self.network, self.config, sub_head)):
            row["accuracy"] = accuracy
        self._save(choice, row)
        for warning in self.watch.look(row):
            self.progress.say(warning)
        self.progress.epoch(row, self.config)

    def _train_pass(self, epoch: int, index: int, heads: str, means: dict[str, HeadMeans]) -> int:
        """Train `heads` on one pass over their data and return how many images were seen by all ranks."""
        config, source = self.config, self.data.source(heads)
        steps = steps_of(source, self.images, config.steps)
        self.network.train()
        for step, batch in enumerate(self._batches(source, (config.seed, epoch, index), steps)):
            progress = (epoch - 1 + (index + step / steps) / len(config.passes)) / config.epochs
            self._set_rate(progress)
            self.optimiser.zero_grad(set_to_none=True)
            found = self._terms(batch, heads, (config.seed, epoch, index, step), progress)
            loss = torch.stack([means[head].add(terms) for head, terms in found.items()]).sum()
            if step % CHECK_EVERY == 0 or step == steps - 1:
                if not torch.isfinite(loss):
                    raise self._not_finite(
                        f"in epoch {epoch}, step {step}, training head {' and '.join(heads.upper())}"
                    )
                self.progress.step(epoch, config, index, heads, step, steps, means, self.images)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            sum_gradients(self.network)
            self.scaler.step(self.optimiser)
            self.scaler.update()
        return steps * self.images

    def _terms(
        self, batch: Batch, heads: str, key: tuple[int, ...], progress: float = 1.0
    ) -> dict[HeadName, list[Terms]]:
        return pair_terms(
            self.network,
            self.features,
            batch,
            heads,
            self.config,
            key=(*key, self.ranks.rank),
            autocast=self._autocast(),
            progress=progress,
        )

    def _select(self) -> HeadMeans:
        """Head B's loss, a sub-head at a time, on pairs that are the same in every epoch."""
        source = self.data.source("b")
        steps = steps_of(source, self.images, self.config.selection_steps)
        key = (self.config.seed, 0, SELECTION_PASS)
        self._calibrate(self._batches(source, key, steps))
        self.network.eval()
        means = HeadMeans()
        with torch.no_grad():
            for step, batch in enumerate(self._batches(source, key, steps)):
                means.add(self._terms(batch, "b", (*key, step))["b"])
        return means

    @torch.no_grad()
    def _calibrate(self, found: Iterator[Batch]) -> None:
        """Take batch norm's statistics anew, from unaltered images and the weights as they are now."""
        norms = [module for module in self.network.modules() if isinstance(module, nn.BatchNorm2d)]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over all batches
        self.network.train()
        for batch in found:
            with self._autocast():
                self.network.features(plain_views(self.network.scale(batch.pixels), self.config))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        average_statistics(self.network)

    def _batches(self, source: Source, key: tuple[int, ...], steps: int) -> Iterator[Batch]:
        cuda = self.device.type == "cuda"
        for batch in batches(
            source,
            self.images,
            key,
            steps=steps,
            rank=self.ranks.rank,
            ranks=self.ranks.count,
            workers=self.workers,
            pin=cuda,
        ):
            layout = torch.channels_last if cuda else torch.preserve_format
            pixels = batch.pixels.to(self.device, non_blocking=cuda, memory_format=layout)
            yield Batch(
                pixels, None if batch.valid is None else batch.valid.to(self.device, non_blocking=cuda)
            )

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = torch.bfloat16 if self.config.amp == "bf16" else torch.float16
        return torch.autocast(
            self.device.type, dtype=dtype, enabled=self.config.amp != "off" and self.device.type == "cuda"
        )

    def _set_rate(self, progress: float) -> None:
        fall = 0.5 * (1 + math.cos(math.pi * progress)) if self.config.schedule == "cosine" else 1.0
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.lr * fall

    def _not_finite(self, when: str) -> TrainingError:
        kept = f"epoch {self.epoch} is kept in {self.run.path}" if self.epoch else "nothing was kept"
        advice = "--amp off, or " if self.config.amp != "off" and self.device.type == "cuda" else ""
        return TrainingError(
            f"The loss is not finite {when} ({kept}): try {advice}a learning rate below {self.config.lr:g}, "
            "and look for pixels that are not numbers."
        )

    def _save(self, choice: Choice, row: dict[str, Any]) -> None:
        self.epoch = choice.epoch
        self.best = min(self.best, choice.loss)
        if not self.ranks.first:
            return
        if row["best"]:
            self.run.save_weights(self.network, "best", choice)
        self.run.save_weights(self.network, "last", choice)
        self.run.append_metrics(row)
        self.run.save_state(
            {
                "epoch": self.epoch,
                "best": self.best,
                "network": self.network.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "scaler": self.scaler.state_dict(),
            }
        )

    def _restore(self) -> None:
        state = self.run.load_state()
        if state is None:
            return
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        self.epoch, self.best = state["epoch"], state["best"]
        if self.ranks.first:
            self.run.forget_metrics_after(self.epoch)
