"""Odd input, damage, lying servers, kills, full disks, writers at the same time: how often taken, refused, or wrong.

    python benchmarks/soak.py --minutes 60

Every case that breaks a promise is printed as it is, and the exit code is then 1. The cases are those of tests/hostile,
each one new: `--seed` begins another sequence. Full disks are small ones that only root can mount.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from support.hostile import cases, check_case
from support.hostile_labels import check_labels, odd_labels
from support.hostile_maps import check_map_case, map_cases
from support.hostile_models import check_model, damaged_models, wrong_cards
from support.hostile_runs import check_damage, odd_runs
from support.hostile_servers import check_server, server_cases
from support.hostile_studio import check_studio, studio_cases
from support.hostile_writes import (
    FUNCTIONS,
    QUICK,
    WRITERS,
    check_full_disk,
    check_kill,
    check_threads,
    check_together,
    make_inputs,
    small_disk,
)

BATCH = 12
MEMORY = 16 << 30
"""Bytes of addresses that a case may use: far more than any needs, and an end to those that never stop."""
Kind = tuple[SearchStrategy[Any], Callable[[Any, Path], bool]]
"""Cases of one kind, and a function that checks one in a folder and returns whether it was taken."""
KINDS: dict[str, Kind] = {
    "scenes and options": (cases(), lambda case, folder: check_case(case, folder) == 0),
    "cards": (wrong_cards(), lambda content, folder: check_model(content, folder / "model.onnx")),
    "damaged models": (damaged_models(), lambda content, folder: check_model(content, folder / "model.onnx")),
    "labels": (odd_labels(), lambda labels, folder: check_labels(labels, folder) == 0),
    "maps and zones": (map_cases(), check_map_case),
    "servers": (server_cases(), check_server),
}


def more_kinds(folder: Path, disk: Path | None) -> dict[str, Kind]:
    """Cases that need inputs: damaged runs, kills, writers at the same time, and a full disk if there is one."""
    inputs = make_inputs(folder)
    writer, moment = st.sampled_from(list(WRITERS.values())), st.floats(0.0, 1.0)
    kinds: dict[str, Kind] = {
        "damaged runs": (
            odd_runs(inputs / "runs" / "fields"),
            lambda case, at: check_damage(case, inputs / "runs" / "fields", at),
        ),
        "kills": (
            st.tuples(writer, moment),
            lambda case, at: check_kill(case[0], inputs, at, 4 * case[1] ** 4),
        ),
        "writers at once": (
            st.sampled_from(QUICK),
            lambda case, at: check_together(WRITERS[case], inputs, at),
        ),
        "threads at once": (
            st.sampled_from(list(FUNCTIONS)),
            lambda case, at: check_threads(case, inputs, at),
        ),
        "kills of the studio": (studio_cases(), lambda case, at: check_studio(case, inputs, at)),
    }
    if disk is not None:
        full: SearchStrategy[Any] = st.tuples(writer, st.integers(0, 600_000))
        kinds["full disks"] = full, lambda case, at: check_full_disk(case[0], inputs, disk, case[1])
    return kinds


def run_batch(kind: Kind, number: int, folder: Path, counts: Counter[str], end: float) -> None:
    """Run a batch of cases of one kind; stop early when the time is over."""
    strategy, check_one = kind

    @seed(number)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def check(case: Any) -> None:
        if time.monotonic() > end:
            return
        begun = time.monotonic()
        try:
            taken = check_one(case, folder)
        except Exception as error:  # whatever it is, a case must not end the others
            counts["wrong"] += 1
            text = case if not isinstance(case, bytes) else case.hex()
            print(f"WRONG: {type(error).__name__}: {error}\n{text}", flush=True)
            return
        counts["taken" if taken else "refused"] += 1
        seconds = time.monotonic() - begun
        if seconds > 60:
            counts["slow"] += 1
            print(f"SLOW ({seconds:.0f} s): {case}", flush=True)

    check()


def main() -> None:
    """Run cases until the time is over, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="How long to run.")
    parser.add_argument("--seed", type=int, default=0, help="The first batch of cases.")
    parser.add_argument("--only", help="Kinds of cases, separated by commas; by default all.")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    begun = time.monotonic()
    end = begun + 60 * arguments.minutes
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    number = arguments.seed
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk(Path(folder) / "disk", 8000))
        except PermissionError:
            disk = None
        kinds = KINDS | more_kinds(Path(folder) / "inputs", disk)
        chosen = [name for name in kinds if not arguments.only or name in arguments.only.split(",")]
        while time.monotonic() < end:
            for name, kind in ((name, kinds[name]) for name in chosen):
                if time.monotonic() < end:
                    run_batch(kind, number, Path(folder) / "case", counts[name], end)
            number += 1
    print(f"{(time.monotonic() - begun) / 60:.1f} min")
    for name, count in counts.items():
        print(
            f"{name}: {count['taken'] + count['refused'] + count['wrong']} cases, {count['taken']} taken, "
            f"{count['refused']} refused with a sentence, {count['wrong']} wrong, {count['slow']} slower than a minute"
        )
    sys.exit(1 if any(count["wrong"] for count in counts.values()) else 0)


if __name__ == "__main__":
    main()
