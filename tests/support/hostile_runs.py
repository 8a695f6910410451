"""Damaged run folders, and what must hold for each of them."""

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from typer.testing import CliRunner

from iic_export.trained_head import load_head
from iic_geotools.errors import IICError
from iic_train.cli import app
from iic_train.runs import load_run

FILES = ("config.json", "metrics.jsonl", "state.pt", "best.safetensors", "last.safetensors")
ODD_BYTES = {
    "empty": b"",
    "not UTF-8": b'{"a": "\xe9\xff"}',
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "null": b"null",
    "a list": b"[]",
    "infinite": b"1e400",
    "many digits": b"9" * 5000,
}
ODD_VALUES: tuple[Any, ...] = (None, "x", -1, [], {}, 1e308, 10**30, True)


class Damage(NamedTuple):
    """What is wrong, the file of the run folder, and what it holds instead; None stands for a folder."""

    what: str
    file: str
    content: bytes | None


@cache
def damages(run: Path) -> list[Damage]:
    """Return every damage of a run folder."""
    return [
        *_damaged_files(run),
        *_odd_configs(run),
        *_odd_metrics(run),
        *_odd_states(run),
        *_odd_weights(run),
    ]


def odd_runs(run: Path) -> st.SearchStrategy[Damage]:
    """Damages of a run folder."""
    return st.sampled_from(damages(run))


def check_damage(damage: Damage, run: Path, folder: Path) -> bool:
    """Use a damaged run: each command takes it or says one sentence. Return whether all took it.

    Raises:
        AssertionError: One says something else.
    """
    taken = True
    for command in ("report", "resume", "head"):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run, folder)
        file = folder / damage.file
        file.unlink()
        if damage.content is None:
            file.mkdir()
        else:
            file.write_bytes(damage.content)
        if command == "head":
            with suppress(IICError):
                load_head(load_run(folder))
            continue
        epochs = ["--epochs", "3"] if command == "resume" else []
        result = CliRunner().invoke(app, [command, str(folder), *epochs])
        context = f"{damage.what}: {command}\n{result.output}"
        assert "Unexpected error" not in result.output, context
        assert isinstance(result.exception, SystemExit | None), context
        if result.exit_code:
            assert result.output.splitlines()[-1].startswith("Error: "), context
            taken = False
    return taken


def _damaged_files(run: Path) -> Iterator[Damage]:
    for file in FILES:
        raw = (run / file).read_bytes()
        odd = {**ODD_BYTES, "cut": raw[: len(raw) // 2], "zeros": bytes(len(raw)), "a folder": None}
        odd["UTF-16"] = raw.decode("latin1").encode("utf-16")
        yield from (Damage(f"{file}: {what}", file, content) for what, content in odd.items())


def _odd_configs(run: Path) -> Iterator[Damage]:
    record = json.loads((run / "config.json").read_text())
    for path in _paths(record):
        values: tuple[Any, ...] = (*ODD_VALUES, ...)
        for value in values:
            changed = deepcopy(record)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            if value is ...:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            yield Damage(f"config {'.'.join(path)}: {value}", "config.json", json.dumps(changed).encode())


def _paths(record: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in record.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *path) for path in _paths(value))


def _odd_metrics(run: Path) -> Iterator[Damage]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for text in ('[1]\n{"a":}\n{}\n', "{}\n"):
        yield Damage(f"metrics {text}", "metrics.jsonl", text.encode())
    for key in rows[-1]:
        for odd in ODD_VALUES:
            lines = [json.dumps(row) for row in [*rows[:-1], {**rows[-1], key: odd}]]
            yield Damage(f"metrics {key}: {odd}", "metrics.jsonl", "\n".join([*lines, ""]).encode())


def _odd_states(run: Path) -> Iterator[Damage]:
    state = torch.load(run / "state.pt", weights_only=True)
    others: list[Any] = [[], None, {}, "x", torch.zeros(3)]
    for key in state:
        odd: list[Any] = [None, "x", -1, [], torch.zeros(2)]
        others += [{**state, key: value} for value in odd]
        others.append({name: value for name, value in state.items() if name != key})
    for number, other in enumerate(others):
        buffer = io.BytesIO()
        torch.save(other, buffer)
        yield Damage(f"state {number}", "state.pt", buffer.getvalue())


def _odd_weights(run: Path) -> Iterator[Damage]:
    file = run / "best.safetensors"
    tensors = load_file(file)
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    network = json.loads(metadata["network"])
    odd = [(f"weights {key}: {value[:9]}", {**metadata, key: value}) for key in metadata
           for value in ("", "x", "null", "[]", "{}", "-1", "nan", "1e400", "9" * 5000)]  # fmt: skip
    odd += [(f"weights network.{key}: {value}", {**metadata, "network": json.dumps({**network, key: value})})
            for key in network for value in (*ODD_VALUES, 10**7)]  # fmt: skip
    yield Damage("weights without tensors", file.name, save_tensors({}, metadata))
    yield Damage("weights without metadata", file.name, save_tensors(tensors))
    yield from (Damage(what, file.name, save_tensors(tensors, changed)) for what, changed in odd)
