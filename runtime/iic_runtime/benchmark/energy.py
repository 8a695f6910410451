"""The energy that a stretch of work takes, where the machine has sensors that may be read.

Linux has counters of the energy of x86 processors (RAPL, under /sys/class/powercap; most kernels let only root read
them), and NVIDIA's Jetson boards have sensors of the power that the whole module takes (INA3221, under
/sys/class/hwmon). Both are plain files.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys")
JETSON_RAILS = ("VDD_IN", "POM_5V_IN")
"""The sensors of the power of a whole Jetson module, by what its generations call them."""
INTERVAL = 0.05


@dataclass
class Energy:
    """What a stretch of work took.

    Attributes:
        source: The sensor; None if there is none that may be read.
        joules: The energy, known when the work is done; None without a sensor.
    """

    source: str | None = None
    joules: float | None = None


@contextmanager
def measure_energy(system: Path = SYSTEM) -> Iterator[Energy]:
    """Measure the energy that the machine takes during a block, for all that runs on it.

    Args:
        system: Where the files of the kernel are.
    """
    counters = _rapl_counters(system)
    power = None if counters else _jetson_power(system)
    if counters:
        energy = Energy("RAPL, processor packages")
        before = [counter.read() for counter in counters]
        yield energy
        energy.joules = sum(counter.since(start) for counter, start in zip(counters, before, strict=True))
    elif power is not None:
        energy = Energy("INA3221, whole module")
        with _integral(power) as joules:
            yield energy
        energy.joules = joules[0]
    else:
        yield Energy()


@dataclass(frozen=True)
class _Counter:
    """A counter of microjoules that starts again at 0 after its highest value."""

    file: Path
    highest: int

    def read(self) -> int:
        return int(self.file.read_text())

    def since(self, start: int) -> float:
        """Return the joules since the counter stood at `start`."""
        difference = self.read() - start
        return (difference if difference >= 0 else difference + self.highest) / 1e6


def _rapl_counters(system: Path) -> list[_Counter]:
    """Return the counters of whole processors; those of their cores and memory are parts of them."""
    counters = []
    for zone in sorted((system / "class/powercap").glob("intel-rapl:*")):
        try:
            if (zone / "name").read_text().startswith("package"):
                counter = _Counter(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))
                counter.read()
                counters.append(counter)
        except (OSError, ValueError):  # not for this user
            return []
    return counters


def _jetson_power(system: Path) -> Callable[[], float] | None:
    """Return a function that reads the power in watts that a Jetson module takes."""
    for label in sorted((system / "class/hwmon").glob("hwmon*/in*_label")):
        if label.read_text().strip() not in JETSON_RAILS:
            continue
        number = label.name.removeprefix("in").removesuffix("_label")
        voltage, current = label.with_name(f"in{number}_input"), label.with_name(f"curr{number}_input")
        if voltage.exists() and current.exists():
            return lambda: int(voltage.read_text()) * int(current.read_text()) / 1e6
    return None


@contextmanager
def _integral(power: Callable[[], float]) -> Iterator[list[float]]:
    """Yield a list whose only number is, after the block, the integral of a power over its time."""
    joules, done = [0.0], threading.Event()

    def sample() -> None:
        last, watts = time.perf_counter(), power()
        while not done.wait(INTERVAL):
            now, latest = time.perf_counter(), power()
            joules[0] += (watts + latest) / 2 * (now - last)
            last, watts = now, latest
        joules[0] += watts * (time.perf_counter() - last)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield joules
    finally:
        done.set()
        thread.join()
