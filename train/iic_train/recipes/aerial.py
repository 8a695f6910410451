"""The bundled model for aerial imagery of 0.2 to 1 m: 8-bit values to five classes of land cover.

Three opinions make the logits. One sees a single pixel; the second is its mean over squares of about 10 and 20 pixels,
because what most pixels of a roof look like says more than any one of them; the third is an encoder-decoder that starts
at half the resolution, where it sees 27 m of imagery of 0.2 m, about as much as a house with its shadow. The pixel's
path and the context learn on their own: roofs of one country have the colours of another's asphalt.
The labelled zones have hardly any water, so bodies of real spectra are painted into some of the crops.

`naip_towns.geojson` holds polygons that were drawn by eye over 90 chips of Californian towns.

DATA holds the folders `flair`, `naip` and `pool`; docs/models.md says what is in them. Each zone of FLAIR is left out
in one of the four parts of the cross-validation, and so is each town.
"""

from pathlib import Path

from iic_train.finetune.settings import FinetuneConfig, LabelSource, Meaning, own_names
from iic_train.models.registry import NetworkConfig
from iic_train.recipes.learnt import LearntRecipe
from iic_train.recipes.recipe import Recipe
from iic_train.views.settings import Light, Painting

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
    Meaning((HIGH,), ("6", "7", "8", "15", "16", "17")),
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
ZONES = (("zone1", 2.0), ("zone3", 2.0), ("zone0part", 0.8), ("zone2part", 0.8))
"""Zones and how often crops are of them; the number of a zone is the part in which it is left out."""
WATER_SPECTRA = (
    (0.0036, 0.0088, 0.0026, 0.0028), (0.0092, 0.0139, 0.0071, 0.0047), (0.0052, 0.0118, 0.0072, 0.0012),
    (0.0011, 0.0065, 0.0075, 0.0017), (0.0012, 0.0129, 0.0102, 0.0095), (0.0031, 0.0140, 0.0103, 0.0125),
    (0.0188, 0.0257, 0.0116, 0.0155), (0.0282, 0.0343, 0.0194, 0.0239), (0.0198, 0.0553, 0.0271, 0.0015),
    (0.0023, 0.0478, 0.0318, 0.0013), (0.0740, 0.0675, 0.0318, 0.0172), (0.0961, 0.0803, 0.0444, 0.0366),
    (0.0560, 0.0614, 0.0463, 0.0554), (0.1127, 0.0934, 0.0539, 0.0626), (0.0066, 0.0726, 0.0666, 0.0012),
)  # fmt: skip
"""Typical reflectances of water in red, green, blue and infrared: clusters of what WorldCover calls water in HLS."""


BIAS = (0.0, 0.2, 0.3, -0.1, -0.8)
"""What is added to the logits, chosen on places left out: buildings and low plants are found too rarely without it, and
water too often, because it is painted into crops."""
TOWN_FOLDS = (
    ("chico", 0), ("santa_monica", 0), ("eureka", 0), ("claremont", 1), ("long_beach", 2), ("palm_springs", 3),
    ("bishop", 3), ("riverside", 1),
)  # fmt: skip
"""Parts in which Californian towns are left out."""
TOWNS = (
    Meaning((LOW, HIGH), where=(("ndvi", 0.2, 9.0),)),
    Meaning((GROUND, BUILDING, LOW, HIGH), where=(("ndvi", 0.0, 0.2),)),
    Meaning((GROUND, BUILDING), where=(("ndvi", -9.0, 0.0),)),
)
"""What is certain in Californian towns where nothing is drawn: what is green is a plant, and nothing else is water.
Without this, the dark asphalt of another camera is water. What is drawn by hand (`naip_towns.geojson`) says more."""


def _light(strength: float, *, shadow: float = 0.0, blur: float = 0.0) -> Light:
    """Return what other cameras, exposures and seasons change; most images change less than `strength`."""
    return Light(
        varied=True,
        gain=0.2 * strength,
        band_gain=0.06 * strength,
        gamma=0.15 * strength,
        contrast=0.25 * strength,
        offset=0.03 * strength,
        band_offset=0.015 * strength,
        saturation=0.5 * strength,
        mixing=0.05 * strength,
        vegetation=0.4 * strength,
        noise=0.02 * strength,
        shadow=shadow,
        blur=blur,
    )


SOURCES = (
    *(
        LabelSource(
            zone,
            (f"flair/{zone}_rgbir.tif",),
            (f"flair/{zone}_label.tif",),
            FLAIR,
            weight=weight,
            bands=CHANNELS,
            factors=(1, 2, 3, 4, 5),
            folds=((zone, fold),),
        )
        for fold, (zone, weight) in enumerate(ZONES)
    ),
    LabelSource(
        "chesapeake",
        ("pool/naip_chesapeake/*_rgbn.tif",),
        ("pool/naip_chesapeake/*_label.tif",),
        CHESAPEAKE,
        weight=0.4,
        bands=CHANNELS,
        folds=(("", 2),),
    ),
    LabelSource(
        "naip towns",
        ("naip/*.tif",),
        (str(Path(__file__).with_name("naip_towns.geojson")),),
        (*TOWNS, *own_names(CLASSES)),
        label_field="class",
        weight=1.0,
        bands=CHANNELS,
        folds=TOWN_FOLDS,
    ),
)

RECIPE = LearntRecipe(
    "aerial",
    "The bundled model for aerial imagery of 0.2 to 1 m, learnt from public labels.",
    FinetuneConfig(
        CLASSES,
        SOURCES,
        colours=COLOURS,
        mode="network",
        folds=4,
        pixel_steps=2500,
        pixel_crops=4000,
        pixel_rate=4e-3,
        pixel_share=0.6,
        smoothed_share=0.8,
        bias=BIAS,
        temperature=1.2,  # what fits the places left out best
        balance=0.0,
        set_weight=1.0,
        clip=1.0,
        average=0.992,
        dropout=0.0,
        light=_light(0.3),
        around=_light(0.6, shadow=0.15, blur=0.4),
        zoom=(0.74, 1.35),
        rotated=0.5,
        centred=((BUILDING, 0.3),),
        painting=Painting(WATER, 0.1, 0.3, WATER_SPECTRA),
    ),
    NetworkConfig(
        "pixel-context",
        CHANNELS,
        len(CLASSES),
        family="pixel-context",
        widths=(32, 16, 0, 24, 48, 64, 96),
        beside="ratios",
        smoothed=True,
        bias=True,
    ),
    size=160,
    batch=6,
    epochs=14,
    steps=100,
    lr=4e-3,
    gsd=(0.2, 1.0),
    attribution="IGN FLAIR #1 (Montpellier); USDA NAIP (West Virginia with labels of the Chesapeake Conservancy, "
    "California in a selection of the urban-tree-detection data set, with labels drawn for this model)",
    licence="Open Licence 2.0 (IGN); public domain (NAIP); CC BY 4.0 (selection)",
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
