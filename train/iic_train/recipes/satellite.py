"""The bundled model for satellite imagery of 3 to 30 m: reflectance to five classes of land cover.

Two paths learn on their own, and the map is the mean of their opinions: one sees a single pixel and is trained on
single pixels of all sources, the other is a small encoder-decoder that sees surroundings too. They are wrong in
different places. IIC on the same scenes before did not help, so it is not part of the recipe.

`satellite_scenes.geojson` holds polygons that were drawn by eye over 17 scenes. A quarter of the crops are drawn around
built-up or bare pixels, which are rare: without that, towns of other continents are taken for fields.

DATA holds the folder `pool`; docs/models.md says what is in it. Places that are left out in one of the four parts of
the cross-validation stand in `folds`.
"""

from dataclasses import replace
from pathlib import Path

from iic_train.finetune.settings import FinetuneConfig, LabelSource, Meaning, own_names
from iic_train.models.registry import NetworkConfig
from iic_train.recipes.learnt import LearntRecipe
from iic_train.recipes.recipe import Recipe
from iic_train.views.settings import Light

CHANNELS = ("red", "green", "blue", "nir")
TREE, LOW, BUILT, BARE, WATER = CLASSES = ("tree", "low vegetation", "built-up", "bare", "water")
COLOURS = ("#1a7837", "#a6d96a", "#d7301f", "#cbb39b", "#2b8cbe")
SURFACE = (1e-4, 0.0)
"""Scale and offset of reflectance x 10000."""
SHIFTED = (1e-4, -0.1)
"""Of Sentinel-2 since baseline 04.00."""
LANDSAT_LEVEL_1 = (2e-5 / 0.766, -0.1 / 0.766)
"""Of Landsat 8 and 9, level 1, under a sun of 50 degrees."""
LANDSAT_LEVEL_2 = (2.75e-5, -0.2)
BIAS = (-0.2, 0.0, 0.9, 0.4, 0.0)
"""What is added to the logits: built-up and bare are rare in the labels, and without it hardly ever the likeliest."""
HLS_FOLDS = (
    ("C24", "C07", "C20", "C52", "C28", "C36", "C55", "C76", "C73", "C69"),
    ("C60", "C75", "C06", "C18", "C27", "C41", "C49", "C64", "C71"),
    ("C78", "C77", "C22", "C70", "C26", "C40", "C39", "C44", "C54"),
    ("C72", "C79", "C37", "C34", "C50", "C32", "C53", "C62"),
)
"""Regions that are left out together; the rare classes are spread over the parts."""
WORLDCOVER = (
    Meaning((TREE,), ("10", "95")),
    Meaning((LOW,), ("20", "30", "40", "100")),
    Meaning((BUILT,), ("50",)),
    Meaning((BARE,), ("60",)),
    Meaning((WATER,), ("80",)),
    Meaning((TREE, LOW, WATER), ("90",)),
)
CERTAIN = (
    Meaning((TREE, LOW), where=(("ndvi", 0.5, 9.0), ("blue", -1.0, 0.28))),
    Meaning((WATER,), where=(("ndwi", 0.2, 9.0), ("nir", -1.0, 0.08), ("blue", -1.0, 0.28))),
    Meaning(
        (BUILT, BARE),
        where=(("ndvi", -9.0, 0.12), ("ndwi", -9.0, -0.05), ("nir", 0.18, 9.0), ("blue", -1.0, 0.28)),
    ),
)
"""What physics leaves little doubt about, for scenes without labels."""


def _source(
    name: str,
    folder: str,
    weight: float,
    meanings: tuple[Meaning, ...],
    *,
    fold: int,
    labels: str = "*_label.tif",
    reflectance: tuple[float, float] | None = SURFACE,
    through_air: bool = False,
) -> LabelSource:
    """Return a source that is left out as a whole."""
    return LabelSource(
        name,
        (f"pool/{folder}/*_rgbn.tif",),
        (f"pool/{folder}/{labels}",),
        meanings,
        weight=weight,
        bands=CHANNELS,
        rescale="reflectance",
        reflectance=reflectance,
        through_air=through_air,
        folds=(("", fold),),
    )


def _unlabelled(
    folder: str, reflectance: tuple[float, float] | None = SURFACE, scenes: str = "*"
) -> LabelSource:
    return LabelSource(
        f"rules on {folder}",
        (f"pool/{folder}/{scenes}_rgbn.tif",),
        meanings=CERTAIN,
        weight=0.10 / 17,
        bands=CHANNELS,
        rescale="reflectance",
        reflectance=reflectance,
        folds=(("", -1),),
    )


def _drawn(
    folder: str, fold: int, reflectance: tuple[float, float] | None = SURFACE, scenes: str = "*"
) -> LabelSource:
    """Return scenes that people have drawn some labels over; where they have not, physics says what is certain."""
    return replace(
        _unlabelled(folder, reflectance, scenes),
        name=folder,
        labels=(str(Path(__file__).with_name("satellite_scenes.geojson")),),
        meanings=(*CERTAIN, *own_names(CLASSES)),
        label_field="class",
        weight=0.6 / 13,
        folds=(("", fold),),
    )


def _hls(name: str, letter: str, weight: float, folds: tuple[tuple[str, int], ...]) -> LabelSource:
    return LabelSource(
        name,
        (f"pool/hls_worldcover/{letter}*_rgbn.tif",),
        (f"pool/hls_worldcover/{letter}*_label.tif",),
        WORLDCOVER,
        weight=weight,
        bands=CHANNELS,
        rescale="reflectance",
        reflectance=SURFACE,
        folds=folds,
    )


SOURCES = (
    _hls("hls", "C", 0.48, tuple((place, fold) for fold, places in enumerate(HLS_FOLDS) for place in places)),
    _hls("hls river plain", "A", 0.12, (("A", 0),)),
    _source(
        "eurosat", "eurosat_ms", 0.12, labels="labels.csv", fold=1, through_air=True,
        meanings=(
            Meaning((TREE,), ("Forest",)),
            Meaning((WATER,), ("SeaLake",)),
            Meaning((LOW,), ("Pasture", "HerbaceousVegetation"), (("ndvi", 0.25, 9.0),)),
            Meaning((LOW, BARE), ("AnnualCrop",)),
            Meaning((LOW, TREE), ("PermanentCrop",)),
            Meaning((BUILT,), ("Residential", "Industrial"), (("ndvi", -9.0, 0.3),)),
            Meaning((TREE, LOW), ("Residential", "Industrial"), (("ndvi", 0.5, 9.0),)),
        ),
    ),
    _source(
        "landsat8_chesapeake", "landsat8_chesapeake", 0.04, fold=2,
        meanings=(
            Meaning((WATER,), ("1",)), Meaning((TREE,), ("2",)), Meaning((LOW,), ("3",)), Meaning((BARE,), ("4",)),
            Meaning((BUILT,), ("5", "6")),
        ),
    ),
    _source(
        "landsat_ontario", "landsat_ontario", 0.03, fold=3,
        meanings=(
            Meaning((WATER,), ("2",)), Meaning((TREE, LOW, WATER), ("4", "6")), Meaning((LOW, TREE), ("5",)),
            Meaning((TREE,), ("7", "8")), Meaning((BARE,), ("10",)), Meaning((LOW,), ("12",)),
            Meaning((LOW, BARE), ("13", "15")),
        ),
    ),
    _source(
        "landsat8_zion", "landsat8_zion", 0.04, fold=1, reflectance=LANDSAT_LEVEL_1, through_air=True,
        meanings=(
            Meaning((WATER,), ("11",)), Meaning((LOW, BUILT, BARE, TREE), ("21",)), Meaning((BUILT,), ("22-24",)),
            Meaning((BARE,), ("31",)), Meaning((TREE,), ("41-43", "90")), Meaning((LOW,), ("52", "71", "81")),
            Meaning((LOW, BARE), ("82",)), Meaning((LOW, WATER), ("95",)),
        ),
    ),
    _source(
        "landsat7_nc", "landsat7_nc", 0.04, fold=3, reflectance=None, through_air=True,
        meanings=(
            Meaning((BUILT,), ("1",)), Meaning((LOW, BARE), ("2",)), Meaning((LOW,), ("3",)),
            Meaning((LOW, TREE), ("4",)), Meaning((TREE,), ("5",)), Meaning((WATER,), ("6",)),
            Meaning((BARE, WATER), ("7",)),
        ),
    ),
    _source(
        "landsat7_gewata", "landsat7_gewata", 0.03, labels="*_vcf.tif", fold=2,
        meanings=(Meaning((WATER,), ("254",)), Meaning((TREE,), ("60-100",)), Meaning((LOW,), ("0-20",))),
    ),
    _source(
        "sen12ms", "sen12ms_samples", 0.015, fold=0, through_air=True, meanings=(Meaning((BARE,), ("16",)),)
    ),
    _source(
        "s2_alberta", "s2_alberta_clouds", 0.02, labels="*_scl.tif", fold=0,
        meanings=(
            Meaning((TREE, LOW), ("4",)), Meaning((BARE, LOW, BUILT), ("5",)), Meaning((WATER,), ("6",)),
        ),
    ),
    *map(
        _unlabelled,
        ("bigearthnet_samples", "s2_dsen2", "s2_worldcereal_belgium"),
    ),
    _unlabelled("landsat8_loonlake", LANDSAT_LEVEL_1),
    _drawn("hls_terratorch", 0),
    _drawn("s2_california_rcv", 0),
    _drawn("landsat7_olinda", 0, None),
    _drawn("s2_dolomites", 0, SHIFTED),
    _drawn("s2_demmin", 2),
    _drawn("landsat5_para", 1, None),
    _drawn("landsat89_xlandsat", 1, LANDSAT_LEVEL_2, "*L2SP*"),
    _drawn("s2_8bit_wangyi", 2, None),
    _drawn("s2_rondonia", 2),
    _drawn("landsat7_chiapas", 2),
    _drawn("landsat8_japan", 3, LANDSAT_LEVEL_1),
    _drawn("s2_opengeos_cog", 3),
    _drawn("landsat8_taylorsville", 3),
)  # fmt: skip

RECIPE = LearntRecipe(
    "satellite",
    "The bundled model for satellite imagery of 3 to 30 m, learnt from public labels.",
    FinetuneConfig(
        CLASSES,
        SOURCES,
        dtype="int16",
        colours=COLOURS,
        mode="network",
        folds=4,
        pixel_steps=2500,
        pixel_share=0.5,
        bias=BIAS,
        temperature=1.0,  # calibrated on left-out HLS places as it is; other sensors would ask for more
        balance=0.1,
        average=0.992,
        light=Light(
            plain=0.4,
            gain=0.06,
            wide_gain=0.12,
            band_gain=0.03,
            haze=0.01,
            air=0.35,  # towns are labelled in level 1C mostly, and mapped at the surface
            band_offset=0.004,
            noise=0.01,
        ),
        zoom=(0.8, 1.25),
        centred=((BUILT, 0.15), (BARE, 0.1)),
    ),
    NetworkConfig(
        "pixel-context",
        CHANNELS,
        len(CLASSES),
        scale=(1e-4,) * 4,
        family="pixel-context",
        widths=(32, 16, 16, 32, 48),
        beside="log",
        bias=True,
    ),
    size=64,
    batch=12,
    epochs=14,
    steps=100,
    lr=4e-3,
    gsd=(3.0, 30.0),
    attribution=(
        "HLS (NASA) with ESA WorldCover; EuroSAT; Landsat (USGS) with labels of the Chesapeake Conservancy, NLCD, "
        "North Carolina and Ontario; modified Copernicus Sentinel data, SEN12MS and Landsat with labels drawn for this "
        "model"
    ),
    licence="public domain (HLS, Landsat, NLCD); CC BY 4.0 (WorldCover, SEN12MS); MIT (EuroSAT); Copernicus terms",
)

UNLABELLED = Recipe(
    "satellite-unlabelled",
    "Satellite imagery of 3 to 10 m in 64 clusters, without a label.",
    {
        "bands": CHANNELS,
        "network": "local",
        "rescale": "auto",  # the scenes come stretched, each in its own way
        "gsd": (5.0, 10.0),
        "pixel_size": 5.0,
        "nodata": 0.0,
        "clusters_a": 0,
        "sub_heads": 1,
        "size": 32,
        "radius": 1,
        "batch": 48,
        "lr": 4e-3,
        "epochs": 4,
        "steps": 200,
        "entropy_weight": 1.5,
        "colour_jitter": 1.0,
        "vegetation_jitter": 0.0,
    },
    scenes=("sentinel2/*_rgbn.tif",),
    classes=64,
)
