"""The training loop.

An epoch consists of the passes that the config names, each over the data of the heads it trains, in an order
and with pairs that follow from (seed, epoch, pass, step) alone. One Adam updates everything; a head that a
pass does not train has no gradient and does not change. After each epoch batch norm is calibrated on
unaltered images, and the loss of head B on a fixed set of pairs decides which sub-head and which epoch are
best, without looking at labels. Then everything is saved, and every few minutes on the way, so that a run resumes
exactly where it was saved.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iic_geotools.errors import DataError, UsageError
from iic_geotools.settings import checked, takes
from iic_geotools.work import OnProgress, Progress, memory_of_machine, silent
from iic_train.config import Execution, TrainConfig, reading
from iic_train.data.loader import Batch, Loader, Source, steps_of
from iic_train.data.survey import Survey
from iic_train.data.training_data import TrainingData, open_training_data
from iic_train.distributed import (
    Ranks,
    agree,
    average_statistics,
    choose_workers,
    explain_full_memory,
    first_on_machine,
    join_ranks,
)
from iic_train.evaluation.evaluate import follow_accuracy
from iic_train.evaluation.simplex import keep_simplex
from iic_train.finetune.pixel_runs import resume_learning
from iic_train.loop import Loop, cosine, is_checked
from iic_train.losses.objective import Terms
from iic_train.losses.step import (
    Step,
    StepObjective,
    estimate_memory,
    plain_views,
    slices_of,
    step_objective,
)
from iic_train.models.bank import Bank
from iic_train.models.layers import fresh_statistics
from iic_train.models.networks import Network
from iic_train.runs import START_AGAIN, STATE, Choice, Run, create_run, load_run
from iic_train.start import Window, sample_windows, start_network
from iic_train.watch import (
    Watch,
    describe_duration,
    describe_epoch,
    describe_heads,
    describe_plan,
    memory_advice,
    stops_early,
)


class HeadMeans:
    """Means over steps of the terms of a head, per sub-head."""

    def __init__(self, count: int = 0, sums: Tensor | None = None) -> None:
        self.count = count
        self._sums = sums

    def add(self, sub_heads: Sequence[Terms]) -> None:
        """Add the terms of a step."""
        rows = [torch.cat([torch.stack([t.loss, t.information, t.entropy]), t.masses]) for t in sub_heads]
        step = torch.stack(rows).detach().double()
        self._sums = step if self._sums is None else self._sums.to(step.device) + step
        self.count += 1

    def losses(self) -> list[float]:
        """Return the mean loss of each sub-head."""
        return list(self.to_json()["loss"])

    def best(self) -> int:
        """Return the sub-head of the lowest loss."""
        losses = self.losses()
        return losses.index(min(losses))

    def to_json(self) -> dict[str, Any]:
        """Return the means by name, each a list with one entry per sub-head."""
        if self._sums is None:
            return {"loss": [], "information": [], "entropy": [], "occupancy": []}
        means = (self._sums / self.count).cpu()
        return {
            "loss": means[:, 0].tolist(),
            "information": means[:, 1].tolist(),
            "entropy": means[:, 2].tolist(),
            "occupancy": means[:, 3:].tolist(),
        }

    def to_state(self) -> tuple[int, Tensor | None]:
        """Return what the means are made of."""
        return self.count, self._sums

    @classmethod
    def from_state(cls, state: tuple[int, Tensor | None]) -> "HeadMeans":
        """Make the same means from what `to_state` returned."""
        return cls(*state)


@dataclass
class Epoch:
    """An epoch under way.

    Attributes:
        number: Its number, from 1.
        passes: Number of passes that are finished.
        steps: Number of steps of the present pass that are finished.
        images: Number of images that all ranks have seen in it.
        seconds: Time that it took.
        means: Means over its steps for each head.
    """

    number: int
    passes: int = 0
    steps: int = 0
    images: int = 0
    seconds: float = 0.0
    means: dict[str, HeadMeans] = field(default_factory=lambda: {head: HeadMeans() for head in "ab"})

    def finish_step(self, images: int, last: bool) -> None:
        """Count a step over `images` images; the `last` one ends its pass."""
        self.images += images
        self.passes, self.steps = (self.passes + 1, 0) if last else (self.passes, self.steps + 1)

    def part_done(self, config: TrainConfig, steps: Sequence[int]) -> float:
        """Return how much of the run is done, from 0 to 1, if its passes have these numbers of steps."""
        passes = self.passes + self.steps / steps[self.passes]
        return (self.number - 1 + passes / len(steps)) / config.epochs

    def report(self, config: TrainConfig, steps: Sequence[int], images: int, heads: str) -> Progress:
        """Return how far the run is, the step under way included, with `images` images per step."""
        done = (self.number - 1) * sum(steps) + sum(steps[: self.passes]) + self.steps + 1
        figures = describe_heads({head: self.means[head].to_json() for head in heads}, config)
        note = "" if config.only_starts else f"epoch {self.number}/{config.epochs}  {figures}"
        return Progress("train", done * images, config.epochs * sum(steps) * images, "images", note)

    def figures(self) -> dict[str, Any]:
        """Return what metrics.jsonl holds about the steps of the epoch."""
        return {
            "seconds": round(self.seconds, 3),
            "images_per_second": round(self.images / self.seconds, 2),
            "train": {head: mean.to_json() for head, mean in self.means.items() if mean.count},
        }

    def to_state(self) -> dict[str, Any]:
        """Return tensors and plain values from which `from_state` makes the same epoch."""
        means = {head: mean.to_state() for head, mean in self.means.items()}
        return {**vars(self), "means": means}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Epoch":
        """Make an epoch from what `to_state` returned."""
        means = {head: HeadMeans.from_state(mean) for head, mean in state["means"].items()}
        return cls(**{**state, "means": means})


_LOG = logging.getLogger(__name__)
SELECTION_PASS = 1_000
"""Number of the pass on which epochs are compared; no epoch has that many passes."""
ESTIMATE_SECONDS = 60.0
"""Time after which the duration of the run is estimated."""
SMALL_STEP = 1 << 20
"""Pixels of a step that fits into the memory of any machine."""
SAVE_SECONDS = 600.0
"""Time after which a run is saved within an epoch."""


@dataclass(frozen=True)
class TrainArguments(Execution):
    """Arguments of `train`."""

    config: TrainConfig
    download: bool = False
    survey: Survey | None = None


@takes(TrainArguments)
def train(arguments: TrainArguments) -> Run:
    """Train as a config says in a new run folder.

    Args:
        config: All settings.
        survey: What is already known about the scenes of a run on rasters.

    Raises:
        DataError: The data is missing or damaged.
        TrainingError: The loss is no longer finite.
        DeviceError: There is no GPU, or its memory is full.
    """
    config, runs, name = arguments.config, Path(arguments.runs), arguments.name
    with join_ranks(arguments.device) as (ranks, device):
        progress = arguments.progress if ranks.first else silent
        _check_memory(config, device, ranks)
        with first_on_machine(ranks):  # downloads, or cuts tiles into chips
            data = open_training_data(
                config, survey=arguments.survey, download=arguments.download, progress=progress
            )
        if ranks.first:
            run = create_run(config, data.facts, runs, name)
        else:
            run = Run(runs, name or "", config, data.facts, {})  # only the first rank writes
        return _run_trainer(run, data, device, ranks, arguments.workers, progress)


@checked
def resume(
    run: Path,
    *,
    epochs: int | None = None,
    micro_batch: int | None = None,
    device: str = "auto",
    workers: int | None = None,
    progress: OnProgress = silent,
) -> Run:
    """Resume a run from where it was last saved, as if it had not stopped.

    Args:
        run: The run folder.
        epochs: Number of epochs to train in all from now on.
        micro_batch: Number of pairs that pass the network at once from now on.
        workers: Number of processes that read ahead; 0 reads between the steps. By default none on a CPU, and all
            cores but one for a GPU.

    Raises:
        DataError: The data is not what the run was trained on.
        TrainingError: There is no such run, or the loss is no longer finite.
        DeviceError: There is no GPU, or its memory is full.
        UsageError: An argument is not for runs that learn from labels.
    """
    with join_ranks(device) as (ranks, chosen):
        resumed = load_run(run)
        if resumed.config.finetune is not None:
            if micro_batch is not None:
                raise UsageError("`micro_batch` is for runs that learn without labels.")
            return resume_learning(resumed, epochs=epochs, device=device, progress=progress)
        old = resumed.config
        config = replace(old, epochs=epochs or old.epochs, micro_batch=micro_batch or old.micro_batch)
        _check_memory(config, chosen, ranks)
        data = open_training_data(config)
        if data.facts.get("fingerprint") != resumed.data.get("fingerprint"):
            raise DataError(f"The data is not what {run} was trained on: restore it, or start a new run.")
        resumed = resumed.change_settings(config) if ranks.first else replace(resumed, config=config)
        return _run_trainer(resumed, data, chosen, ranks, workers, progress)


def _check_memory(config: TrainConfig, device: torch.device, ranks: Ranks) -> None:
    """Refuse steps that need more memory than the machine has: its kernel would end the process without a word."""
    pairs = config.micro_batch or ranks.share(config.batch // config.repeats) * config.repeats
    present = memory_of_machine()
    if device.type != "cpu" or present is None or pairs * (config.size or 0) ** 2 < SMALL_STEP:
        return
    needed = estimate_memory(config, pairs) * ranks.local_count
    if needed > present:
        raise UsageError(
            f"Windows of {config.size} px, {pairs} at once, need about {needed / 2**30:.3g} GiB, more than the "
            f"{present / 2**30:.3g} GiB of this machine; lower `size`, `batch` or `micro_batch`."
        )


def _run_trainer(
    run: Run,
    data: TrainingData,
    device: torch.device,
    ranks: Ranks,
    workers: int | None,
    progress: OnProgress,
) -> Run:
    """Train, and return the run together with the data that was opened for it."""
    Trainer(run, data, device, ranks, workers, progress if ranks.first else silent).run_all()
    return replace(run, opened=data.dataset)


class Trainer:
    """Everything that the epochs of one run share."""

    def __init__(
        self,
        run: Run,
        data: TrainingData,
        device: torch.device,
        ranks: Ranks,
        workers: int | None = 0,
        progress: OnProgress = silent,
    ) -> None:
        self.run, self.data, self.device, self.ranks, self.progress = run, data, device, ranks, progress
        self.config = config = run.config
        torch.manual_seed(config.seed)
        self.network = Network(config.network).to(device)
        if device.type == "cuda" or not config.dense:
            # faster on GPUs, and on CPUs too for networks that cluster images: narrow ones by about a third
            self.network = self.network.to(memory_format=torch.channels_last)
        features = self.network.learnt if config.passes == ("a",) else self.network.features
        self.features = torch.compile(features) if config.compile else features
        groups = [{"params": list(self.network.parameters())}]
        self.loop = Loop(groups, config.lr, device, amp=config.amp, kept=self._kept)
        self.images = config.batch // config.repeats  # read per step, over all ranks
        self.share = ranks.share(self.images)  # by this rank
        self.sources = [data.train_a, data.train_b]
        self.loader = Loader(
            self.sources,
            self.images,
            rank=ranks.rank,
            ranks=ranks.count,
            workers=choose_workers(workers, device, ranks),
            pin=device.type == "cuda",
        )
        amp = self.loop.amp
        if device.type == "cuda" and ranks.first:
            named = "float32" if amp == "off" else amp
            _LOG.info("Computing in %s, the loss in float32 without TF32.", named)
        elif amp != "off" and ranks.first:
            _LOG.warning("%s is for CUDA: on this %s training is in float32.", amp, device.type.upper())
        self.steps = [steps_of(data.source(heads), self.images, config.steps) for heads in config.passes]
        self.epoch, self.best = Epoch(1), math.inf
        self.losses: list[float] = []
        self.watch = Watch(config)
        # Windows of the scenes by which a `bank` network is calibrated; other networks need none.
        self.windows: list[Window] = []
        if config.start == "kmeans" and data.scenes is not None:
            self.windows = sample_windows(data.scenes, config.seed)
        self.resumed = self._restore()
        self.saved = time.monotonic()
        # Time and part done at the first step, until the duration was estimated.
        self.began: tuple[float, float] | None = None
        if self.windows and not self.resumed:
            # Seconds on any CPU, and the same start on every device.
            start_network(self.network.cpu(), self.windows, config.seed)
            self.network.to(device)

    def run_all(self) -> None:
        """Train the remaining epochs."""
        at_once = self.config.micro_batch or self.share * self.config.repeats
        if self.ranks.first:
            _LOG.info(describe_plan(self.config, self.steps))
            self.began = (time.monotonic(), self._part_done)
        try:
            with explain_full_memory(memory_advice(self.config, at_once)):
                if self.ranks.first and not self.resumed:
                    keep_simplex(self.run, self.network, self.data.dataset, 0)
                while self.epoch.number <= self.config.epochs and not self._settled():
                    self._train_epoch()
        except KeyboardInterrupt:
            if self.ranks.first:
                _LOG.warning(
                    "Interrupted in epoch %d; its last %.0f s will be trained again. Resume with: iic-train resume %s",
                    *(self.epoch.number, time.monotonic() - self.saved, self.run.path),
                )
            raise

    def _settled(self) -> bool:
        return agree(stops_early(self.losses, self.config.patience), self.device)

    def _train_epoch(self) -> None:
        """Train what is left of the present epoch, compare it with those before, and save it."""
        epoch = self.epoch
        while epoch.passes < len(self.config.passes):
            self._train_pass(epoch)
        selection = self._select()
        sub_head = selection.best()
        loss = selection.losses()[sub_head]
        if not math.isfinite(loss):
            raise self.loop.not_finite(f"after epoch {epoch.number}")
        if not all(value.isfinite().all() for value in self.network.state_dict().values()):
            raise self.loop.not_finite(f"after epoch {epoch.number}", "A weight")
        row: dict[str, Any] = {
            "epoch": epoch.number,
            "lr": self.loop.optimiser.param_groups[0]["lr"],
            **epoch.figures(),
            "selection": selection.to_json(),
            "sub_head": sub_head,
            "loss": loss,
            "best": loss < self.best,
        }
        if stops_early([*self.losses, loss], self.config.patience):
            row["settled"] = True
        if self.ranks.first and self.data.dataset.classes and self.config.evaluation_images:
            row["accuracy"] = follow_accuracy(self.network, self.config, self.data.dataset, sub_head)
        self._finish_epoch(Choice(epoch.number, sub_head, loss), row)
        if self.ranks.first:
            keep_simplex(self.run, self.network, self.data.dataset, epoch.number)
            for warning in self.watch.look(row):
                _LOG.warning(warning)
            _LOG.info(describe_epoch(row, self.config))

    def _train_pass(self, epoch: Epoch) -> None:
        """Train the heads of the present pass on what is left of their data."""
        index, first = epoch.passes, epoch.steps
        heads, steps = self.config.passes[index], self.steps[index]
        key = (self.config.seed, epoch.number, index)
        before, started = epoch.seconds, time.perf_counter()
        trained = " and ".join(heads.upper())
        self.network.train()
        taken = self.loop.descend(
            self._batches(self.data.source(heads), key, steps, first),
            lambda batch, step: self._objective(batch, heads, (*key, step), self._part_done),
            steps,
            f"epoch {epoch.number}, training head {trained}",
            first=first,
            rate=lambda _: self._rate(),
            check=self._save_now_and_then,
        )
        for step, objective in taken:
            for head, terms in objective.terms.items():
                epoch.means[head].add(terms)
            if is_checked(step, steps):
                self.progress(epoch.report(self.config, self.steps, self.images, heads))
                self._estimate_duration(self._part_done)
            epoch.seconds = before + time.perf_counter() - started
            epoch.finish_step(self.images, last=step == steps - 1)

    @property
    def _part_done(self) -> float:
        return self.epoch.part_done(self.config, self.steps)

    def _rate(self) -> float:
        return self.config.lr * (cosine(self._part_done) if self.config.schedule == "cosine" else 1.0)

    def _save_now_and_then(self) -> None:
        if time.monotonic() - self.saved >= SAVE_SECONDS:
            self._save()

    def _estimate_duration(self, part_done: float) -> None:
        """Log once, after a minute, how long the whole run takes at the present speed."""
        if self.began is None or time.monotonic() - self.began[0] < ESTIMATE_SECONDS:
            return
        seconds, part = time.monotonic() - self.began[0], part_done - self.began[1]
        if part > 0:
            _LOG.info(describe_duration(seconds / part, self.config))
            self.began = None

    def _objective(
        self, batch: Batch, heads: str, key: tuple[int, ...], part_done: float = 1.0
    ) -> StepObjective:
        return step_objective(
            self.network,
            self.features,
            batch,
            heads,
            self.config,
            Step((*key, self.ranks.rank), self.loop.autocast(), part_done),
        )

    def _select(self) -> HeadMeans:
        """Return the means of a head per sub-head on pairs that are the same in every epoch."""
        head = self.config.selecting_head
        source = self.data.source(head)
        steps = steps_of(source, self.images, self.config.selection_steps)
        key = (self.config.seed, 0, SELECTION_PASS)
        self._calibrate(self._batches(source, key, steps))
        self.network.eval()
        means = HeadMeans()
        with torch.no_grad():
            for step, batch in enumerate(self._batches(source, key, steps)):
                means.add(self._objective(batch, head, (*key, step)).terms[head])
        return means

    @torch.no_grad()
    def _calibrate(self, unaltered: Iterator[Batch]) -> None:
        """Compute the statistics of batch norm again, from unaltered images and the present weights."""
        with fresh_statistics(self.network):
            for batch in unaltered:
                for part in slices_of(len(batch.pixels), self.config.micro_images):
                    with self.loop.autocast():
                        scaled = self.network.scale(batch.pixels[part])
                        self.network.features(plain_views(scaled, self.config))
        average_statistics(self.network, self.share * self.ranks.count / self.images)
        if isinstance(self.network.trunk, Bank):
            self.network.eval()
            windows = [window.pixels.to(self.device) for window in self.windows]
            self.network.trunk.calibrate([self.network.scale(pixels) for pixels in windows])

    def _batches(self, source: Source, key: tuple[int, ...], steps: int, first: int = 0) -> Iterator[Batch]:
        cuda = self.device.type == "cuda"
        layout = torch.channels_last if cuda else torch.preserve_format
        for batch in self.loader.batches(self.sources.index(source), key, steps, first):
            pixels = batch.pixels.to(self.device, non_blocking=cuda, memory_format=layout)
            valid, other = (
                None if part is None else part.to(self.device, non_blocking=cuda)
                for part in (batch.valid, batch.other)
            )
            yield Batch(pixels, valid, other)

    def _kept(self) -> str:
        return "what was saved before is kept" if (self.run.path / STATE).exists() else "nothing is kept"

    def _finish_epoch(self, choice: Choice, row: dict[str, Any]) -> None:
        self.epoch = Epoch(choice.epoch + 1)
        self.best = min(self.best, choice.loss)
        self.losses.append(choice.loss)
        if self.ranks.first:
            if row["best"]:
                self.run.save_weights(self.network, "best", choice)
            self.run.save_weights(self.network, "last", choice)
            self.run.append_metrics(row)
        self._save()

    def _save(self) -> None:
        """Save all that resuming needs."""
        self.saved = time.monotonic()
        state = {
            "epoch": self.epoch.number - 1,
            "under_way": self.epoch.to_state(),
            "best": self.best,
            "losses": self.losses,
            "network": self.network.state_dict(),
            **self.loop.state(),
        }
        if self.ranks.first:
            self.run.save_state(state)

    def _restore(self) -> bool:
        """Go back to where the run was saved, if it was."""
        state = self.run.load_state()
        if state is None:
            return False
        with reading(self.run.path / STATE, START_AGAIN):
            self.network.load_state_dict(state["network"])
            self.loop.restore(state)
            under_way = state.get("under_way")
            self.epoch = Epoch(state["epoch"] + 1) if under_way is None else Epoch.from_state(under_way)
            self.best, self.losses = float(state["best"]), [float(loss) for loss in state.get("losses", [])]
        if self.ranks.first:
            self.run.forget_metrics_after(self.epoch.number - 1)
        return True
