"""The options of `iic-train`, each declared once.

Options that a recipe decides are None unless they are given; their names begin with `Optional`.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from iic_train.config import Amp

DATA = Path("data")
RUNS = Path("runs")

_NETWORK = typer.Option(help="Name of a network of the same kind.")
_SUB_HEADS = typer.Option(min=1, help="Number of sub-heads of each head.")
_EPOCHS = typer.Option(min=1, help="Number of epochs to train.")
_STEPS = typer.Option(min=1, help="Largest number of steps per pass.")
_BATCH = typer.Option(min=2, help="Number of pairs per step, over all processes.")
_RATE = typer.Option(help="Learning rate.")
_ENTROPY_WEIGHT = typer.Option(help="Entropy weight of head B; above 1 favours clusters of equal size.")

DataFolder = Annotated[
    Path, typer.Option(envvar="IIC_DATA", help="Folder that holds the data set or the scenes.")
]
Download = Annotated[bool, typer.Option("--download", help="Download the data set if it is missing.")]
Network = Annotated[str, _NETWORK]
OptionalNetwork = Annotated[str | None, _NETWORK]
ClustersA = Annotated[
    int | None, typer.Option(min=0, help="Number of clusters of the overclustering head; 0 leaves it out.")
]
OptionalSubHeads = Annotated[int | None, _SUB_HEADS]
OptionalEpochs = Annotated[int | None, _EPOCHS]
OptionalSteps = Annotated[int | None, _STEPS]
OptionalBatch = Annotated[int | None, _BATCH]
OptionalRate = Annotated[float | None, _RATE]
EntropyWeight = Annotated[float, _ENTROPY_WEIGHT]
OptionalEntropyWeight = Annotated[float | None, _ENTROPY_WEIGHT]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is random.")]
Precision = Annotated[Amp, typer.Option(help="Precision of the network on CUDA.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile the network.")]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]
Name = Annotated[str | None, typer.Option(help="Name of the run folder.", show_default="preset and time")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device to compute on.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of processes that read ahead; 0 reads between steps.",
        show_default="0 on a CPU, all cores but one for a GPU",
    ),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(min=1, help="Number of pairs that pass the network at once, to save memory."),
]
Patience = Annotated[
    int | None,
    typer.Option(
        "--patience",
        "--until-settled",
        min=0,
        metavar="EPOCHS",
        help="Early-stopping patience in epochs; 0 trains all epochs.",
    ),
]
Checkpoint = Annotated[
    Literal["best", "last"], typer.Option(help="The epoch with the lowest loss, or the last one.")
]
RunFolder = Annotated[
    Path | None, typer.Argument(help="A run folder.", show_default="the newest under --runs")
]
