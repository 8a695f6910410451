"""The files of the kernel that report energy, as they are on an x86 server and on a Jetson."""

import time
from pathlib import Path

import pytest

from iic_runtime.benchmark import measure_energy


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def test_counters_of_whole_processors_are_added_and_may_start_again(tmp_path: Path) -> None:
    zones = tmp_path / "class/powercap"
    first = write(
        zones / "intel-rapl:0", name="package-0", energy_uj=1_000_000, max_energy_range_uj=9_000_000
    )
    second = write(
        zones / "intel-rapl:1", name="package-1", energy_uj=8_500_000, max_energy_range_uj=9_000_000
    )
    core = write(zones / "intel-rapl:0:0", name="core", energy_uj=0, max_energy_range_uj=9_000_000)
    with measure_energy(tmp_path) as energy:
        (first / "energy_uj").write_text("3500000")
        (second / "energy_uj").write_text("500000")
        (core / "energy_uj").write_text("2000000")
    assert energy.joules == pytest.approx(2.5 + 1.0)
    assert "RAPL" in str(energy.source)


def test_the_power_of_a_jetson_is_integrated(tmp_path: Path) -> None:
    write(tmp_path / "class/hwmon/hwmon0", name="thermal")
    sensors = {"in1_label": "VDD_CPU_GPU_CV", "in1_input": 5000, "curr1_input": 100}
    sensors |= {"in2_label": "VDD_IN", "in2_input": 5000, "curr2_input": 2000}
    write(tmp_path / "class/hwmon/hwmon1", **sensors)
    begun = time.perf_counter()
    with measure_energy(tmp_path) as energy:
        time.sleep(0.2)
    seconds = time.perf_counter() - begun
    assert "INA3221" in str(energy.source)
    assert energy.joules is not None
    assert 0.2 * 10 * 0.9 <= energy.joules <= seconds * 10


def test_counters_that_may_not_be_read_are_no_source(tmp_path: Path) -> None:
    zone = write(tmp_path / "class/powercap/intel-rapl:0", name="package-0", max_energy_range_uj=9)
    (zone / "energy_uj").mkdir()  # reading it fails, whoever runs this
    with measure_energy(tmp_path) as energy:
        pass
    assert (energy.source, energy.joules) == (None, None)


def test_a_machine_without_sensors(tmp_path: Path) -> None:
    with measure_energy(tmp_path) as energy:
        pass
    assert energy.joules is None
