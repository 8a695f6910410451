"""Odd scenes, options, models and labels for as long as one likes: how often they were taken, refused, or wrong.

    python benchmarks/soak.py --minutes 60

Every case that breaks a promise is printed as it is, and the exit code is then 1. The cases are those of tests/hostile,
each one new: `--seed` begins another sequence.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from support.hostile import cases, check_case
from support.hostile_labels import check_labels, odd_labels
from support.hostile_models import check_model, damaged_models, wrong_cards

BATCH = 50
Kind = tuple[SearchStrategy[Any], Callable[[Any, Path], bool]]
"""Cases of one kind, and a function that checks one in a folder and returns whether it was taken."""
KINDS: dict[str, Kind] = {
    "scenes and options": (cases(), lambda case, folder: check_case(case, folder) == 0),
    "cards": (wrong_cards(), lambda content, folder: check_model(content, folder / "model.onnx")),
    "damaged models": (damaged_models(), lambda content, folder: check_model(content, folder / "model.onnx")),
    "labels": (odd_labels(), lambda labels, folder: check_labels(labels, folder) == 0),
}


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
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    begun = time.monotonic()
    end = begun + 60 * arguments.minutes
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    number = arguments.seed
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for name, kind in KINDS.items():
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
