"""Start torchrun with two processes on the CPU again and again, and count how the starts end.

    python benchmarks/starts.py [--starts 100] [--at-once 2]

Each start is `iic-train mnist` with one step per pass on made images, up to its report. Processes meet by gloo. Starts
that fail are counted by the exit code that torchrun names (-6 is SIGABRT), and their output is kept.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

SETTINGS = ("--epochs", "1", "--steps", "1", "--batch", "10", "--device", "cpu")


def start(folder: Path, number: int) -> str:
    """Start two processes; return "finished", or the exit codes of those that failed first."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "iic_train", "mnist", *SETTINGS, "--data", "data", "--name", str(number)]
    path = folder / f"{number}.txt"
    with path.open("wb") as output:
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        code = subprocess.call(command, cwd=folder, stdout=output, stderr=output, env=one_thread)
    text = path.read_text(errors="replace")
    if code == 0 and "weights, metrics and report.html" in text:
        path.unlink()
        return "finished"
    codes = re.findall(r"exitcode +: (-?\d+)", text) or [str(code)]
    return f"exit code {' and '.join(sorted(set(codes)))}"


def main() -> None:
    """Parse the arguments and start."""
    from support.datasets import make_mnist

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="starts-"))
    make_mnist(folder / "data")
    begun, ends = time.monotonic(), Counter[str]()
    with ThreadPoolExecutor(arguments.at_once) as pool:
        results = pool.map(lambda number: start(folder, number), range(arguments.starts))
        for number, end in enumerate(results, 1):
            ends[end] += 1
            counts = ", ".join(f"{count} {name}" for name, count in ends.most_common())
            seconds = (time.monotonic() - begun) / number
            print(f"{number} starts of two processes: {counts}; {seconds:.0f} s each", flush=True)
    print(f"Output of starts that failed: {folder}")


if __name__ == "__main__":
    main()
