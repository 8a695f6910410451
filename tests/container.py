"""The steps of deploy/Dockerfile in fresh Debian roots, for machines without a Docker daemon.

    python tests/container.py [FOLDER]      # or: make test-container

FOLDER, by default `.container`, gets a minimal Debian 12 (debootstrap), and a copy of it for each stage of the
Dockerfile. Its instructions are read from the file and run there with chroot: what COPY sees is what the file's
.dockerignore leaves, RUN runs as root, the entry point as the user of the image, without the network. It maps both
example scenes, and the maps are compared with those of this checkout: pixels, overviews, colours and tags. Debian's
Python takes the place of that of the python image. The exit code is 1 if a map differs or the entry point runs as root.
Needs root; where it cannot run, a sentence says why, and the exit code is 0.
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arm import Skip, find_mirror, say

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy/Dockerfile"
SCENES = ("scene.tif", "sentinel2.tif")
PACKAGES = "python3,python3-venv,ca-certificates"
# What a build may take from the machine that it runs on: how the network and the package index are reached.
FROM_HERE = re.compile(r"PIP_\w+|https?_proxy|no_proxy", re.IGNORECASE)
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


@dataclass
class Stage:
    """A stage of the build: its root, and what the instructions so far have set."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0"
    entry_point: list[str] = field(default_factory=list)

    def run(self, command: list[str], *, network: bool = True, here: Mapping[str, str] | None = None) -> str:
        """Run a command in the root, with a /proc of its own, and return what it prints."""
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}
        variables = [f"{key}={value}" for key, value in {**path, **(here or {}), **self.environment}.items()]
        inside = ["env", "-i", *variables, *command]
        chroot = ["chroot", f"--userspec={self.user}:{self.user}", str(self.root), "/bin/sh", "-c"]
        script = f"mount -t proc proc {shlex.quote(str(self.root / 'proc'))} && exec " + shlex.join(
            [*chroot, f"cd {shlex.quote(self.folder)} && exec {shlex.join(inside)}"]
        )
        isolated = ["unshare", "--mount", *([] if network else ["--net"]), "sh", "-c", script]
        return subprocess.run(isolated, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Build, map, compare."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".container").resolve()
    try:
        base = prepare(folder)
    except Skip as reason:
        say(f"Skipped: {reason}")
        return
    begun = time.monotonic()
    image = build(folder, base)
    size = megabytes(image.root)
    say(
        f"Built in {time.monotonic() - begun:.0f} s; {size} MB, of which Debian with Python is {megabytes(base)} MB."
    )
    sys.exit(0 if is_right(image, folder) else 1)


def prepare(folder: Path) -> Path:
    """Return a minimal Debian; the folder keeps it for the next time.

    Raises:
        Skip: It cannot be had here.
    """
    if platform.system() != "Linux" or os.geteuid() != 0:
        raise Skip("debootstrap, chroot and mount need root under Linux.")
    if shutil.which("debootstrap") is None or shutil.which("unshare") is None:
        raise Skip("debootstrap or unshare is not installed.")
    base, ready = folder / "base", folder / "ready"
    if not ready.exists():
        shutil.rmtree(base, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            "debootstrap",
            "--variant=minbase",
            f"--include={PACKAGES}",
            "bookworm",
            str(base),
            find_mirror(),
        ]
        try:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        except subprocess.CalledProcessError as error:
            raise Skip("debootstrap failed, probably for want of a network.") from error
        # As in the python image, where it is called so.
        (base / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        ready.touch()
    return base


def build(folder: Path, base: Path) -> Stage:
    """Follow the instructions of the Dockerfile; return its last stage."""
    stages: dict[str, Stage] = {}
    stage = Stage(base)
    for keyword, text in instructions():
        say(f"{keyword} {text}")
        if keyword == "FROM":
            name = text.partition(" AS ")[2] or "final"
            stage = stages[name] = Stage(fresh_root(folder / name, base))
        else:
            follow(stage, keyword, text, stages)
    return stage


def instructions() -> Iterator[tuple[str, str]]:
    """Yield keyword and text of each instruction."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        keyword, _, text = line.strip().partition(" ")
        if keyword:
            yield keyword, " ".join(text.split())


def fresh_root(root: Path, base: Path) -> Path:
    """Return a copy of the base that reaches the network as this machine does."""
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-a", str(base), str(root)], check=True)
    for name in NETWORK_FILES:
        if Path(name).exists():
            shutil.copy(name, root / name.lstrip("/"))
    return root


def follow(stage: Stage, keyword: str, text: str, stages: Mapping[str, Stage]) -> None:
    """Do what one instruction says."""
    if keyword == "ARG":
        name, _, value = text.partition("=")
        stage.arguments[name] = value
    elif keyword == "ENV":
        for pair in shlex.split(text):
            name, _, value = pair.partition("=")
            default = "/usr/local/bin:/usr/bin:/bin"
            stage.environment[name] = value.replace("$PATH", stage.environment.get("PATH", default))
    elif keyword == "WORKDIR":
        stage.folder = text
        (stage.root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif keyword == "USER":
        stage.user = text
    elif keyword == "ENTRYPOINT":
        stage.entry_point = json.loads(text)
    elif keyword == "COPY":
        copy(stage, text.split(), stages)
    elif keyword == "RUN":
        here = {key: value for key, value in os.environ.items() if FROM_HERE.fullmatch(key)}
        stage.run(["/bin/sh", "-c", text], here={**here, **stage.arguments})
    elif keyword != "CMD":
        raise NotImplementedError(f"{keyword} {text}")


def copy(stage: Stage, words: list[str], stages: Mapping[str, Stage]) -> None:
    """Copy a folder of another stage, or what the build may see of this repository."""
    if words[0].startswith("--from="):
        inside, target = (words[index].lstrip("/") for index in (1, 2))
        shutil.copytree(
            stages[words[0].removeprefix("--from=")].root / inside, stage.root / target, symlinks=True
        )
        return
    seen = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    for name in (line[1:] for line in seen if line.startswith("!")):
        source, target_path = ROOT / name, stage.root / stage.folder.lstrip("/") / name
        if source.is_dir():
            shutil.copytree(source, target_path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target_path)


def is_right(image: Stage, folder: Path) -> bool:
    """Map the examples as the image does and as this checkout does; print whether the maps are the same bytes."""
    data = image.root / image.folder.lstrip("/")
    user = int(image.user)
    os.chown(data, user, user)
    versions = "import sys, os, rasterio, onnxruntime; print(sys.version.split()[0], rasterio.__version__, "
    say(
        image.run(
            ["python", "-c", versions + "onnxruntime.__version__, 'uid', os.getuid())"], network=False
        ).strip()
    )
    right = user != 0
    for scene in SCENES:
        shutil.copy(ROOT / "examples" / scene, data)
        image.run([*image.entry_point, scene, f"map-{scene}"], network=False)
        here = folder / f"here-{scene}"
        code = "import sys; from iic_runtime import segment_raster; segment_raster(*sys.argv[1:3], overwrite=True)"
        rooms = os.pathsep.join(str(ROOT / room) for room in ("geotools", "runtime"))
        command = [sys.executable, "-c", code, str(data / scene), str(here)]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": rooms}, cwd=data)
        made = data / f"map-{scene}"
        same = read_map(made) == read_map(here)
        owner = made.stat().st_uid
        say(
            f"{scene}: mapped as user {owner}, {'equal to the map of this checkout' if same else 'THE MAP DIFFERS'}"
        )
        right &= same and owner == user
    return right


def read_map(path: Path) -> list[object]:
    """Return all that a map holds, but for the fingerprint of the run, which depends on where the scene lies."""
    import rasterio

    with rasterio.open(path) as dataset:
        factors = [1, *dataset.overviews(1)]
        levels = [
            dataset.read(1, out_shape=(-(-dataset.height // f), -(-dataset.width // f))) for f in factors
        ]
        tags = {key: value for key, value in dataset.tags().items() if key != "IIC_WORK"}
        pixels = [level.tobytes() for level in levels]
        return [pixels, dataset.crs, dataset.transform, dataset.colormap(1), tags]


def megabytes(folder: Path) -> int:
    """Return the size of a folder on the disk."""
    told = subprocess.run(["du", "-sm", folder], check=True, capture_output=True, text=True).stdout
    return int(told.split()[0])


if __name__ == "__main__":
    main()
