"""Everything a run is made of, as plain values: what `config.json` holds and `--resume` reads back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, cast

from iic_geotools.errors import TrainingError, UsageError
from iic_train.networks import NetworkConfig
from iic_train.pairs import DensePairs, ImagePairs
from iic_train.photometry import Photometry

Plain = TypeVar("Plain")


@dataclass(frozen=True)
class DataConfig:
    """Where the images come from: a data set of the paper by name, or `rasters`.

    Attributes:
        name: One of `iic_train.data.DATASETS`, or `rasters`.
        root: Folder that holds the data set.
        overcluster: Partitions of semi-supervised overclustering.
        unlabelled: Train on images without labels too, where a data set has them.
        scenes: Rasters to train on.
        labels: Label rasters, one a scene, for evaluation only.
        label_classes: Classes of the label rasters as NAME=VALUE,VALUE...; empty: every value is a class.
        bands: Band of the scenes for each channel, by name or number; empty: by the channels' names.
        nodata: Value that means no data, over what the files say.
        reduce: Train at a resolution this many times coarser than the scenes'.
        gsd: Instead, train at every ground resolution in this range of metres that the scenes' pixels make.
        pixel_size: Side of a pixel in metres where a scene does not say.
        rescale: "auto": bring every scene to 0..255 by each band's own percentiles over it.
    """

    name: str
    root: str | None = None
    overcluster: bool = False
    unlabelled: bool = True
    scenes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    label_classes: tuple[str, ...] = ()
    bands: tuple[str, ...] = ()
    nodata: float | None = None
    reduce: int = 1
    gsd: tuple[float, float] | None = None
    pixel_size: float | None = None
    rescale: Literal["auto"] | None = None


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run; every default is written out.

    Attributes:
        preset: Name the run folder starts with.
        data: What is trained on.
        network: What is trained.
        pairs: How pairs are made.
        size: Side of the windows cut for segmentation; None for clustering, where `pairs` cuts.
        passes: Passes over the data that make an epoch, each naming the heads it trains: ("a", "b") trains
            them in turn, ("ab",) both at every step.
        epochs: Epochs to train.
        batch: Pairs a step, over all ranks.
        repeats: Second views for each first view.
        steps: Steps a pass takes at most; None: all of the data.
        lr: Learning rate of Adam.
        schedule: Keep the learning rate, or let it fall to zero along a cosine.
        lamb_a: Weight of the entropy in head A's loss.
        lamb_b: The same for head B.
        settling: Part of training over which head B's weight moves from 1 to `lamb_b`; below 1 a weight lets
            clusters be as unequal as they are, but from the start it would let some of them die.
        radius: Largest displacement between paired pixels.
        collapsed: Sum the joint over displacements before taking information.
        cells: Take the loss on the trunk's coarser grid, with the radius in its cells; much cheaper.
        margin: Pixels along the edges of a window that are left out of the loss: what a network says there it
            partly says about the window's edge, which all views share and no map has.
        chunk: Images correlated at once; None: chosen by memory.
        selection_steps: Batches of fixed pairs on which epochs and sub-heads are compared, without labels.
        evaluation_images: Labelled images on which accuracy is followed during training; 0: do not.
        seed: Of everything random.
        amp: Precision of the network on CUDA; the loss is always float32.
        compile: Compile the network.
    """

    preset: str
    data: DataConfig
    network: NetworkConfig
    pairs: DensePairs | ImagePairs
    size: int | None
    passes: tuple[str, ...] = ("a", "b")
    epochs: int = 100
    batch: int = 60
    repeats: int = 1
    steps: int | None = None
    lr: float = 1e-4
    schedule: Literal["constant", "cosine"] = "constant"
    lamb_a: float = 1.0
    lamb_b: float = 1.0
    settling: float = 0.0
    radius: int = 10
    collapsed: bool = False
    cells: bool = False
    margin: int = 0
    chunk: int | None = None
    selection_steps: int = 20
    evaluation_images: int = 2000
    seed: int = 0
    amp: Literal["off", "bf16", "fp16"] = "off"
    compile: bool = False

    def __post_init__(self) -> None:
        heads = {"b"} if self.network.clusters_a is None else {"a", "b"}
        if not self.passes or "b" not in "".join(self.passes):
            raise UsageError("Some pass of an epoch must train head B.")
        if unknown := set("".join(self.passes)) - heads:
            raise UsageError(
                f"Passes name head {', '.join(sorted(unknown))}, which the network does not have."
            )
        if self.network.dense != isinstance(self.pairs, DensePairs) or self.network.dense == (
            self.size is None
        ):
            raise UsageError("Segmentation needs dense pairs and a size, clustering image pairs and no size.")
        for name in ("epochs", "batch", "repeats", "selection_steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"The number of {name} must be at least 1, not {getattr(self, name)}.")
        if self.dense and self.repeats > 1:
            raise UsageError("Segmentation pairs have one second view: --repeats must be 1.")
        if self.size is not None and not 0 <= 2 * self.margin < self.size - self.radius:
            raise UsageError(
                f"A window of {self.size} px is too small for a margin of {self.margin} px on each side."
            )
        if self.batch % self.repeats:
            raise UsageError(
                f"A batch of {self.batch} pairs cannot be made of {self.repeats} repeats; change one."
            )
        if not self.lr > 0:
            raise UsageError(f"The learning rate must be above 0, not {self.lr}.")

    @property
    def dense(self) -> bool:
        """Whether pixels are clustered rather than images."""
        return self.network.dense

    def lamb(self, head: str, progress: float = 1.0) -> float:
        """The entropy weight of a head after a part of training."""
        if head == "a":
            return self.lamb_a
        left = max(0.0, 1.0 - progress / self.settling) if self.settling else 0.0
        return self.lamb_b + (1.0 - self.lamb_b) * left

    def to_json(self) -> dict[str, Any]:
        """A dictionary that `json.dumps` takes and `from_json` gives back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TrainConfig":
        """The config that `to_json` described."""
        pairs = dict(data["pairs"])
        kind = ImagePairs if "crops" in pairs else DensePairs
        pairs["photometry"] = _plain(Photometry, pairs["photometry"])
        nested = {
            "data": _plain(DataConfig, data["data"]),
            "network": NetworkConfig.from_json(data["network"]),
            "pairs": _plain(kind, pairs),
        }
        return _plain(cls, {**data, **nested})


def _plain(kind: type[Plain], data: Mapping[str, Any]) -> Plain:
    """A dataclass of plain values from its dictionary; JSON's lists are tuples again."""
    unknown = sorted(set(data) - {f.name for f in fields(cast(Any, kind))})
    if unknown:
        raise TrainingError(
            f"The run's config has settings this version does not know ({', '.join(unknown)}); "
            "use the version that made the run."
        )
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})
