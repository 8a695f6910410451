"""The files under deploy/ name extras, commands and options that exist, and a build sees all that it needs."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import iic_runtime.cli.segment_raster

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILES = ("Dockerfile", "Dockerfile.jetson")
OPTIONS = {
    option
    for parameter in get_command(iic_runtime.cli.segment_raster.app).params
    for option in (*parameter.opts, *parameter.secondary_opts)
}


def command_lines() -> list[str]:
    texts = [file.read_text() for file in DEPLOY.iterdir() if file.is_file()]
    return [
        line
        for text in texts
        for line in text.splitlines()
        if re.search(r"iic-segment-raster|run --rm", line)
    ]


@pytest.mark.parametrize("name", [*DOCKERFILES, "compose.yaml", "iic-segment.service"])
def test_extras_exist(name: str) -> None:
    text = (DEPLOY / name).read_text()
    extras = re.findall(r"EXTRAS[=:]\s*([\w,]+)|\.\[([\w,]+)\]", text)
    assert extras
    for extra in ",".join(first or second for first, second in extras).split(","):
        assert extra in PROJECT["project"]["optional-dependencies"]


def test_options_exist() -> None:
    assert len(command_lines()) >= 4
    for line in command_lines():
        _, _, arguments = line.partition("iic-segment-raster" if "ExecStart" in line else ".tif")
        options = [word for word in shlex.split(arguments.rstrip("'")) if word.startswith("--")]
        assert set(options) <= OPTIONS, line


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_build_sees_what_the_package_is_made_of(name: str) -> None:
    kept = {
        line[1:] for line in (DEPLOY / f"{name}.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    packages = {
        Path(package).parts[0]
        for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    }
    assert (
        packages | {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
        <= kept
    )


@pytest.mark.parametrize("name", DOCKERFILES)
def test_containers_do_not_run_as_root(name: str) -> None:
    users = re.findall(r"^USER (\d+)$", (DEPLOY / name).read_text(), re.M)
    assert users[-1:] == ["1000"]


def test_the_services_of_a_cluster_share_image_and_folder() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"scheduler", "worker", "map"}
    for service in services.values():
        assert (ROOT / service["build"]["dockerfile"]).exists()
        assert service["volumes"] == ["../data:/data"]
    assert services["worker"]["entrypoint"][:3] == ["dask", "worker", "tcp://scheduler:8786"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    service = (
        (DEPLOY / "iic-segment.service").read_text().replace("/opt/iic/bin/iic-segment-raster", "/bin/true")
    )
    (tmp_path / "iic-segment.service").write_text(service)
    for kind in ("timer", "path"):
        shutil.copy(DEPLOY / f"iic-segment.{kind}", tmp_path)
    units = [str(tmp_path / f"iic-segment.{kind}") for kind in ("timer", "path", "service")]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "iic-segment" in line]
    assert not complaints
