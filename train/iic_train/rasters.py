"""Training on anyone's own rasters: settings that follow from the scenes, then the loop."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from iic_geotools.bands import canonical
from iic_geotools.errors import UsageError
from iic_geotools.scene import SceneInfo, describe
from iic_train.config import DataConfig, TrainConfig
from iic_train.data.rasters import find_constants
from iic_train.data.scenes import scenes_of
from iic_train.loop import train
from iic_train.networks import NetworkConfig
from iic_train.pairs import DensePairs
from iic_train.photometry import Photometry
from iic_train.runs import Run

MOST_CLASSES = 254
PAIRS = DensePairs(
    Photometry(all_brightness=0.5, all_contrast=0.4, saturation=0.5, vigour=1.0),
    both=True,
    flip_vertical=0.5,
    turn=0.5,
)
"""All eight flips and turns; in both views brightness and contrast of all bands together, infrared too, colours
and the vigour of plants: what light and season change is not what a material is."""


def raster_config(
    scenes: Sequence[str],
    classes: int,
    *,
    bands: Sequence[str] = (),
    nodata: float | None = None,
    reduce: int = 1,
    gsd: tuple[float, float] | None = None,
    pixel_size: float | None = None,
    rescale: Literal["auto"] | None = None,
    labels: Sequence[str] = (),
    label_classes: Sequence[str] = (),
    network: str = "edge-8",
    clusters_a: int | None = None,
    sub_heads: int = 3,
    size: int = 96,
    epochs: int = 20,
    steps: int | None = 100,
    batch: int = 32,
    lr: float = 1e-3,
    lamb: float = 1.0,
    settling: float = 0.0,
    jitter: float = 1.0,
    vigour: float = PAIRS.photometry.vigour,
    radius: int = 5,
    margin: int = 0,
    cells: bool = True,
    seed: int = 0,
) -> TrainConfig:
    """Settings for training on rasters; `train_rasters` says what the arguments mean."""
    if not 2 <= classes <= MOST_CLASSES:
        raise UsageError(f"--classes must be 2 to {MOST_CLASSES}, not {classes}.")
    if not scenes:
        raise UsageError("Name at least one raster to train on.")
    channels, given = choose_channels(describe(scenes[0]), bands)
    data = DataConfig(
        "rasters",
        scenes=tuple(str(Path(scene).absolute()) if Path(scene).exists() else scene for scene in scenes),
        labels=tuple(str(Path(label).absolute()) for label in labels),
        label_classes=tuple(label_classes),
        bands=given,
        nodata=nodata,
        reduce=reduce,
        gsd=gsd,
        pixel_size=pixel_size,
        rescale=rescale,
    )
    constants = find_constants(scenes_of(data, channels))
    overclusters = clusters_a if clusters_a is not None else 4 * classes
    return TrainConfig(
        preset="rasters",
        data=data,
        network=NetworkConfig(
            network,
            channels,
            classes,
            overclusters or None,
            sub_heads,
            offset=constants.offset,
            scale=constants.scale,
        ),
        pairs=_pairs(jitter, vigour),
        size=size,
        passes=("ab",) if overclusters else ("b",),
        epochs=epochs,
        steps=steps,
        batch=batch,
        lr=lr,
        schedule="cosine",
        lamb_b=lamb,
        settling=settling,
        radius=radius,
        margin=margin,
        cells=cells,
        evaluation_images=16,
        seed=seed,
    )


def _pairs(jitter: float, vigour: float) -> DensePairs:
    """`PAIRS` with its changes of light and colour `jitter` times as strong."""
    light = PAIRS.photometry
    changed = replace(
        light,
        all_brightness=jitter * light.all_brightness,
        all_contrast=jitter * light.all_contrast,
        saturation=jitter * light.saturation,
        vigour=vigour,
    )
    return replace(PAIRS, photometry=changed)


def choose_channels(info: SceneInfo, bands: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the channels to train on, and how each is found in a file if not by its name.

    Without `bands` all bands of the first scene are taken that are not alpha; bands without a name are
    called after their number.
    """
    names = [
        canonical(text or kind) for text, kind in zip(info.descriptions, info.interpretations, strict=True)
    ]
    names = [name if name != "undefined" else f"band{index}" for index, name in enumerate(names, 1)]
    wanted = list(bands) or [str(index) for index, name in enumerate(names, 1) if name != "alpha"]
    channels, unnamed = [], False
    for band in wanted:
        if not band.isdigit():
            channels.append(canonical(band))
        elif not 1 <= int(band) <= len(names):
            raise UsageError(f"There is no band {band} in {info.path}: it has {len(names)}.")
        else:
            channels.append(names[int(band) - 1])
            unnamed = unnamed or channels[-1] == f"band{band}"
    channels = ["grey" if name == "gray" else name for name in channels]
    if len(set(channels)) < len(channels):
        raise UsageError(
            f"Two bands of {info.path} go by one name ({', '.join(channels)}): choose with --bands."
        )
    return tuple(channels), tuple(wanted) if bands or unnamed else ()


def train_rasters(
    scenes: Sequence[str],
    classes: int,
    *,
    network: str = "edge-8",
    amp: Literal["off", "bf16", "fp16"] = "off",
    compile: bool = False,
    runs: Path = Path("runs"),
    name: str | None = None,
    device: str = "auto",
    workers: int = 0,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train on GeoTIFFs of any size and type, without labels.

    Args:
        scenes: Rasters, anything GDAL opens.
        classes: Number of clusters to find.
        network: Name of a segmentation network.
        amp: Precision on CUDA.
        compile: Compile the network.
        runs: Folder of the run folders.
        name: Name of the new one; by default `rasters` and the time.
        device: `auto`, `cpu` or `cuda`.
        workers: Processes that read ahead; 0 reads in between.
        quiet: Say only what is wrong.
        **settings: `bands` (by name or number, in order), `nodata` (over what the files say), `reduce` (train
            at a resolution so many times coarser) or `gsd` (at every ground resolution in this range of metres that
            whole numbers of pixels make), `pixel_size` (metres, where a scene does not say), `rescale` ("auto": bring
            every scene into one range by each band's own percentiles), `labels` (rasters, one a scene, for evaluation
            only) and `label_classes` (`NAME=VALUE,VALUE...`), `clusters_a` (0: no overclustering head), `sub_heads`,
            `size` (of the windows), `epochs`, `steps` (of an epoch), `batch`, `lr`, `lamb`,
            `settling`, `jitter` (strength of the changes of light and colour), `vigour`, `radius`, `margin`, `cells`,
            `seed`.

    Raises:
        SceneError: A scene cannot be read.
        DataError: The scenes do not go together, or hold no data.
    """
    config = raster_config(scenes, classes, network=network, **settings)
    config = replace(config, amp=amp, compile=compile)
    return train(config, runs=runs, name=name, device=device, workers=workers, quiet=quiet)
