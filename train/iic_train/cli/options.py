"""Arguments and options that several commands of `iic-train` share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from iic_geotools.settings import PathLike, Settings, setting

RUNS = Path("runs")

RunFolder = Annotated[
    Path | None,
    typer.Argument(help="A run folder, or its name under --runs.", show_default="the newest under --runs"),
]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]
Checkpoint = Annotated[
    Literal["best", "last"], typer.Option(help="The epoch with the lowest loss, or the last one.")
]
OVERCLUSTER = "Semi-supervised overclustering: one head, many to one."


@dataclass(frozen=True, kw_only=True)
class DataFolder(Settings, group="Data"):
    """Where the data is."""

    data: PathLike = setting(
        "data", "Folder that holds the data set or the scenes.", envvar="IIC_DATA", first=True
    )


@dataclass(frozen=True, kw_only=True)
class DownloadSettings(DataFolder, group="Data"):
    """Where the data is, or is downloaded to."""

    download: bool = setting(False, "Download the data set if it is missing.")


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(DataFolder, group="Data"):
    """Which images of a data set of the paper are trained on."""

    overcluster: bool = setting(False, OVERCLUSTER)
    unlabelled: bool = setting(True, "Train on images without labels too.")


@dataclass(frozen=True, kw_only=True)
class ImageSetSettings(DatasetSettings, DownloadSettings, group="Data"):
    """The same for a data set that can be downloaded."""
