"""The named networks, and the config that travels with a network's weights. Nothing here needs PyTorch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, cast

from iic_geotools.errors import UsageError
from iic_geotools.settings import from_plain

Family = Literal["resnet", "vgg", "segmentation", "local", "context", "land-cover", "bank"]
DENSE: tuple[Family, ...] = ("segmentation", "local", "context", "land-cover", "bank")
"""Families of networks that label pixels."""
Beside = Literal["none", "log", "ratios", "reflectance", "camera"]
"""What a network takes in addition to the bands, computed from each pixel alone: nothing, the logarithm of each band,
normalised differences of bands, or what the land-cover models take of reflectance or of camera images, in which the
infrared band may be missing."""
MISSING_REFLECTANCE, MISSING_CAMERA = -32768.0, 0.0
"""Raw values of an infrared band that is missing."""
STRETCH = (20000.0, 30000.0)
"""Raw values of the 2nd and 98th percentile of a scene whose values have no unit: far beyond any reflectance."""
MOST_CLUSTERS, MOST_SUB_HEADS = 4096, 100
"""The joint of a head has the square of its clusters, for each of its sub-heads."""
HeadName = Literal["a", "b"]
"""Head A is the auxiliary overclustering head, head B the main one."""

NETWORKS: dict[str, tuple[Family, tuple[int, ...]]] = {
    # as published: ResNet-34 trunk, VGG trunk with 5x5 convolutions, segmentation trunk
    "5g": ("resnet", (64, 128, 256, 512)),
    "6c": ("vgg", (64, 128, 256, 512)),
    "10a": ("segmentation", (64, 128, 256, 256, 512, 512)),
    # ResNet-34 and VGG trunk at 1/4 of their width: about 1/16 of their work
    "5g-4": ("resnet", (16, 32, 64, 128)),
    "6c-4": ("vgg", (16, 32, 64, 128)),
    # the segmentation trunk at 1/2, 1/4 and 1/8 of its width: about 1/4, 1/16 and 1/64 of its work
    "edge-2": ("segmentation", (32, 64, 128, 128, 256, 256)),
    "edge-4": ("segmentation", (16, 32, 64, 64, 128, 128)),
    "edge-8": ("segmentation", (8, 16, 32, 32, 64, 64)),
    # sees squares of 5 pixels: recognises materials by colour, at a resolution at which texture has averaged out
    "local-small": ("local", (8, 16, 16)),
    "local": ("local", (16, 32, 32)),
    "local-large": ("local", (32, 64, 64)),
    # see squares of 70 pixels (142 with five levels) at the cost of a narrow network
    "context-small": ("context", (8, 16, 24, 32)),
    "context": ("context", (16, 32, 48, 64)),
    "context-large": ("context", (32, 48, 64, 96)),
    "context-deep": ("context", (8, 32, 48, 64, 64)),
    # learnt features of squares of 5 pixels, and a fixed bank of means and deviations of squares of up to 81 pixels
    "bank": ("bank", (16, 32, 32)),
}
"""Families and channel widths of the named networks."""


@dataclass(frozen=True)
class NetworkConfig:
    """Everything that is needed to build a network again.

    Attributes:
        name: Name in `NETWORKS`.
        channels: Names of the input bands in order.
        clusters_b: Number of clusters of the main head.
        clusters_a: Number of clusters of the overclustering head. None means that there is no such head.
        sub_heads: Number of sub-heads of each head.
        sobel: Whether luminance is replaced by its horizontal and vertical gradients.
        colour: Whether the colour bands are kept next to the gradients of `sobel`.
        size: Side of the images in pixels for clustering. None for segmentation, which takes any size.
        offset: Value that is subtracted from the raw values of each band.
        scale: Factor by which each band is multiplied after that.
        family: Kind of trunk, by default as registered under `name`.
        widths: Number of channels of each stage, by default as registered under `name`.
        beside: What the network takes in addition to the bands, computed from each pixel alone.
        bias: Whether the heads of a segmentation network add a constant to each class, as heads that were fitted to
            labels do.
    """

    retired: ClassVar[tuple[str, ...]] = ("smoothed",)
    name: str
    channels: tuple[str, ...]
    clusters_b: int
    clusters_a: int | None = None
    sub_heads: int = 1
    sobel: bool = False
    colour: bool = True
    size: int | None = None
    offset: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    family: Family = field(default="segmentation")
    widths: tuple[int, ...] = ()
    beside: Beside = "none"
    bias: bool = False

    def __post_init__(self) -> None:
        if not self.widths:
            if self.name not in NETWORKS:
                raise UsageError(
                    f"There is no network named {self.name}; choose one of {', '.join(NETWORKS)}."
                )
            family, widths = NETWORKS[self.name]
            object.__setattr__(self, "family", family)
            object.__setattr__(self, "widths", widths)
        for name, default in (("offset", 0.0), ("scale", 1 / 255)):
            if not getattr(self, name):
                object.__setattr__(self, name, (default,) * len(self.channels))
            elif len(getattr(self, name)) != len(self.channels):
                raise UsageError(
                    f"There are {len(self.channels)} bands but {len(getattr(self, name))} values of `{name}`."
                )
        if (self.size is None) != self.dense:
            raise UsageError(
                f"Network {self.name}: `size` is needed by clustering networks and refused by segmentation networks."
            )
        if (self.family == "land-cover") != (self.beside in ("reflectance", "camera")):
            raise UsageError(
                "A land-cover network takes `beside` reflectance or camera, and no other network does."
            )
        if self.beside != "none" and self.sobel:
            raise UsageError("`sobel` and `beside` both add to the bands: choose one of them.")
        clusters = (self.clusters_b, 2 if self.clusters_a is None else self.clusters_a)
        if min(clusters) < 2 or max(clusters) > MOST_CLUSTERS or not 1 <= self.sub_heads <= MOST_SUB_HEADS:
            raise UsageError(
                f"A head has 2 to {MOST_CLUSTERS} clusters and 1 to {MOST_SUB_HEADS} sub-heads, not "
                f"{' and '.join(map(str, clusters))} clusters and {self.sub_heads}."
            )

    @property
    def optional(self) -> dict[int, float]:
        """The channels that may be missing, by position, each with the raw value that says so."""
        missing = {"reflectance": MISSING_REFLECTANCE, "camera": MISSING_CAMERA}.get(self.beside)
        return {} if missing is None else {self.channels.index("nir"): missing}

    @property
    def stretch(self) -> tuple[float, float] | None:
        """Raw values that stand for the percentiles of a scene whose values have no unit; None if there are none."""
        return STRETCH if self.beside == "reflectance" else None

    @property
    def dense(self) -> bool:
        """Whether the network labels pixels instead of whole images."""
        return self.family in DENSE

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dumps` that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "NetworkConfig":
        """Read what `to_json` returned."""
        return cast(NetworkConfig, from_plain(cls, data))
