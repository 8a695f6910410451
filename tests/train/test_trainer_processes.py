"""Training in processes of their own: several that share one network, and one that is interrupted."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_training import dense_config, dense_data, make_trainer

from iic_train.runs import load_run

SCRIPT = """
import logging, sys, torch
from support.small_training import dense_config, dense_data
from iic_train.distributed import join_ranks
from iic_train.trainer import Trainer
from iic_train.runs import Run, create_run, load_run
from pathlib import Path
torch.set_num_threads(1)
logging.basicConfig(level=logging.INFO)
config = dense_config(**{changes!r})
with join_ranks("cpu") as (ranks, device):
    folder = Path({folder!r})
    run = create_run(config, {{}}, folder, "run") if ranks.first else Run(folder, "", config, {{}}, {{}})
    trainer = Trainer(run, dense_data(config), device, ranks)
    trainer.run_all()
    torch.save(trainer.network.state_dict(), folder / f"{{ranks.rank}}.pt")
"""


def script(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(folder=str(tmp_path), changes=changes))
    return path


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
        **more,
    }


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_train_one_network(tmp_path: Path, count: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    path = script(tmp_path, epochs=2, batch=7, steps=2, selection_steps=1, evaluation_images=0)
    processes = [
        subprocess.Popen(
            [sys.executable, str(path)],
            env=environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(count),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
        )
        for rank in range(count)
    ]
    assert [process.wait(240) for process in processes] == [0] * count
    first, *others = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(count))
    for other in others:
        for name, value in first.items():
            if "num_batches" not in name:
                assert torch.equal(value, other[name]), name
    run = load_run(tmp_path / "run")
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    saved = run.network("last").state_dict()
    assert all(torch.equal(saved[name], value) for name, value in first.items())


def test_ctrl_c_says_how_to_resume(tmp_path: Path) -> None:
    path = script(tmp_path, epochs=5000, steps=1, selection_steps=1, evaluation_images=0)
    # What a shell starts in the background is deaf to SIGINT.
    path.write_text(
        f"import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n{path.read_text()}"
    )
    process = subprocess.Popen(
        [sys.executable, str(path)], env=environment(), stderr=subprocess.PIPE, text=True
    )
    for _ in range(600):
        if (tmp_path / "run" / "state.pt").exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert f"iic-train resume {tmp_path / 'run'}" in said
    run = load_run(tmp_path / "run")
    done = run.load_state()["epoch"]
    config = dense_config(epochs=done + 1, steps=1, selection_steps=1, evaluation_images=0)
    make_trainer(replace(run, config=config), dense_data(config)).run_all()
    assert run.metrics()[-1]["epoch"] == done + 1
