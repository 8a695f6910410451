"""The published settings, without those that differ from others by the data and the number of clusters alone."""

from dataclasses import replace
from typing import Any

from iic_train.recipes.presets import PRESETS, preset


def _kind(name: str) -> tuple[Any, ...]:
    config = preset(name)
    return replace(config.network, clusters_a=None, clusters_b=2, sub_heads=1), config.pairs, config.size


DISTINCT_PRESETS = tuple({_kind(name): name for name in PRESETS}.values())
"""One preset of each network, views and size of images."""
