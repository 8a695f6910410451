"""Tables for people: models, a card, and what became of many scenes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from iic_runtime.card import Card
from iic_runtime.many import Outcome
from iic_runtime.modelfile import ModelFile
from iic_runtime.resolution import in_words, made_for

if TYPE_CHECKING:
    from rich.console import Console


def print_models(models: Sequence[ModelFile]) -> None:
    """Print what models are for, one a row."""
    from rich.table import Table

    table = Table("name", "ground resolution", "bands", "classes", box=None, pad_edge=False)
    table.add_column("kB", justify="right")
    table.add_column("imagery")
    for model in models:
        card = model.card
        known = made_for(card)
        table.add_row(
            card.name,
            "" if known is None else in_words(known),
            f"{', '.join(card.bands)} ({card.dtype if card.rescale is None else 'any type'})",
            ", ".join(each.name for each in card.classes),
            f"{len(model.content) / 1e3:.0f}",
            card.origin.data,
        )
    _console().print(table if models else "No model is bundled with this installation.")


def models_json(models: Sequence[ModelFile]) -> str:
    """What `print_models` prints, for programs."""
    rows = [
        {
            "name": model.card.name,
            "gsd": model.card.gsd,
            "gsd_range": made_for(model.card),
            "bands": model.card.bands,
            "dtype": model.card.dtype,
            "classes": [asdict(each) for each in model.card.classes],
            "bytes": len(model.content),
            "sha256": model.digest,
            "file": str(model.path),
            "data": model.card.origin.data,
            "licence": model.card.origin.licence,
        }
        for model in models
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False)


def print_card(model: ModelFile) -> None:
    """Print what a model takes, gives and comes from."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    card = model.card
    console = Console(highlight=False)
    table = Table(title=card.name, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in _rows(model, card):
        if value:
            table.add_row(key, value)
    console.print(table)
    console.print(Text("classes", style="bold"))
    for label, entry in enumerate(card.classes):
        console.print(
            Text(f"{label:>4} "), Text("██", style=entry.colour), f" {entry.colour} ", Text(entry.name)
        )


def _rows(model: ModelFile, card: Card) -> list[tuple[str, str]]:
    origin = card.origin
    meant_for = (
        "" if card.gsd_range is None else f" (meant for {card.gsd_range[0]:g} to {card.gsd_range[1]:g} m)"
    )
    ranges = [f"{low:g} to {high:g}" for low, high in card.value_range]
    values = (
        ranges[0] if len(set(ranges)) == 1 else ", ".join(map(" ".join, zip(card.bands, ranges, strict=True)))
    )
    return [
        ("file", f"{model.path} ({len(model.content) / 1e6:.2f} MB)"),
        ("sha256", model.digest),
        ("task", card.task),
        ("bands", ", ".join(card.bands)),
        ("pixels", f"{card.dtype}, {values}"),
        ("rescale", "" if card.rescale is None else f"{card.rescale}: each band's 2nd and 98th percentile"),
        ("ground resolution", "" if card.gsd is None else f"{card.gsd:.3g} m{meant_for}"),
        ("halo, stride", f"{card.halo} px, {card.stride} px"),
        ("memory", f"about {card.memory_per_pixel} bytes a pixel"),
        ("precision", card.precision),
        ("training run", origin.run),
        ("sub-head", f"{origin.subhead}{f', chosen by {origin.chosen_by}' if origin.chosen_by else ''}"),
        ("loss", "" if origin.loss is None else f"{origin.loss:.4f}"),
        ("training data", origin.data),
        ("licence", origin.licence),
        ("parity", ", ".join(f"{key} {value:g}" for key, value in card.parity.items())),
        ("made with", ", ".join(f"{key} {value}" for key, value in card.packages.items())),
    ]


def report(outcomes: Sequence[Outcome], table: bool) -> None:
    """Say what became of each scene, on standard error, failures last; if there are any, leave with exit code 1."""
    if table:
        _print_outcomes(outcomes)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        typer.echo(f"Error: {outcome.scene}: {outcome.error}", err=True)
    if failed:
        raise typer.Exit(1)


def _print_outcomes(outcomes: Sequence[Outcome]) -> None:
    from rich.table import Table

    table = Table("map", "result", box=None, pad_edge=False)
    for title in ("Mpx", "s", "Mpx/s"):
        table.add_column(title, justify="right")
    fresh = [each.summary for each in outcomes if each.summary is not None and not each.summary.made_before]
    for outcome in outcomes:
        summary = outcome.summary
        if summary is None:
            table.add_row(str(outcome.map), "FAILED")
        elif summary.made_before:
            table.add_row(str(outcome.map), "made before", *_figures(summary.pixels, None))
        else:
            table.add_row(str(outcome.map), "made", *_figures(summary.pixels, summary.seconds))
    failed = sum(each.summary is None for each in outcomes)
    words = f"{len(outcomes) - failed} of {len(outcomes)} scenes mapped"
    table.add_section()
    table.add_row(
        words, "", *_figures(sum(each.pixels for each in fresh), sum(each.seconds for each in fresh))
    )
    _console(stderr=True).print(table)


def _console(stderr: bool = False) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200  # a log has no width: never fold a name
    return console


def _figures(pixels: int, seconds: float | None) -> tuple[str, ...]:
    speed = () if seconds is None else (f"{seconds:.1f}", f"{pixels / 1e6 / max(seconds, 1e-9):.2f}")
    return (f"{pixels / 1e6:.2f}", *speed)
