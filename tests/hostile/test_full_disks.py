"""Disks that fill up: one sentence, and nothing under a final name that is not whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hostile_writes import WRITERS, check_full_disk, make_inputs, small_disk

SIZES = (8, 40, 120, 200, 400, 7000)
"""Free kilobytes: from room for a folder to room for all outputs."""
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
    sizes = (40, 7000) if name in SLOW else SIZES  # these write one file, after much work
    assert not check_full_disk(WRITERS[name], inputs, disk, 0)
    # Up to the first size that is enough: more room is enough too.
    assert any(check_full_disk(WRITERS[name], inputs, disk, 1024 * size) for size in sizes)


@pytest.mark.parametrize("name", ["stats.gpkg", "draw", "suggest", "segment"])
def test_a_geopackage_has_its_spatial_index_or_is_not_there(name: str, inputs: Path, disk: Path) -> None:
    for size in range(96, 320, 4):
        check_full_disk(WRITERS[name], inputs, disk, 1024 * size)
