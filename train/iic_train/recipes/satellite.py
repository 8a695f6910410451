"""The bundled model for satellite imagery of 3 to 30 m: reflectance, or stretched values, to five classes.

It learns from 27 sources; a source is a sensor, a provider and a region. Sources are left out together, four groups in
turn, to choose settings; those of `LOCKED` have no weight, so nothing learns from them or is chosen on them: they judge
the finished model. `satellite_scenes.geojson` holds polygons drawn by eye over 17 scenes, `dense_chips.json.gz` whole
chips labelled by eye; where neither says anything, spectral rules say what is certain.

DATA holds the folders `pool` and `sentinel2`; docs/research/bundled-models.md says what is in them.
"""

from pathlib import Path
from typing import Any

from iic_train.finetune.settings import FinetuneConfig, LabelSource, Meaning, own_names
from iic_train.models.registry import NetworkConfig
from iic_train.recipes.learnt import LearntRecipe, pool_source
from iic_train.recipes.recipe import Recipe

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
LOCKED = ("landsat8_zion", "landsat7_nc", "s2_8bit_wangyi", "s2rgb_korea")
"""Sources that judge the finished model; chosen before anything was trained."""
LOCKED_FOLD = 9
GROUPS = (
    ("hls_worldcover", "hls_plain", "hls_terratorch"),
    ("eurosat_ms", "landsat89_xlandsat", "s2_california_rcv", "s2_demmin", "landsat7_gewata", "sentinel2", "s2_ftw"),
    ("landsat8_chesapeake", "s2_rondonia", "s2_dolomites", "landsat8_japan", "landsat7_olinda", "s2rgb_amazon",
     "s2_worldcereal_belgium"),
    ("landsat_ontario", "landsat7_chiapas", "landsat5_para", "landsat8_taylorsville", "s2_opengeos_cog",
     "s2_alberta_clouds", "naip_misc", "sen12ms_samples", "bigearthnet_samples", "s2_dsen2", "landsat8_loonlake"),
)  # fmt: skip
"""Sources that are left out together."""
DRAWN = str(Path(__file__).with_name("satellite_scenes.geojson"))
DENSE = str(Path(__file__).with_name("dense_chips.json.gz"))
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


def _fold(name: str) -> int:
    return LOCKED_FOLD if name in LOCKED else next(i for i, group in enumerate(GROUPS) if name in group)


def _source(
    name: str,
    weight: float,
    meanings: tuple[Meaning, ...],
    *,
    reflectance: tuple[float, float] | None = SURFACE,
    **about: Any,
) -> LabelSource:
    """Return a source that is left out as a whole; without `reflectance` its values are stretched."""
    about = {"scenes": "*_rgbn.tif", "labels": "*_label.tif", **about}
    return pool_source(
        name,
        0.0 if name in LOCKED else weight,
        meanings,
        bands=CHANNELS if "rgbn" in about["scenes"] else CHANNELS[:3],
        rescale="stretch" if reflectance is None else "reflectance",
        reflectance=reflectance,
        dense=DENSE,
        folds=(("", _fold(name)),),
        **about,
    )


def _drawn(
    name: str,
    reflectance: tuple[float, float] | None = SURFACE,
    scenes: str = "*",
    *,
    through_air: bool = False,
) -> LabelSource:
    """Return scenes with drawn polygons; elsewhere spectral rules say what is certain, if reflectance is known."""
    rules = () if reflectance is None else CERTAIN
    return _source(
        name, 0.035, (*rules, *own_names(CLASSES)), scenes=f"{scenes}_rgbn.tif", labels=DRAWN,
        reflectance=reflectance, through_air=through_air,
    )  # fmt: skip


def _ruled(
    name: str, weight: float, reflectance: tuple[float, float] = SURFACE, *, through_air: bool = False
) -> LabelSource:
    """Return scenes that only spectral rules and dense labels speak of."""
    return _source(name, weight, CERTAIN, labels=None, reflectance=reflectance, through_air=through_air)


SOURCES = (
    _source("hls_worldcover", 0.30, WORLDCOVER, scenes="C*_rgbn.tif", labels="C*_label.tif"),
    _source("hls_plain", 0.06, WORLDCOVER, scenes="A*_rgbn.tif", labels="A*_label.tif", folder="pool/hls_worldcover"),
    _source(
        "eurosat_ms", 0.14, labels="labels.csv", through_air=True,
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
        "landsat8_chesapeake", 0.05,
        (
            Meaning((WATER,), ("1",)), Meaning((TREE,), ("2",)), Meaning((LOW,), ("3",)), Meaning((BARE,), ("4",)),
            Meaning((BUILT,), ("5", "6")),
        ),
    ),
    _source(
        "landsat_ontario", 0.04,
        (
            Meaning((WATER,), ("2",)), Meaning((TREE, LOW, WATER), ("4", "6")), Meaning((LOW, TREE), ("5",)),
            Meaning((TREE,), ("7", "8")), Meaning((BARE,), ("10",)), Meaning((LOW,), ("12",)),
            Meaning((LOW, BARE), ("13", "15")),
        ),
    ),
    _source(
        "landsat8_zion", 0.0, reflectance=LANDSAT_LEVEL_1, through_air=True,
        meanings=(
            Meaning((WATER,), ("11",)), Meaning((LOW, BUILT, BARE, TREE), ("21",)), Meaning((BUILT,), ("22-24",)),
            Meaning((BARE,), ("31",)), Meaning((TREE,), ("41-43", "90")), Meaning((LOW,), ("52", "71", "81")),
            Meaning((LOW, BARE), ("82",)), Meaning((LOW, WATER), ("95",)),
        ),
    ),
    _source(
        "landsat7_nc", 0.0, reflectance=None, through_air=True,
        meanings=(
            Meaning((BUILT,), ("1",)), Meaning((LOW, BARE), ("2",)), Meaning((LOW,), ("3",)),
            Meaning((LOW, TREE), ("4",)), Meaning((TREE,), ("5",)), Meaning((WATER,), ("6",)),
            Meaning((BARE, WATER), ("7",)),
        ),
    ),
    _source(
        "landsat7_gewata", 0.03, labels="*_vcf.tif",
        meanings=(Meaning((WATER,), ("254",)), Meaning((TREE,), ("60-100",)), Meaning((LOW,), ("0-20",))),
    ),
    _source("sen12ms_samples", 0.02, (Meaning((BARE,), ("16",)),), through_air=True),
    _source(
        "s2_alberta_clouds", 0.03, labels="*_scl.tif",
        meanings=(
            Meaning((TREE, LOW), ("4",)), Meaning((BARE, LOW, BUILT), ("5",)), Meaning((WATER,), ("6",)),
        ),
    ),
    _source(
        "sentinel2", 0.08, reflectance=None, folder="sentinel2", nodata=0.0,
        meanings=(Meaning((BUILT,), ("1",)), Meaning((TREE, LOW), ("2",)), Meaning((WATER,), ("3",))),
    ),
    _source(
        "s2rgb_amazon", 0.05, reflectance=None, scenes="*_rgb.tif",
        meanings=(Meaning((TREE,), ("1",)), Meaning((LOW, BUILT, BARE, WATER), ("2",))),
    ),
    _source(
        "s2rgb_korea", 0.0, reflectance=None, scenes="*_rgb.tif",
        meanings=(Meaning((BUILT,), ("1", "2")), Meaning((LOW, BARE), ("3",)), Meaning((TREE,), ("4",))),
    ),
    _source("naip_misc", 0.02, (), labels=None, reflectance=None),
    _ruled("bigearthnet_samples", 0.025),
    _ruled("s2_dsen2", 0.03),
    _ruled("s2_worldcereal_belgium", 0.035),
    _ruled("s2_ftw", 0.035),
    _ruled("landsat8_loonlake", 0.01, LANDSAT_LEVEL_1, through_air=True),
    _drawn("hls_terratorch"),
    _drawn("s2_california_rcv"),
    _drawn("landsat7_olinda", None),
    _drawn("s2_dolomites", SHIFTED),
    _drawn("s2_demmin"),
    _drawn("landsat5_para", None),
    _drawn("landsat89_xlandsat", LANDSAT_LEVEL_2, "*L2SP*"),
    _drawn("s2_8bit_wangyi", None),
    _drawn("s2_rondonia"),
    _drawn("landsat7_chiapas"),
    _drawn("landsat8_japan", LANDSAT_LEVEL_1, through_air=True),
    _drawn("s2_opengeos_cog"),
    _drawn("landsat8_taylorsville"),
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
        folds=0,  # benchmarks/bundled.py leaves sources out
        pixel_share=0.5,
        balance=0.5,
        painted_soil=0.08,
        painted_shade=0.1,
        temperature=1.0,
        zoom=(0.8, 1.3),
    ),
    NetworkConfig(
        "land-cover",
        CHANNELS,
        len(CLASSES),
        scale=(1e-4,) * 4,
        family="land-cover",
        widths=(12, 8, 24, 32, 48),
        beside="reflectance",
        bias=True,
    ),
    {"size": 96, "batch": 12, "epochs": 25, "steps": 100, "lr": 2e-3},
    gsd=(3.0, 30.0),
    attribution=(
        "HLS (NASA) with ESA WorldCover; EuroSAT; Landsat (USGS) with labels of the Chesapeake Conservancy and "
        "Ontario; modified Copernicus Sentinel data (SEN12MS, Amazon forest masks, Indian towns) and Landsat with "
        "labels drawn for this model. Training started from EfficientNet-Lite0 (Google), whose weights come from "
        "ImageNet"
    ),
    licence="public domain (HLS, Landsat); CC BY 4.0 (WorldCover, SEN12MS, Amazon); MIT (EuroSAT, Indian towns); "
    "Copernicus terms; Apache 2.0 (EfficientNet-Lite0)",
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
