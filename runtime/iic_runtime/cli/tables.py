"""What commands print: tables of models, a card, and the outcome of many scenes.

Names come from files, and rich takes words in brackets for markup: names are always put into a `Text`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from iic_geotools.cli import as_options, print_error
from iic_geotools.cli.display import open_console
from iic_geotools.errors import redact
from iic_runtime.benchmark import Benchmark, Trial
from iic_runtime.engine.parity import EngineParity
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile
from iic_runtime.model.remote.collection import Entry
from iic_runtime.model.select import format_resolution, resolution_range
from iic_runtime.raster.many_scenes import Outcome

# Share of the cores that others may use before figures mislead.
BUSY = 0.5


def print_models(models: Sequence[ModelFile]) -> None:
    """Print a table with one row per model."""
    table = Table("name", "ground resolution", "bands", "classes", box=None, pad_edge=False)
    table.add_column("kB", justify="right")
    table.add_column("imagery")
    for model in models:
        card = model.card
        known = resolution_range(card)
        row = (
            card.name,
            "" if known is None else format_resolution(known),
            f"{', '.join(card.bands)} ({card.dtype if card.rescale is None and card.values is None else 'any type'})",
            ", ".join(map_class.name for map_class in card.classes),
            f"{len(model.content) / 1e3:.0f}",
            card.origin.data,
        )
        table.add_row(*map(Text, row))
    open_console().print(table if models else "No model is bundled with this installation.")


def print_entries(entries: Sequence[Entry]) -> None:
    """Print a table with one row per model of a collection."""
    table = Table("name", "ground resolution", "bands", "classes", box=None, pad_edge=False)
    table.add_column("kB", justify="right")
    table.add_column("imagery")
    table.add_column("licence")
    for entry in entries:
        row = (
            entry.name,
            "" if entry.gsd_range is None else format_resolution(entry.gsd_range),
            ", ".join(entry.bands),
            ", ".join(entry.classes),
            "" if entry.bytes is None else f"{entry.bytes / 1e3:.0f}",
            entry.data,
            entry.licence,
        )
        table.add_row(*map(Text, row))
    open_console().print(table if entries else "The collection is empty.")


def entries_json(entries: Sequence[Entry]) -> str:
    """Return the models of a collection as JSON, as they stand in its index."""
    return json.dumps([asdict(entry) for entry in entries], indent=1, ensure_ascii=False)


def models_json(models: Sequence[ModelFile]) -> str:
    """Return what `print_models` prints as JSON."""
    rows = [
        {
            "name": model.card.name,
            "gsd": model.card.gsd,
            "gsd_range": resolution_range(model.card),
            "bands": model.card.bands,
            "dtype": model.card.dtype,
            "classes": [asdict(map_class) for map_class in model.card.classes],
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
    """Print what a model takes and gives, and where it comes from."""
    card = model.card
    console = open_console()
    table = Table(title=Text(card.name), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in _rows(model, card):
        if value:
            table.add_row(key, Text(value))
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
        ("values", "reflectance, by what the scene says about its values" if card.values else ""),
        ("ground resolution", "" if card.gsd is None else f"{card.gsd:.3g} m{meant_for}"),
        ("halo, stride", f"{card.halo} px, {card.stride} px"),
        ("memory", f"about {card.memory_per_pixel} bytes per pixel"),
        ("precision", card.precision),
        ("training run", origin.run),
        ("sub-head", f"{origin.subhead}{f', chosen by {origin.chosen_by}' if origin.chosen_by else ''}"),
        ("loss", "" if origin.loss is None else f"{origin.loss:.4f}"),
        ("training data", origin.data),
        ("labels seen", origin.labels),
        ("licence", origin.licence),
        ("parity", _list_figures(card.parity)),
        *((f"accuracy, {place}", _list_figures(figures)) for place, figures in card.accuracy.items()),
        ("reliability of confidence", _list_figures(card.reliability)),
        ("made with", ", ".join(f"{key} {value}" for key, value in card.packages.items())),
    ]


def _list_figures(figures: Mapping[str, float | str]) -> str:
    texts = (
        f"{key.replace('_', ' ')} {format(value, 'g') if isinstance(value, int | float) else value}"
        for key, value in figures.items()
    )
    return ", ".join(texts)


def print_benchmark(result: Benchmark) -> None:
    """Print what was measured, one row per setting, and the options that are best."""
    console = open_console()
    pixels = "noise" if result.scene is None else f"tiles of {result.scene}"
    console.print(
        Text(f"{result.model} on {result.machine or 'this machine'}, cores: {result.cores}, {pixels}")
    )
    table = Table("engine", box=None, pad_edge=False)
    for title in ("threads", "tile", "at once", "Mpx/s", "p50 ms", "p95 ms", "start s", "peak MB", "J/Mpx"):
        table.add_column(title, justify="right")
    for trial in result.trials:
        table.add_row(*map(Text, _trial_row(trial.provider, trial)))
    if result.whole_map is not None:
        table.add_section()
        table.add_row(*map(Text, _trial_row("file to file, with the best", result.whole_map)))
    console.print(table)
    notes = list(result.problems)
    if result.parity is not None:
        notes.append(_describe_parity(result.parity))
    if not any(trial.energy_source for trial in result.trials):
        notes.append(
            "Energy: no sensor can be read (Jetson has some; those of x86 processors often need root)."
        )
    if result.load is not None and result.load > BUSY * result.cores:
        notes.append(
            f"The machine was busy (load {result.load:.1f}, cores: {result.cores}): measure again when it is idle."
        )
    if result.best is not None:
        notes.append(f"Best: {_best_options(result.best)}")
    for note in notes:
        # Arguments are named as options of the command that maps scenes, not of this one.
        console.print(Text(re.sub(r"`(\w+)`", lambda match: "--" + match[1].replace("_", "-"), note)))


def _trial_row(name: str, trial: Trial) -> tuple[str, ...]:
    def number(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return (
        name,
        "" if trial.threads is None else str(trial.threads),
        str(trial.tile),
        str(trial.batch * trial.lanes),
        number(trial.mpx_per_second, 2),
        number(trial.p50_ms, 1),
        number(trial.p95_ms, 1),
        number(trial.start_seconds, 2),
        number(trial.peak_mb, 0),
        number(trial.joules_per_mpx, 2),
    )


def _describe_parity(parity: EngineParity) -> str:
    tiles = "tiles equal the whole image" if parity.tiles_equal else "tiles differ from the whole image"
    return (
        f"OpenVINO: {parity.labels_differing} of {parity.pixels} labels differ from ONNX Runtime's, confidence by "
        f"{parity.confidence_difference} of 255 at most; {tiles}."
    )


def _best_options(best: Trial) -> str:
    threads = "" if best.threads is None else f" --threads {best.threads}"
    return f"--device {best.device}{threads} --tile {best.tile}"


def report_outcomes(outcomes: Sequence[Outcome], table: bool) -> None:
    """Print the outcome of each scene on standard error, failures last; exit with code 1 if one failed."""
    if table:
        _print_outcomes(outcomes)
    failures = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failures:
        sentence, scene = as_options(str(outcome.error)), redact(outcome.scene)
        print_error(sentence if scene in sentence else f"{scene}: {sentence}")
    if failures:
        raise typer.Exit(1)


def _print_outcomes(outcomes: Sequence[Outcome]) -> None:
    table = Table("map", "result", box=None, pad_edge=False)
    for title in ("Mpx", "s", "Mpx/s"):
        table.add_column(title, justify="right")
    for outcome in outcomes:
        summary = outcome.summary
        if summary is None:
            table.add_row(Text(str(outcome.map)), "FAILED")
        elif summary.made_before:
            table.add_row(Text(str(outcome.map)), "made before", *_figures(summary.pixels, None))
        else:
            table.add_row(Text(str(outcome.map)), "made", *_figures(summary.pixels, summary.seconds))
    summaries = [outcome.summary for outcome in outcomes if outcome.summary is not None]
    new = [summary for summary in summaries if not summary.made_before]
    pixels, seconds = sum(summary.pixels for summary in new), sum(summary.seconds for summary in new)
    table.add_section()
    table.add_row(f"{len(summaries)} of {len(outcomes)} scenes mapped", "", *_figures(pixels, seconds))
    open_console(err=True).print(table)


def _figures(pixels: int, seconds: float | None) -> tuple[str, ...]:
    speed = () if seconds is None else (f"{seconds:.1f}", f"{pixels / 1e6 / max(seconds, 1e-9):.2f}")
    return (f"{pixels / 1e6:.2f}", *speed)
