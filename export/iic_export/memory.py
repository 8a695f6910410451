"""How much working memory a model takes for each pixel, measured in a process of its own.

    python -m iic_export.memory MODEL

runs a model on a small and on a large square and prints by how many bytes a pixel the peak grew.
"""

import resource
import subprocess
import sys
from pathlib import Path

from iic_geotools.errors import ModelError

SMALL, LARGE = 32, 512
ROUND_TO = 16


def memory_per_pixel(model: Path) -> int:
    """Bytes a pixel that the peak grows by with the size of what is run at once.

    Raises:
        ModelError: The model cannot be run.
    """
    command = [sys.executable, "-m", "iic_export.memory", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["killed"])[-1]
        raise ModelError(f"The model cannot be run to measure its memory ({reason}).")
    return max(ROUND_TO, -(-int(done.stdout) // ROUND_TO) * ROUND_TO)


def _main(path: str) -> None:
    import numpy as np

    from iic_runtime.engines import open_engine
    from iic_runtime.modelfile import ModelFile

    model = ModelFile.read(path)
    engine = open_engine(model, "cpu")
    peaks = []
    for side in (SMALL, LARGE):
        engine.run(np.zeros((1, len(model.card.bands), side, side), model.card.dtype), True)
        peaks.append(_peak())
    sys.stdout.write(str((peaks[1] - peaks[0]) // (LARGE**2 - SMALL**2)))


def _peak() -> int:
    """The most memory this process ever held; `getrusage` would count what its parent held before `exec`."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    _main(*sys.argv[1:])
