"""Disks that fill up: one sentence, and nothing under a final name that is not whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hostile_writes import WRITERS, check_full_disk, make_inputs, small_disk

SIZES = (0, 8, 40, 120, 200, 400)
"""Free kilobytes: from no room for a folder to room for half of the outputs."""
SLOW = {"name without a model", "export"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    try:
        with small_disk(tmp_path_factory.mktemp("disk"), 8000) as disk:
            yield disk
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in WRITERS]
)
def test_full_disks(name: str, inputs: Path, disk: Path) -> None:
    outcomes = [check_full_disk(WRITERS[name], inputs, disk, 1024 * size) for size in SIZES]
    assert not outcomes[0]  # it was full
    assert check_full_disk(WRITERS[name], inputs, disk, 7_000_000)


@pytest.mark.parametrize("name", ["stats.gpkg", "draw", "suggest", "segment"])
def test_a_geopackage_has_its_spatial_index_or_is_not_there(name: str, inputs: Path, disk: Path) -> None:
    for size in range(96, 320, 4):
        check_full_disk(WRITERS[name], inputs, disk, 1024 * size)
