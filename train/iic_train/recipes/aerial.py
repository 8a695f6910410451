"""The bundled model for aerial imagery of 0.2 to 1 m, with or without infrared: 8-bit values to five classes.

It learns from eight sources under open licences; a source is a camera, a provider and a region. Sources are left out
together, four groups in turn, to choose settings; those of `LOCKED` have no weight, so nothing learns from them or is
chosen on them: they judge the finished model. `naip_towns.geojson` holds polygons drawn by eye over 90 chips of
Californian towns, `dense_chips.json.gz` whole chips labelled by eye.

DATA holds the folders `flair`, `naip` and `pool`; docs/research/bundled-models.md says what is in them.
"""

from pathlib import Path
from typing import Any

from iic_train.finetune.settings import FinetuneConfig, LabelSource, Meaning, own_names
from iic_train.models.registry import NetworkConfig
from iic_train.recipes.learnt import LearntRecipe, pool_source
from iic_train.recipes.recipe import Recipe

CHANNELS = ("red", "green", "blue", "nir")
GROUND, BUILDING, LOW, HIGH, WATER = CLASSES = (
    "ground",
    "building",
    "low vegetation",
    "high vegetation",
    "water",
)
COLOURS = ("#b5a99a", "#d7301f", "#a6d96a", "#1a7837", "#2b8cbe")
FLAIR = (
    Meaning((GROUND,), ("2", "3", "4")),
    Meaning((BUILDING,), ("1", "18")),
    Meaning((HIGH,), ("6", "7", "15", "16", "17")),
    Meaning((HIGH, LOW), ("8",)),  # brushwood
    Meaning((LOW,), ("9", "10", "11", "12")),
    Meaning((WATER,), ("5", "13")),
)
CHESAPEAKE = (
    Meaning((WATER,), ("1",)),
    Meaning((HIGH,), ("2",)),
    Meaning((LOW,), ("3",)),
    Meaning((GROUND,), ("4", "6")),
    Meaning((GROUND, BUILDING), ("5",)),
)
TOWNS = (
    Meaning((LOW, HIGH), where=(("ndvi", 0.2, 9.0),)),
    Meaning((GROUND, BUILDING, LOW, HIGH), where=(("ndvi", 0.0, 0.2),)),
    Meaning((GROUND, BUILDING), where=(("ndvi", -9.0, 0.0),)),
)
"""What is certain in Californian towns where nothing is drawn: what is green is a plant, and nothing else is water.
Without this, the dark asphalt of another camera is water. What is drawn by hand (`naip_towns.geojson`) says more."""


LOCKED = ("sweden_barnarp", "dronedeploy", "landslide_hokkaido")
"""Sources that judge the finished model; chosen before anything was trained."""
LOCKED_FOLD = 9
GROUPS = (
    ("flair",),
    ("naip", "naip_chesapeake"),
    ("oam_buildings", "harvey_uav"),
    ("neon_woods_rgb", "neon_woods_rgbn1m", "landslide_sichuan"),
)
"""Sources that are left out together."""
DENSE = str(Path(__file__).with_name("dense_chips.json.gz"))
NOT_BUILDING = (GROUND, LOW, HIGH, WATER)


def _source(
    name: str, weight: float, meanings: tuple[Meaning, ...], *, side: float, **about: Any
) -> LabelSource:
    """Return a source that is left out as a whole, with pixels of `side` metres."""
    about = {"scenes": "*_rgb.tif", "labels": "*_label.tif", **about}
    return pool_source(
        name,
        0.0 if name in LOCKED else weight,
        meanings,
        bands=CHANNELS[:3] if "_rgb.tif" in about["scenes"] else CHANNELS,
        dense=DENSE,
        pixel_size=side,
        folds=(("", LOCKED_FOLD if name in LOCKED else next(i for i, g in enumerate(GROUPS) if name in g)),),
        **about,
    )


SOURCES = (
    _source(
        "flair", 0.30, FLAIR, scenes="*_rgbir.tif", side=0.2, factors=(1, 2, 3, 5), folder="flair"
    ),
    _source(
        "naip", 0.18, (*TOWNS, *own_names(CLASSES)), scenes="*.tif", side=0.6, folder="naip",
        labels=str(Path(__file__).with_name("naip_towns.geojson")),
    ),
    _source("naip_chesapeake", 0.10, CHESAPEAKE, scenes="*_rgbn.tif", side=1.0),
    _source(
        "oam_buildings", 0.12, (Meaning((BUILDING,), ("1",)), Meaning(NOT_BUILDING, ("0",))), side=0.3,
        factors=(1, 2, 3),
    ),
    _source(
        "neon_woods_rgb", 0.09, (Meaning((HIGH,), ("1",)), Meaning((GROUND, LOW, HIGH), ("2",))), side=0.2,
        factors=(1, 2),
    ),
    _source(
        "neon_woods_rgbn1m", 0.06, (), scenes="*_rgbn.tif", labels=None, side=1.0,
        rescale="0,4545",  # reflectance x 10000, as bright as cameras show it
    ),
    _source("landslide_sichuan", 0.11, (Meaning((GROUND,), ("1",)),), side=1.0),
    _source("landslide_hokkaido", 0.0, (Meaning((GROUND,), ("1",)),), side=1.0),
    _source(
        "harvey_uav", 0.10, side=0.2, factors=(1, 2, 4),
        meanings=(
            Meaning((BUILDING,), ("1", "2", "21")), Meaning((LOW,), ("5",)), Meaning((LOW, GROUND), ("20",)),
            Meaning((HIGH,), ("6", "22")), Meaning((GROUND,), ("14", "17", "19", "26")),
            Meaning((WATER,), ("3", "23", "24")),
        ),
    ),
    _source(
        "sweden_barnarp", 0.0, (Meaning((BUILDING,), ("1",)), Meaning(NOT_BUILDING, ("0",))), side=0.3
    ),
    _source(
        "dronedeploy", 0.0, side=0.2,
        meanings=(
            Meaning((BUILDING,), ("1",)), Meaning((LOW, HIGH), ("3",)), Meaning((WATER,), ("4",)),
            Meaning((GROUND, LOW), ("5",)),
        ),
    ),
)  # fmt: skip

RECIPE = LearntRecipe(
    "aerial",
    "The bundled model for aerial imagery of 0.2 to 1 m, learnt from public labels.",
    FinetuneConfig(
        CLASSES,
        SOURCES,
        colours=COLOURS,
        mode="network",
        folds=0,  # benchmarks/bundled.py leaves sources out
        painted_water=0.05,
        temperature=1.0,
        zoom=(0.74, 1.35),
    ),
    NetworkConfig(
        "land-cover",
        CHANNELS,
        len(CLASSES),
        family="land-cover",
        widths=(0, 0, 24, 32, 48),
        beside="camera",
        bias=True,
    ),
    {"size": 144, "batch": 8, "epochs": 45, "steps": 100, "lr": 2e-3},
    gsd=(0.2, 1.0),
    attribution="IGN FLAIR #1 (Montpellier); USDA NAIP (West Virginia with labels of the Chesapeake Conservancy, "
    "California in a selection of the urban-tree-detection data set); OpenAerialMap (Zanzibar, Nairobi, Kampala) with "
    "OpenStreetMap; NEON; landslide inventories of Sichuan; Hurricane Harvey drone imagery (figshare c.6026765); "
    "labels drawn for this model. Training started from EfficientNet-Lite0 (Google), whose weights come from ImageNet",
    licence="Open Licence 2.0 (IGN); public domain (NAIP); CC BY 4.0 (OpenAerialMap, landslides, Harvey, selection); "
    "ODbL (OpenStreetMap); CC0 (NEON); Apache 2.0 (EfficientNet-Lite0)",
)

UNLABELLED = Recipe(
    "aerial-unlabelled",
    "Aerial imagery of 0.2 to 1 m in 64 clusters, without a label.",
    {
        "bands": CHANNELS,
        "network": "local",
        "gsd": (0.2, 1.0),
        "clusters_a": 0,
        "sub_heads": 1,
        "size": 32,
        "radius": 1,
        "batch": 48,
        "lr": 1e-2,
        "epochs": 8,
        "steps": 100,
        "entropy_weight": 1.5,
        "colour_jitter": 0.5,
        "vegetation_jitter": 0.0,
    },
    scenes=("flair/*_rgbir.tif", "naip/*.tif"),
    classes=64,
)
