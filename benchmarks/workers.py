"""One scene by this process alone, and by one, two and four workers: seconds, ratios, and the memory of each worker.

    python benchmarks/workers.py [--side 4096] [--workers 1 2 4]

On a machine of as many cores as workers all of them use every core, so the ratio shows what the cluster costs; the
gain of more machines is theirs. Seconds of the processor are those of all processes together, from the start of the
cluster to its end: other programs change them less than the clock, and the load printed with them says how many there
were. The maps are compared byte by byte. Starting the cluster is timed on its own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def measure(scene: Path, out: Path, model: Path, workers: int) -> dict[str, Any]:
    """Map the scene; seconds with and without the start of the cluster, and the largest process."""
    from iic_runtime import Segmenter, segment_raster
    from iic_runtime.options import RunSettings
    from iic_runtime.raster.cluster import connect_cluster

    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        own = psutil.Process()
        while not ended.wait(0.1):
            for process in own.children(recursive=True) if workers else [own]:
                try:
                    peak = max(peak, process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue

    threading.Thread(target=watch, daemon=True).start()
    segmenter = Segmenter(model, device="cpu")
    begun = time.perf_counter()
    with connect_cluster(RunSettings(workers=workers or None)) as cluster:
        ready = time.perf_counter()
        segment_raster(scene, out, segmenter, scheduler=cluster)
        done = time.perf_counter()
    ended.set()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return {"start": ready - begun, "map": done - ready, "peak": peak, "cpu": cpu}


def main() -> None:
    """Measure each in a process of its own and print them side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        scene, out, model, workers = arguments.one
        print(json.dumps(measure(Path(scene), Path(out), Path(model), int(workers))))
        return
    from segment import NETWORK, make_scene
    from support.tiny_onnx import make_model

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        scene = make_scene(place / "scene.tif", arguments.side)
        (place / "model.onnx").write_bytes(make_model(**NETWORK))
        alone: dict[str, Any] = {}
        print(f"{arguments.side} x {arguments.side} px, {psutil.cpu_count()} cores")
        print(
            f"{'':>10} {'start s':>8} {'map s':>8} {'Mpx/s':>8} {'to alone':>9} {'CPU s':>8} {'to alone':>9} "
            f"{'MB/process':>11} {'load':>6}"
        )
        for workers in (0, *arguments.workers):
            out = place / f"map{workers}.tif"
            command = [
                sys.executable,
                __file__,
                "--one",
                *map(str, (scene, out, place / "model.onnx", workers)),
            ]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            figures = json.loads(output.splitlines()[-1])
            alone = alone or figures
            speed = arguments.side**2 / 1e6 / figures["map"]
            name = f"{workers} workers" if workers else "alone"
            same = out.read_bytes() == (place / "map0.tif").read_bytes()
            print(
                f"{name:>10} {figures['start']:8.1f} {figures['map']:8.1f} {speed:8.2f} "
                f"{alone['map'] / figures['map']:9.2f} {figures['cpu']:8.1f} {alone['cpu'] / figures['cpu']:9.2f} "
                f"{figures['peak'] / 1e6:11.0f} {os.getloadavg()[0]:6.1f}{'' if same else '  THE MAP DIFFERS'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
