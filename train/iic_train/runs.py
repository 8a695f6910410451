"""The run folder: everything that a training run writes, and everything that is needed to resume it.

    runs/<preset>-<time>/
        config.json               settings with every default, versions, data fingerprint, run id
        metrics.jsonl             one line per epoch
        simplex.jsonl             where a few images stand between the clusters, for clustering runs
        best.safetensors          weights of the epoch with the lowest loss of head B
        last.safetensors          weights of the last epoch
        state.pt                  weights, optimiser and counters, to resume

Each weights file carries the config of its network and how its epoch and sub-head were chosen, so it can be
used outside the folder. A line of metrics.jsonl:

    {"epoch": 3, "lr": 1e-4, "seconds": 61.0, "images_per_second": 812.0,
     "train": {"a": HEAD, "b": HEAD}, "selection": HEAD, "sub_head": 1, "loss": -1.9, "best": true,
     "accuracy": {"chosen": 0.61, "sub_heads": [0.6, 0.61], "label_picked": 0.61}}

with HEAD = {"loss": [..], "information": [..], "entropy": [..], "occupancy": [[..], ..]}, one entry per
sub-head. `train` is the mean over the steps of the epoch for each head that was trained. `selection` is head B
on fixed pairs with the weights as they would be used; it chooses `sub_head` and the best epoch. `accuracy` is
there if the data has labels.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from iic_geotools.errors import OutputError, TrainingError, UsageError
from iic_geotools.files import check_name, replacement, write_atomically, writing
from iic_geotools.settings import PathLike, checked, from_plain
from iic_train.config import TrainConfig, reading
from iic_train.data.base import Dataset
from iic_train.data.training_data import open_dataset_of
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig

FACTS = {"fingerprint": str | None, "dtype": str | None, "gsd": float | None}
"""Types of the facts about data that a run is used by."""
START_AGAIN = "remove it to start the run again from its first epoch"
CONFIG, METRICS, STATE = "config.json", "metrics.jsonl", "state.pt"
HELD_OUT = "heldout.json"
"""Figures of the places left out, in the folder of a run that learnt from labels."""
Checkpoint = Literal["best", "last"]
"""The epoch with the lowest loss of head B, or the last epoch."""


@dataclass(frozen=True)
class Choice:
    """The epoch and sub-head that a weights file stands for, and the loss of head B that chose them."""

    epoch: int
    sub_head: int
    loss: float


@dataclass(frozen=True)
class Run:
    """A run folder.

    Attributes:
        path: The folder.
        id: Unique name of the run.
        config: Its settings.
        data: Facts about the data: `fingerprint`, and for rasters `dtype`, `gsd` (metres), `scenes`.
        versions: Versions of the packages that made the run.
        opened: The images that training opened, so that evaluation does not open them again.
    """

    path: Path
    id: str
    config: TrainConfig
    data: Mapping[str, Any]
    versions: Mapping[str, str]
    opened: Dataset | None = field(default=None, compare=False, repr=False)

    def dataset(self) -> Dataset:
        """Return the images that the run was trained on; without labels they have no classes."""
        return self.opened or open_dataset_of(self.config)

    def held_out(self) -> dict[str, Any] | None:
        """Return the figures of the places left out by a run that learnt from labels; None if there are none."""
        file = self.path / HELD_OUT
        if not file.is_file():
            return None
        with reading(file):
            figures: dict[str, Any] = json.loads(file.read_bytes())
            return {**figures, "sentence": str(figures["sentence"])}

    def network(self, checkpoint: Checkpoint = "best") -> Network:
        """Return the trained network with all heads and sub-heads, in eval mode on the CPU."""
        return load_weights(self._weights(checkpoint))[0]

    def choice(self, checkpoint: Checkpoint = "best") -> Choice:
        """Return the epoch of a checkpoint and its sub-head with the lowest loss of head B."""
        return read_choice(self._weights(checkpoint))

    def metrics(self) -> list[dict[str, Any]]:
        """Return one dictionary per epoch, as described above."""
        path = self.path / METRICS
        if not path.exists():
            return []
        with reading(path):
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            return [{**row, "epoch": from_plain(int, row["epoch"], "epoch")} for row in rows]

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add the line of an epoch."""
        append_line(self.path / METRICS, row)

    def forget_metrics_after(self, epoch: int) -> None:
        """Drop lines of epochs that an interrupted run finished after its last saved state."""
        kept = [json.dumps(row) + "\n" for row in self.metrics() if row["epoch"] <= epoch]
        write_atomically(self.path / METRICS, "".join(kept).encode())

    def change_settings(self, config: TrainConfig) -> "Run":
        """Return the run with other settings, which it keeps."""
        path = self.path / CONFIG
        began = path.stat().st_mtime_ns  # by which the newest run is found
        record = {**json.loads(path.read_bytes()), "config": config.to_json()}
        write_atomically(path, json.dumps(record, indent=2).encode())
        os.utime(path, ns=(began, began))
        return replace(self, config=config)

    def save_weights(self, network: Network, checkpoint: Checkpoint, choice: Choice) -> None:
        """Write `best.safetensors` or `last.safetensors`."""
        metadata = {
            "network": json.dumps(network.config.to_json()),
            "run": self.id,
            "epoch": str(choice.epoch),
            "sub_head": str(choice.sub_head),
            "loss": repr(choice.loss),
        }
        state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
        write_atomically(self.path / f"{checkpoint}.safetensors", save(state, metadata))

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Write what resuming needs: tensors and plain values only."""
        with replacement(self.path / STATE) as temporary:
            torch.save(dict(state), temporary)

    def load_state(self) -> dict[str, Any] | None:
        """Return what `save_state` wrote, or None before anything was saved."""
        path = self.path / STATE
        if not path.exists():
            return None
        with reading(path, START_AGAIN):
            return dict(torch.load(path, map_location="cpu", weights_only=True))

    def _weights(self, checkpoint: Checkpoint) -> Path:
        path = self.path / f"{checkpoint}.safetensors"
        if not path.exists():
            raise TrainingError(
                f"The run {self.path} has no weights yet: let it finish an epoch (iic-train resume {self.path})."
            )
        return path


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line to a file of JSON lines; one that a full disk cut is left out when they are read."""
    with writing(path), path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def create_run(
    config: TrainConfig, data: Mapping[str, Any], runs: Path = Path("runs"), name: str | None = None
) -> Run:
    """Create a run folder under `runs` and write its config."""
    if name is not None:
        _check_run_name(name)
    started = time.strftime("%Y%m%d-%H%M%S")
    run_id = name or f"{config.preset}-{started}"
    path = runs / run_id
    if name is None:
        count = 2
        while path.exists():
            path = runs / f"{run_id}-{count}"
            count += 1
    if path.exists():
        raise UsageError(
            f"There is already a run {path}: choose another `name`, or resume it with: iic-train resume {path}"
        )
    with writing(path):
        path.mkdir(parents=True)
    run = Run(path, path.name, config, dict(data), _versions())
    record = {
        "id": run.id,
        "started": started,
        "config": config.to_json(),
        "data": dict(data),
        "versions": run.versions,
    }
    try:
        write_atomically(path / CONFIG, json.dumps(record, indent=2).encode())
    except OutputError:
        path.rmdir()
        raise
    return run


def _check_run_name(name: str) -> None:
    """Refuse a name that would put a run elsewhere than in its folder."""
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        raise UsageError(f"`name` must be the name of a folder, not a path such as {name!r}; see `runs`.")
    check_name(Path(name))


@checked
def load_run(path: Path | str) -> Run:
    """Open a run folder.

    Raises:
        TrainingError: There is no run there, or its config cannot be read.
    """
    path = Path(path)
    file = path / CONFIG
    if not file.is_file():
        raise TrainingError(f"{path} is not a run folder: it has no {CONFIG}.")
    with reading(file):
        record = json.loads(file.read_bytes())
        config = TrainConfig.from_json(record["config"])
        versions = {str(name): str(number) for name, number in record["versions"].items()}
        facts = {name: from_plain(FACTS.get(name, Any), fact, name) for name, fact in record["data"].items()}
        return Run(path, from_plain(str, record["id"], "id"), config, facts, versions)


def newest_run(runs: Path = Path("runs")) -> Run:
    """Open the run under `runs` that was started last."""
    folders = [folder for folder in runs.glob("*/") if (folder / CONFIG).is_file()] if runs.is_dir() else []
    if not folders:
        raise TrainingError(
            f"There is no run in {runs}: train one first, or name another folder with `runs`."
        )
    return load_run(max(folders, key=lambda folder: (folder / CONFIG).stat().st_mtime))


@checked
def find_run(run: PathLike | None = None, runs: PathLike = "runs") -> Run:
    """Open a run folder given by its path, or by its name under `runs`; by default the newest one there."""
    if run is None:
        return newest_run(Path(runs))
    path, path_under_runs = Path(run), Path(runs) / run
    return load_run(path_under_runs if not path.exists() and path_under_runs.is_dir() else path)


def load_weights(path: Path) -> tuple[Network, Choice]:
    """Load a network in eval mode from a weights file, and read which epoch and sub-head the file stands for.

    Raises:
        TrainingError: The file is damaged or does not fit its config.
    """
    with reading(path):
        with safe_open(path, framework="pt") as file:
            config = NetworkConfig.from_json(json.loads(file.metadata()["network"]))
        network = Network(config)
        network.load_state_dict(load_file(path))
    return network.eval(), read_choice(path)


def read_choice(path: Path) -> Choice:
    """Read which epoch and sub-head a weights file stands for, without loading its weights."""
    with reading(path):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        return Choice(int(metadata["epoch"]), int(metadata["sub_head"]), float(metadata["loss"]))


def _versions() -> dict[str, str]:
    versions = {}
    for package in ("iic-edge", "torch", "torchvision", "numpy", "rasterio", "safetensors"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
