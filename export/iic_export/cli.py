"""`iic-export [RUN] -o model.onnx`."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from iic_export.settings import ExportSettings, Naming, missing_extra
from iic_geotools.cli import App, Shell, Version
from iic_geotools.errors import MissingPackageError, UsageError
from iic_runtime.options import EngineOptions

_LOG = logging.getLogger(__name__)
app = App()
main = app


@app.command()
def export(
    settings: ExportSettings,
    naming: Naming,
    engine: EngineOptions,
    shell: Shell,
    run: Annotated[
        Path | None,
        typer.Argument(help="Run folder, or its name under --runs.", show_default="the newest"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Model file.", show_default="model.onnx or model.engine"),
    ] = None,
    best_subhead: Annotated[
        bool,
        typer.Option(
            "--best-subhead", help="Take the sub-head with the lowest IIC loss; this is the default."
        ),
    ] = False,
    version: Version = False,
) -> None:
    """Write a trained run as one model file, proven equal to the trained network."""
    if best_subhead and settings.sub_head is not None:
        raise UsageError("--best-subhead and --sub-head exclude each other; give one of them.")
    try:
        from iic_export.exporter import export as export_run
    except ModuleNotFoundError as error:
        raise MissingPackageError.for_extra(error.name or "", missing_extra()) from error

    exported = export_run(
        run,
        out or Path("model.engine" if settings.format == "tensorrt" else "model.onnx"),
        naming=None if naming == Naming() else naming,
        engine=engine,
        **settings.values(),
    )
    _LOG.info("%s", exported.sentence())
    _LOG.info("Next: %s", exported.next_command())
