"""Work among threads, and what the machine has."""

from pathlib import Path

import pytest

from iic_geotools import work


@pytest.mark.parametrize(("text", "limit"), [("536870912\n", 512 << 20), ("max\n", None), (None, None)])
def test_a_container_may_have_less_than_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, limit: int | None
) -> None:
    file = tmp_path / "memory.max"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(work, "_CONTAINER_LIMIT", tmp_path / "none")
    physical = work.memory_of_machine()
    monkeypatch.setattr(work, "_CONTAINER_LIMIT", file)
    assert work.memory_of_machine() == (limit or physical)
