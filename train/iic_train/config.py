"""All settings of a run as plain values, each default once: what `config.json` holds. Nothing here needs PyTorch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, cast

from iic_geotools.errors import TrainingError, UsageError
from iic_train.finetune.settings import FinetuneConfig, Rescaling
from iic_train.models.registry import HeadName, NetworkConfig
from iic_train.views.settings import DensePairs, ImagePairs, Photometry

Amp = Literal["off", "bf16", "fp16"]
Schedule = Literal["constant", "cosine"]
Start = Literal["random", "kmeans"]
Baseline = Literal["random", "kmeans", "spectral", "triplets", "deepcluster", "sift", "isola", "doersch"]
BASELINES: dict[Baseline, str] = {
    "random": "The network with random weights.",
    "kmeans": "k-means on raw values.",
    "spectral": "Spectral clustering of raw images.",
    "triplets": "Triplets of images, then k-means.",
    "deepcluster": "DeepCluster: k-means and learning in turn.",
    "sift": "k-means on dense SIFT descriptors of pixels.",
    "isola": "Isola et al.: which pixels are near each other, then k-means.",
    "doersch": "Doersch et al.: where one pixel lies from another, then k-means.",
}
"""What a run can be compared with, each with a sentence."""
Plain = TypeVar("Plain")
RENAMED = {"until_settled": "patience"}
"""Settings of older run folders that have another name now."""


@dataclass(frozen=True)
class DataConfig:
    """Where the images come from: a data set of the paper by name, or `rasters`.

    Attributes:
        name: One of `iic_train.data.DATASETS`, or `rasters`.
        root: Folder that holds the data set.
        overcluster: Whether the partitions are those of semi-supervised overclustering.
        unlabelled: Whether images without labels are trained on too, where a data set has them.
        scenes: Rasters to train on.
        labels: Label rasters, one per scene, for evaluation only.
        label_classes: Classes of the label rasters as NAME=VALUE,VALUE...; if empty, every value is a class.
        bands: Band of the scenes for each channel, by name or number; if empty, bands are found by the channels' names.
        nodata: Value that means no data, instead of what the files say.
        reduce: Factor by which the resolution is coarser than that of the scenes.
        gsd: Range of ground resolutions in metres to train at, instead of `reduce`: all that whole numbers of pixels
            make.
        pixel_size: Side of a pixel in metres, for scenes that do not say it.
        rescale: "auto" brings every scene to 0..255 by the percentiles of each of its bands, "reflectance" to
            reflectance x 10000.
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
    rescale: Rescaling | None = None


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run.

    Attributes:
        preset: Name that the run folder starts with.
        data: What is trained on.
        network: What is trained.
        pairs: How pairs of views are made.
        size: Side of the windows that are cut for segmentation. None for clustering, where `pairs` cuts.
        passes: Passes over the data that make an epoch, each naming the heads it trains: ("a", "b") trains
            them in turn, ("ab",) both at every step.
        epochs: Number of epochs to train.
        patience: Early-stopping patience in epochs: training stops when so many have lowered the loss on the fixed
            pairs by less than half a percent. None means to train all `epochs`.
        batch: Number of pairs per step, over all processes.
        micro_batch: Number of pairs that a process puts through the network at once. None means its share of the batch.
            Fewer take less memory and more time; loss and gradient are those of the batch, but batch norm normalises
            each part on its own.
        repeats: Number of second views for each first view.
        steps: Largest number of steps per pass. None means all of the data.
        lr: Learning rate of Adam.
        schedule: Whether the learning rate stays constant or falls to zero along a cosine.
        entropy_weight: Weight of the entropy in the loss of head B; above 1 it favours clusters of equal size.
        entropy_weight_a: The same for head A.
        entropy_warmup: Part of training over which the weight of head B moves from 1 to `entropy_weight`. A weight
            below 1 allows clusters of unequal size, but from the start it would let some of them die.
        radius: Largest displacement between paired pixels.
        collapsed: Whether the joint is summed over displacements before information is taken.
        cells: Whether the loss is taken on the coarser grid of the trunk, with the radius in its cells, which is much
            cheaper.
        margin: Number of pixels along the edges of a window that are left out of the loss. Near the edge a network
            partly labels the edge itself, which all views share and no map has.
        chunk: Number of images that are correlated at once. None means as many as memory allows.
        selection_steps: Number of batches of fixed pairs on which epochs and sub-heads are compared, without labels.
        evaluation_images: Number of labelled images on which accuracy is followed during training; 0 turns it off.
        seed: Seed of everything that is random.
        amp: Precision of the network on CUDA. The loss is always computed in float32.
        compile: Whether the network is compiled.
        start: Where training starts: at random weights, or with head B at k-means centres of a `bank` network.
        finetune: How the network learns from labels; None if it learns without.
    """

    preset: str
    data: DataConfig
    network: NetworkConfig
    pairs: DensePairs | ImagePairs
    size: int | None
    passes: tuple[str, ...] = ("a", "b")
    epochs: int = 100
    patience: int | None = None
    batch: int = 60
    micro_batch: int | None = None
    repeats: int = 1
    steps: int | None = None
    lr: float = 1e-4
    schedule: Schedule = "constant"
    entropy_weight: float = 1.0
    entropy_weight_a: float = 1.0
    entropy_warmup: float = 0.0
    radius: int = 10
    collapsed: bool = False
    cells: bool = False
    margin: int = 0
    chunk: int | None = None
    selection_steps: int = 20
    evaluation_images: int = 2000
    seed: int = 0
    amp: Amp = "off"
    compile: bool = False
    start: Start = "random"
    finetune: FinetuneConfig | None = None

    def __post_init__(self) -> None:
        heads = {"b"} if self.network.clusters_a is None else {"a", "b"}
        if (self.start == "kmeans") != (self.network.family == "bank"):
            raise UsageError("Networks of the family bank start at k-means centres, and only they do.")
        if not self.passes or (self.start == "random" and "b" not in "".join(self.passes)):
            raise UsageError("One of the `passes` of an epoch must train head B.")
        if unknown := set("".join(self.passes)) - heads:
            raise UsageError(
                f"The `passes` name head {', '.join(sorted(unknown))}, which the network does not have."
            )
        if self.dense != isinstance(self.pairs, DensePairs) or self.dense == (self.size is None):
            raise UsageError(
                f"Network {self.network.name} does not fit these pairs: segmentation needs dense pairs and a size, "
                "clustering needs image pairs and no size."
            )
        for name in ("epochs", "batch", "repeats", "selection_steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"`{name}` must be at least 1, not {getattr(self, name)}.")
        if self.dense and self.repeats > 1:
            raise UsageError("`repeats` must be 1 for segmentation, whose pairs have one second view.")
        if self.size is not None and not 0 <= 2 * self.margin < self.size - self.radius:
            raise UsageError(
                f"A window of {self.size} pixels is too small for a `margin` of {self.margin} on each side."
            )
        if self.batch % self.repeats:
            raise UsageError(
                f"`batch` must be a multiple of `repeats`: {self.batch} is not a multiple of {self.repeats}."
            )
        if self.patience is not None and self.patience < 1:
            raise UsageError(
                f"`patience` must be at least 1, not {self.patience}; leave it out to train all epochs."
            )
        if self.micro_batch is not None and self.micro_batch < self.repeats:
            raise UsageError(
                f"`micro_batch` must be at least {self.repeats}, the number of `repeats`, not {self.micro_batch}."
            )
        if not self.lr > 0:
            raise UsageError(f"`lr` must be above 0, not {self.lr}.")

    @property
    def dense(self) -> bool:
        """Whether pixels are clustered instead of whole images."""
        return self.network.dense

    @property
    def selecting_head(self) -> HeadName:
        """Head whose loss decides which epoch and sub-head are best: B, unless only A is trained."""
        return "b" if "b" in "".join(self.passes) else "a"

    @property
    def micro_images(self) -> int | None:
        """Number of images whose pairs a process puts through the network at once; None means all of its share."""
        return None if self.micro_batch is None else self.micro_batch // self.repeats

    def clusters_of(self, head: str) -> int:
        """Return the number of clusters of a head."""
        return self.network.clusters_a or 0 if head == "a" else self.network.clusters_b

    def entropy_weight_of(self, head: str, progress: float = 1.0) -> float:
        """Return the entropy weight of a head after this part of training, 0 to 1."""
        if head == "a":
            return self.entropy_weight_a
        left = max(0.0, 1.0 - progress / self.entropy_warmup) if self.entropy_warmup else 0.0
        return self.entropy_weight + (1.0 - self.entropy_weight) * left

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dumps` that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TrainConfig":
        """Read what `to_json` returned."""
        data = {RENAMED.get(name, name): value for name, value in data.items()}
        pairs = dict(data["pairs"])
        kind = ImagePairs if "crops" in pairs else DensePairs
        pairs["photometry"] = _from_plain(Photometry, pairs["photometry"])
        nested: dict[str, Any] = {
            "data": _from_plain(DataConfig, data["data"]),
            "network": NetworkConfig.from_json(data["network"]),
            "pairs": _from_plain(kind, pairs),
        }
        if data.get("finetune") is not None:
            nested["finetune"] = FinetuneConfig.from_json(data["finetune"])
        return _from_plain(cls, {**data, **nested})


def _from_plain(kind: type[Plain], data: Mapping[str, Any]) -> Plain:
    """Build a dataclass from a dictionary of plain values, in which lists stand for tuples."""
    unknown = sorted(set(data) - {field.name for field in fields(cast(Any, kind))})
    if unknown:
        raise TrainingError(
            f"The config of the run has settings that this version does not know ({', '.join(unknown)}): "
            "use the version that made the run."
        )
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})
