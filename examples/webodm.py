"""Map the orthophoto of a WebODM task: download it, map it, and write areas, polygons and a page next to the map.

    python examples/webodm.py http://localhost:8000 PROJECT TASK --user USER --out folder

The password is asked for, or taken from the environment variable WEBODM_PASSWORD. Needs pip install ".[cpu,vector]".
Without WebODM: iic-segment-raster odm_orthophoto/odm_orthophoto.tif map.tif
"""

import argparse
import json
import os
import shutil
from getpass import getpass
from pathlib import Path
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from iic_runtime import Summary, segment_raster


def log_in(server: str, user: str, password: str) -> str:
    """Return the token of a user."""
    form = urlencode({"username": user, "password": password}).encode()
    with urlopen(Request(f"{server}/api/token-auth/", form), timeout=60) as answer:
        return str(json.load(answer)["token"])


def download_orthophoto(server: str, token: str, project: str, task: str, out: Path) -> None:
    """Download the orthophoto of a task, unless it is there; it appears when it is whole."""
    if out.exists():
        return
    address = f"{server}/api/projects/{quote(project)}/tasks/{quote(task)}/download/orthophoto.tif"
    request = Request(address, headers={"Authorization": f"JWT {token}"})
    partial = out.with_suffix(".part")
    with urlopen(request, timeout=60) as answer, partial.open("wb") as file:
        shutil.copyfileobj(answer, file)
    partial.replace(out)


def map_task(server: str, project: str, task: str, user: str, password: str, out: Path) -> Summary:
    """Map a task; the same call resumes after an interruption."""
    out.mkdir(parents=True, exist_ok=True)
    scene = out / "orthophoto.tif"
    download_orthophoto(server, log_in(server, user, password), project, task, scene)
    return segment_raster(
        scene,
        out / "map.tif",
        sieve=10,  # m2: nothing smaller stays
        stats=out / "areas.csv",
        polygons=out / "map.gpkg",
        web=out / "map.html",
        stac=out / "map.json",
        keep=True,
    )


def main() -> None:
    """Parse the arguments and map."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server")
    parser.add_argument("project")
    parser.add_argument("task")
    parser.add_argument("--user", required=True)
    parser.add_argument("--out", type=Path, default=Path("webodm"))
    options = parser.parse_args()
    password = os.environ.get("WEBODM_PASSWORD") or getpass()
    server = options.server.rstrip("/")
    print(map_task(server, options.project, options.task, options.user, password, options.out).sentence())


if __name__ == "__main__":
    main()
