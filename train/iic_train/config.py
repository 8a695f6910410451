"""All settings of a run, each declared once: what `config.json` holds, and what recipes and options change.

A recipe or a command changes a config by a dictionary of settings (`change`). Nothing here needs PyTorch.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast

from iic_geotools.errors import IICError, TrainingError, UsageError, last_line
from iic_geotools.option_texts import parse_names, parse_number_range
from iic_geotools.settings import PathLike, Settings, check_values, from_plain, names, setting
from iic_geotools.work import OnProgress, silent
from iic_train.finetune.settings import FinetuneConfig, Rescaling
from iic_train.models.registry import HeadName, NetworkConfig
from iic_train.views.settings import DensePairs, ImagePairs

Amp = Literal["auto", "off", "bf16", "fp16"]
Device = Literal["auto", "cpu", "cuda"]
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
RENAMED = {"until_settled": "patience"}
"""Settings of older run folders that have another name now."""


def parse_tuple(text: str, name: str) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    return tuple(parse_names(text, name))


@dataclass(frozen=True)
class DataConfig(Settings, group="Reading"):
    """Where the images come from: a data set of the paper by name, or `rasters`.

    Attributes:
        name: One of `iic_train.data.training_data.DATASETS`, or `rasters`.
        root: Folder that holds the data set.
        overcluster: Whether the partitions are those of semi-supervised overclustering.
        unlabelled: Whether images without labels are trained on too, where a data set has them.
        scenes: Rasters to train on.
        labels: Label rasters, one per scene, for evaluation only.
        label_classes: Classes of the label rasters as NAME=VALUE,VALUE...; if empty, every value is a class.
    """

    name: str
    root: str | None = None
    overcluster: bool = False
    unlabelled: bool = True
    scenes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    label_classes: tuple[str, ...] = ()
    bands: tuple[str, ...] = setting(
        (),
        "Bands to use, by name or number, e.g. red,green,blue,nir; all by default.",
        metavar="LIST",
        parse=parse_tuple,
        first=True,
    )
    nodata: float | None = setting(None, "Nodata value, instead of what the files say.")
    reduce: int = setting(
        1,
        "Train at a resolution coarser by this factor. By default scenes finer than 0.8 m are brought to about that.",
        least=1,
    )
    gsd: tuple[float, float] | None = setting(
        None,
        "Train at all ground sample distances in this range, in metres.",
        details="All that whole numbers of pixels make; instead of `reduce`.",
        metavar="MIN,MAX",
        parse=parse_number_range,
    )
    pixel_size: float | None = setting(
        None, "Side of a pixel, for scenes that do not state it.", metavar="METRES", least=1e-6
    )
    pair: tuple[str, ...] = setting(
        (),
        "Another date of a scene, on the same pixels; one for each scene, in the same order. The two views of a place "
        "then show two dates.",
        details="Then `rescale` is auto and the network `local`, unless they are given.",
        metavar="SCENE",
        repeat=True,
    )
    rescale: Rescaling | None = setting(
        None, "Bring every scene to one range by the percentiles of its bands, or to reflectance."
    )


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Settings, group="Network"):
    """Changes to the network of a config."""

    network: str = setting("", "Name of a network of the same kind.", metavar="NAME", first=True)
    clusters_a: int = setting(0, "Number of clusters of the overclustering head; 0 leaves it out.")
    sub_heads: int = setting(1, "Number of sub-heads of each head.")


@dataclass(frozen=True, kw_only=True)
class HeadSettings(NetworkSettings, group="Network"):
    """Changes to the network of a config, the number of clusters included."""

    clusters: int = setting(2, "Number of clusters of the main head.")


@dataclass(frozen=True, kw_only=True)
class Augmentation(Settings, group="Augmentation"):
    """Strength of the augmentation between the two views of a scene."""

    colour_jitter: float = setting(1.0, "Strength of the photometric augmentation.", least=0)
    vegetation_jitter: float = setting(1.0, "How much drier or greener plants may be in a view.", least=0)


@dataclass(frozen=True, kw_only=True)
class Execution(Settings, group="Run"):
    """Where a run is written, and on which device it is computed."""

    runs: PathLike = setting("runs", "Folder of the run folders.")
    name: str | None = setting(None, "Name of the run folder; by default preset and time.")
    device: Device = setting("auto", "Device to compute on.", first=True)
    workers: int | None = setting(
        None,
        "Number of processes that read ahead; 0 reads between steps. By default 0 on a CPU, and all cores but one for "
        "a GPU.",
    )
    progress: OnProgress = setting(silent, "Function that takes reports of progress.", option=False)


@dataclass(frozen=True)
class TrainConfig(Settings, group="Training"):
    """All settings of a run: what `config.json` holds, and what recipes and options change.

    Attributes:
        preset: Name that the run folder starts with.
        data: What is trained on.
        network: What is trained.
        pairs: How pairs of views are made.
        finetune: How the network learns from labels; None if it learns without.
    """

    preset: str
    data: DataConfig
    network: NetworkConfig
    pairs: DensePairs | ImagePairs
    size: int | None = setting(
        None,
        "Side of the windows that are cut for segmentation.",
        details="None for clustering, where `pairs` cuts.",
        metavar="PX",
    )
    passes: tuple[str, ...] = setting(
        ("a", "b"),
        "Heads that each pass of an epoch trains: a,b in turn, ab both at every step.",
        metavar="HEADS",
        parse=parse_tuple,
    )
    epochs: int = setting(100, "Number of epochs to train.", first=True)
    patience: int | None = setting(
        None,
        "Early-stopping patience in epochs; 0 trains all epochs.",
        details="Training stops when so many have lowered the loss on the fixed pairs by less than half a percent.",
        metavar="EPOCHS",
    )
    batch: int = setting(60, "Number of pairs per step, over all processes.", first=True)
    micro_batch: int | None = setting(
        None,
        "Number of pairs that pass the network at once, to save memory.",
        details="Per process; by default its share of the batch. Loss and gradient are those of the batch, but batch "
        "norm normalises each part on its own.",
    )
    repeats: int = setting(1, "Number of second views for each first one.")
    steps: int | None = setting(
        None, "Largest number of steps per pass; by default all of the data.", least=1
    )
    lr: float = setting(1e-4, "Learning rate of Adam.", most=1e3, first=True)
    schedule: Schedule = setting("constant", "Keep the learning rate, or let it fall to zero along a cosine.")
    entropy_weight: float = setting(
        1.0, "Entropy weight of head B; above 1 favours clusters of equal size.", first=True
    )
    entropy_weight_a: float = setting(1.0, "Entropy weight of head A.", option=False)
    entropy_warmup: float = setting(
        0.0,
        "Fraction of training over which the entropy weight ramps from 1.",
        details="A weight below 1 allows clusters of unequal size, but from the start it would let some of them die.",
    )
    radius: int = setting(10, "Largest displacement of paired pixels.", metavar="PX", least=0)
    collapsed: bool = setting(
        False, "Sum the joint over displacements before information is taken.", option=False
    )
    cells: bool = setting(
        False, "Take the loss on the coarser grid of the trunk, with the radius in its cells.", option=False
    )
    margin: int = setting(
        0,
        "Pixels along the edges of a window that are left out of the loss.",
        details="Near the edge a network partly labels the edge itself, which all views share and no map has.",
        metavar="PX",
    )
    chunk: int | None = setting(
        None, "Number of images correlated at once; by default as many as memory allows.", option=False
    )
    selection_steps: int = setting(
        20, "Batches of fixed pairs on which epochs and sub-heads are compared, without labels.", option=False
    )
    evaluation_images: int = setting(
        2000, "Labelled images on which accuracy is followed during training; 0 turns it off.", option=False
    )
    seed: int = setting(0, "Seed of everything that is random.", least=0, first=True)
    amp: Amp = setting(
        "auto",
        "Precision of the network on CUDA: bf16 where the GPU has it, or float32 (off). The loss is always float32.",
    )
    compile: bool = setting(False, "Compile the network.")
    start: Start = setting(
        "random", "Random initialisation, or head B at k-means centres of a `bank` network.", option=False
    )
    finetune: FinetuneConfig | None = None

    def __post_init__(self) -> None:
        check_values(TrainConfig, self.values())
        check_values(DataConfig, self.data.values())
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
    def trains_clusters(self) -> bool:
        """True if training changes the clusters of the map; False if only head A learns features."""
        return self.finetune is not None or "b" in "".join(self.passes)

    @property
    def only_starts(self) -> bool:
        """True if the result is what training starts from: head A alone is trained, for one step."""
        return not self.trains_clusters and self.epochs == 1 and self.steps == 1

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
        return cast(TrainConfig, from_plain(cls, {RENAMED.get(name, name): data[name] for name in data}))


def change(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """Return a config with other settings.

    Args:
        changes: Settings of `TrainConfig` and `HeadSettings` by name. Another `network` has its own widths, image pairs
            set the size of the images, and without `clusters_a` the passes of head A are left out.
    """
    known = {field.name for field in fields(TrainConfig)} - {"network"}
    heads = {
        "network": "name",
        "clusters": "clusters_b",
        "clusters_a": "clusters_a",
        "sub_heads": "sub_heads",
    }
    check_names(changes, (*known, *heads))
    if config.network.clusters_a is None and changes.get("clusters_a"):
        raise UsageError("Overclustering has one head: `clusters_a` does not go with `overcluster`.")
    own = {name: value for name, value in changes.items() if name in known}
    network = {heads[name]: value for name, value in changes.items() if name in heads}
    if "network" in changes:
        network["widths"] = ()
    if changes.get("clusters_a") == 0:
        network["clusters_a"] = None
        passes = (heads.replace("a", "") for heads in config.passes)
        own.setdefault("passes", tuple(heads for heads in passes if heads))
    if isinstance(pairs := own.get("pairs"), ImagePairs):
        network["size"] = pairs.size
    own["patience"] = own.get("patience", config.patience) or None
    return replace(config, network=replace(config.network, **network), **own)


def take(kind: type[Settings], settings: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of a class out of others and return them."""
    return {name: settings.pop(name) for name in names(kind) if name in settings}


def check_names(settings: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse settings that do not exist."""
    known = sorted(known)
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"choose from {', '.join(known)}."
            raise UsageError(f"There is no setting {name}: {hint}")


@contextmanager
def reading(path: Path, cure: str = "restore it, or train again") -> Iterator[None]:
    """Raise errors of reading a damaged file of a run as one sentence about the file."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # a damaged file fails in any way
        if isinstance(error, IICError) and not isinstance(error, UsageError):
            raise
        reason = last_line(error).rstrip(".")[:200]
        raise TrainingError(f"{path} is damaged or of another version ({reason}); {cure}.") from error
