"""Maps on an emulated Raspberry Pi 4 (64-bit Arm, Cortex-A72), compared with those of this machine.

    python tests/arm.py [FOLDER]      # or: make test-arm

Both bundled models map the example scene and a part of it with odd sides. The emulator (QEMU), a Python for Arm and the
packages that the runtime needs are downloaded into FOLDER, by default `.arm`; nothing is installed into the system.
The exit code is 1 if more than one label in ten thousand differs. Where it cannot run, a sentence says why, and the
exit code is 0.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("geotools", "runtime")
CPU = "cortex-a72"
ODD = {"width": 301, "height": 217}
MAX_DIFFERENCE = 1e-4
"""Share of labels that another rounding may change, as at export."""
PACKAGES = ("python3.11:arm64", "libstdc++6:arm64")
# Debian 12's own QEMU crashes on ONNX Runtime; later ones do not.
QEMU_SUITES = {"bookworm": "bookworm-backports"}
# What both processors run: one process for all maps, because starting Python takes long on the emulated one.
MAPS = """
import json, sys, time
from iic_runtime import segment_raster
from iic_runtime.model.select import bundled_models
import onnxruntime, platform, rasterio
scenes, folder = json.loads(sys.argv[1]), sys.argv[2]
print(f"{platform.machine()}: ONNX Runtime {onnxruntime.__version__}, rasterio {rasterio.__version__}", flush=True)
for name, scene in scenes.items():
    for model in (model.card.name for model in bundled_models()):
        out = f"{folder}/{name}-{model}"
        summary = segment_raster(
            scene, f"{out}.tif", model, confidence=f"{out}-c.tif", match_gsd=False, device="cpu", threads=1
        )
        print(f"{name}, {model}: {summary.seconds:.1f} s", flush=True)
"""


class Skip(Exception):
    """Why it cannot run here."""


def main() -> None:
    """Prepare, map on both processors, compare."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".arm").resolve()
    try:
        command = prepare(folder)
    except Skip as reason:
        say(f"Skipped: {reason}")
        return
    scenes = {"example": str(ROOT / "examples/scene.tif"), "odd": str(make_odd_scene(folder / "odd.tif"))}
    here, there = folder / "maps-here", folder / "maps-arm"
    for maps in (here, there):
        shutil.rmtree(maps, ignore_errors=True)
        maps.mkdir()
    rooms = ":".join(str(ROOT / room) for room in ROOMS)
    run([sys.executable, "-c", MAPS, json.dumps(scenes), str(here)], PYTHONPATH=rooms)
    run([*command, "-c", MAPS, json.dumps(scenes), str(there)], PYTHONPATH=f"{rooms}:{folder / 'packages'}")
    sys.exit(0 if compare(here, there) else 1)


def prepare(folder: Path) -> list[str]:
    """Download what is missing; return the command that runs Python for Arm.

    Raises:
        Skip: It cannot be had here.
    """
    if platform.machine() not in ("x86_64", "amd64"):
        raise Skip(f"this is an {platform.machine()} machine; run the tests themselves on it.")
    root, ready = folder / "root", folder / "ready"
    if not ready.exists():
        if shutil.which("apt-get") is None:
            raise Skip("the emulator is fetched with apt-get, and this is not Debian.")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for archive in fetch_debian(folder / "apt"):
                run(["dpkg-deb", "-x", str(archive), str(root)])
            fetch_packages(folder / "packages")
        except subprocess.CalledProcessError as error:
            raise Skip(f"{error.cmd[0]} failed, probably for want of a network.") from error
        ready.touch()
    emulator = root / "usr/bin/qemu-aarch64"
    return [str(emulator), "-cpu", CPU, "-L", str(root), str(root / "usr/bin/python3.11")]


def fetch_debian(apt: Path) -> Iterable[Path]:
    """Download the emulator, and Python for Arm with its libraries, with a state of apt of their own."""
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    mirror = find_mirror()
    (apt / "sources.list").write_text(
        f"deb [arch=amd64] {mirror} {QEMU_SUITES.get(release, release)} main\n"
        f"deb [arch=arm64] {mirror} {release} main\n"
    )
    settings = {
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
    }
    lines = [f'{key} "{value}";' for key, value in settings.items()]
    lines += ['APT::Architectures {"amd64"; "arm64";};', 'Acquire::Languages "none";']
    lines += ['APT::Sandbox::User "root";', 'Debug::NoLocking "true";']
    (apt / "apt.conf").write_text("\n".join(lines) + "\n")
    config = {"APT_CONFIG": str(apt / "apt.conf")}
    run(["apt-get", "update", "-qq"], **config)
    install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "--download-only"]
    run([*install, "qemu-user:amd64", *PACKAGES], **config)
    return sorted((apt / "cache/archives").glob("*.deb"))


def find_mirror() -> str:
    """Return the mirror of Debian that the system uses.

    Raises:
        Skip: The system does not name one.
    """
    lists = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.[ls]*"))]
    for file in lists:
        text = file.read_text() if file.exists() else ""
        match = re.search(r"^(?:URIs:|deb(?:\s+\[[^]]*\])?)\s+(\S+/debian/?)\s*", text, re.M)
        if match:
            return match[1]
    raise Skip("the emulator is fetched from a mirror of Debian, and apt knows none here.")


def fetch_packages(target: Path) -> None:
    """Download the packages of the runtime for Arm."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["cpu"]]
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(36, 16, -1)] + ["manylinux2014_aarch64"]
    options = [option for name in platforms for option in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--target", str(target), "--python-version", "3.11", "--only-binary=:all:", *options, *needed])


def make_odd_scene(path: Path) -> Path:
    """Cut a part with odd sides from the example scene."""
    import rasterio
    from rasterio.windows import Window

    with rasterio.open(ROOT / "examples/scene.tif") as scene:
        window = Window(17, 23, **ODD)
        profile = scene.profile | {
            **ODD,
            "transform": scene.window_transform(window),
            "photometric": "MINISBLACK",
        }
        with rasterio.open(path, "w", **profile) as part:
            part.write(scene.read(window=window))
            part.descriptions = scene.descriptions
    return path


def compare(here: Path, there: Path) -> bool:
    """Print how the maps of two folders differ; return whether all of them may pass for equal."""
    import numpy as np
    import rasterio

    equal = True
    for file in sorted(here.glob("*.tif")):
        with rasterio.open(file) as one, rasterio.open(there / file.name) as other:
            a, b = one.read(1).astype(int), other.read(1).astype(int)
        differing = int(np.sum(a != b))
        same_bytes = file.read_bytes() == (there / file.name).read_bytes()
        identical = "byte-identical" if same_bytes else f"{differing} of {a.size} pixels differ"
        say(f"{file.name}: {identical}{'' if same_bytes else f', by {np.abs(a - b).max()} at most'}")
        if not file.stem.endswith("-c"):
            equal &= differing <= MAX_DIFFERENCE * a.size
    return equal


def run(command: list[str], **environment: str) -> None:
    """Run a command, with some variables changed."""
    subprocess.run(command, check=True, env=os.environ | environment)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
