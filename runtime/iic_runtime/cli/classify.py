"""`iic-classify IMAGES... -o labels.csv`."""

import logging
from pathlib import Path
from typing import Annotated

import typer

import iic_runtime  # whose names are imported when they are used
from iic_geotools.cli import App, Display, Version
from iic_runtime.classifier import ClassifySettings

_LOG = logging.getLogger(__name__)
app = App()
main = app


@app.command()
def classify(
    images: Annotated[
        list[Path],
        typer.Argument(help="Image files, folders of them, or arrays (.npy).", show_default=False),
    ],
    settings: ClassifySettings,
    display: Display,
    out: Annotated[Path, typer.Option("--out", "-o", help="The table, .csv.")] = Path("labels.csv"),
    version: Version = False,
) -> None:
    """Label whole images with a model that iic-export wrote of a clustering run, and write a table."""
    with display.show_progress() as progress:
        arguments = {**settings.values(), "progress": progress}
        summary = iic_runtime.classify_images(images, out, **arguments)
    if not display.progress_json:
        _LOG.info("%s", summary.sentence())
