"""Studios that are killed at any moment: what they have acknowledged is kept, and every file is whole."""

import random
import shutil
import threading
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from hypothesis import strategies as st

from iic_runtime.studio import Session
from support.hostile_writes import check_outputs
from support.studio import Studio, run_studio


@dataclass(frozen=True)
class StudioCase:
    """What a page does: actions drawn by a seed, and after how many seconds the studio is killed."""

    seconds: float
    seed: int


def studio_cases() -> st.SearchStrategy[StudioCase]:
    """Kills within four seconds after the studio answers."""
    return st.builds(StudioCase, seconds=st.floats(0.0, 4.0), seed=st.integers(0, 2**16))


def check_studio(case: StudioCase, inputs: Path, out: Path) -> bool:
    """Click in a studio until it is killed, and open its folder again.

    Raises:
        AssertionError: An acknowledged click is lost, or a file is not whole.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    chance, folder = random.Random(case.seed), out / "studio"
    with run_studio(
        inputs / "scene.tif", "-o", folder, "--model", inputs / "m.onnx", "--threads", "1"
    ) as studio:
        timer = threading.Timer(case.seconds, studio.process.kill)
        timer.start()
        acknowledged, asked = _click(studio, chance)
        timer.join()
        studio.process.wait()
    check_outputs(folder)
    with Session(inputs / "scene.tif", folder, model=inputs / "m.onnx", threads=1) as session:
        clicks = len(session.clicks)
    assert acknowledged <= clicks <= asked, f"{case}: {acknowledged} of {clicks} clicks, {asked} asked for"
    assert not [path for path in folder.rglob("*.tmp") if path.is_file()], sorted(folder.rglob("*"))
    return True


def _click(studio: Studio, chance: random.Random) -> tuple[int, int]:
    """Click until the studio is gone; return the number of clicks that it acknowledged, and of those it was sent."""
    acknowledged = 0
    try:
        for number in range(10**6):
            if number == 8:
                studio.act("map")
            studio.act(
                "add", name=chance.choice("abc"), places=[[chance.uniform(0, 219), chance.uniform(0, 199)]]
            )
            acknowledged += 1
    except (OSError, HTTPException):
        pass
    return acknowledged, acknowledged + 1
