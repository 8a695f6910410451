"""One version, and one list of requirements, wherever they are written down; `make dist` checks the built packages."""

import re
import tomllib
from pathlib import Path

import packages
import pytest
import yaml

import iic_geotools

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = iic_geotools.__version__
CPU = [f"{entry.split('#')[0].strip()}; extra == 'cpu'" for entry in PROJECT["optional-dependencies"]["cpu"]]


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    assert f"## {VERSION} - " in (ROOT / "CHANGELOG.md").read_text()


def test_the_recipe_requires_what_the_wheel_does() -> None:
    requirements = [*PROJECT["dependencies"], *CPU]
    assert packages.recipe_differences(requirements, VERSION) == []
    assert packages.recipe_differences(requirements[1:], "9")[-1].startswith("version: ")
    changed = [requirements[0].replace("1.26", "2.0"), *requirements[1:]]
    assert packages.recipe_differences(changed, VERSION) == [
        "numpy: >=1.26 in the recipe, >=2.0 in the wheel"
    ]


def test_the_recipe_has_the_commands_and_the_lowest_python_of_the_wheel() -> None:
    recipe = yaml.safe_load(packages.RECIPE.read_text())
    scripts = [f"{name} = {function}" for name, function in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    assert packages.PYTHONS[0] == recipe["context"]["python_min"]


def test_the_recipe_is_one_of_conda_forge() -> None:
    rattler_build = pytest.importorskip("rattler_build")
    recipe = rattler_build.Stage0Recipe.from_file(packages.RECIPE)
    (variant,) = recipe.render(rattler_build.VariantConfig())
    package = variant.recipe.package
    assert (package.name, str(package.version)) == (PROJECT["name"], VERSION)


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflows_call_targets_and_scripts_that_exist(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / name).read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert all({"runs-on", "steps"} <= job.keys() for job in jobs.values())
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]:
        for target in re.findall(r"make ([\w-]+)", line):
            assert target in targets
        for script in re.findall(r"python (?:-\S+ )*(\S+\.py)", line):
            assert (ROOT / script).exists()
