"""FLAIR-3: two scenes of IGN FLAIR #1 at 0.2 m in ground, building and vegetation, without a label.

The data folder holds `zone1_rgbir.tif` and `zone3_rgbir.tif` (red, green, blue, infrared) and their `zoneN_label.tif`.
"""

from dataclasses import replace

from iic_train.recipes.recipe import Recipe

CLASSES = ("ground=2,3,4", "building=1,18", "vegetation=6,7,8,9,10,11,12,15,16,17")
CHANNELS = ("red", "green", "blue", "nir")
_CHANGES = {
    "reduce": 4,  # 0.8 m: fine texture averages out, materials remain
    "network": "local",  # cannot see far enough to make a cluster of edges
    "clusters_a": 0,
    "size": 32,
    "radius": 1,
    "batch": 32,
}
# The classes of these scenes are not equal parts but .49, .38 and .13: a weight below 1 allows that.
_UNEQUAL = {"entropy_weight": 0.8, "entropy_warmup": 0.5}
# Many clusters are to cover all materials, in every light and season, about equally.
_EQUAL = {"entropy_weight": 1.5, "colour_jitter": 0.1, "vegetation_jitter": 0.0}
THREE = Recipe(
    "flair3",
    "FLAIR-3 in three clusters, one per class.",
    {**_CHANGES, **_UNEQUAL, "sub_heads": 5, "lr": 4e-3, "epochs": 4, "steps": 70},
    scenes=("zone1_rgbir.tif", "zone3_rgbir.tif"),
    classes=3,
    labels="zone[13]_label.tif",
    label_class=CLASSES,
)
MANY = replace(
    THREE,
    name="flair3-24",
    summary="FLAIR-3 in 24 clusters, several per class.",
    changes={**_CHANGES, **_EQUAL, "sub_heads": 1, "lr": 1e-2, "epochs": 3, "steps": 100},
    classes=24,
)
