"""A mask that the user gives: another raster, and those of its values that mean that there is no data."""

import os
from contextlib import closing
from dataclasses import dataclass
from typing import Self

import numpy as np
import rasterio

from iic_geotools.classmap.vrt import whole_source
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.gdal import absolute_name, network_options
from iic_geotools.geobox import GeoBox
from iic_geotools.option_texts import MaskArgument
from iic_geotools.scene.info import SceneInfo, describe, open_raster
from iic_geotools.scene.placement import can_lie_on, reach_beyond, same_pixels
from iic_geotools.scene.warp import nearest_on

LARGEST_VALUE = 1 << 24
"""GDAL's tables hold whole numbers up to this exactly."""
MOST_BEYOND = 1.0
"""Pixels by which a scene may reach beyond its mask: grids of 10 and 20 m need not end at the same place."""


@dataclass(frozen=True)
class ValueMask:
    """A raster and those of its values at which a scene holds no data.

    Attributes:
        path: Path or address of the raster; its first band counts.
        values: The values.
        name: What messages call the raster, if not by its path.
    """

    path: str
    values: tuple[int, ...]
    name: str = ""

    @classmethod
    def of(cls, argument: MaskArgument) -> Self:
        """The mask of an argument."""
        if isinstance(argument, str):
            raise UsageError(f'`mask` takes a raster and its values, not "{argument}", for this scene.')
        path, values = argument
        whole = all(isinstance(value, int | np.integer) and abs(value) <= LARGEST_VALUE for value in values)
        if not values or not whole:
            raise UsageError(f"`mask` takes whole numbers as values, at least one, not {values!r}.")
        return cls(os.fspath(path), tuple(sorted({int(value) for value in values})))

    def on_grid(self, grid: GeoBox, scene: str) -> str:
        """The mask on a scene's grid, as a source of a virtual band: 0 where there is no data, and 255 elsewhere.

        Each pixel of the scene takes the nearest pixel of the mask.

        Raises:
            SceneError: The mask cannot be opened, or does not cover the scene.
            UsageError: The mask cannot hold one of the values.
        """
        info = describe(self.path, self.name)
        name = absolute_name(self.path)
        if not same_pixels(info.grid, grid):
            _check_place(info, grid, scene)
            name = self._warp(grid)
        return whole_source(name, 1, grid, lookup=self._lookup(info))

    def _warp(self, grid: GeoBox) -> str:
        """The mask on another grid, as the text of a virtual raster."""
        with (
            rasterio.Env(**network_options(self.path)),
            open_raster(absolute_name(self.path), self.name) as dataset,
            closing(nearest_on(dataset, grid)) as warped,
        ):
            return str(warped.tags(ns="xml:VRT")["xml:VRT"])

    def _lookup(self, info: SceneInfo) -> str:
        """A table that turns the values into 0, and all others into 255."""
        kind = np.dtype(info.dtypes[0])
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            for value in self.values:
                if not limits.min <= value <= limits.max:
                    raise UsageError(f"`mask` asks for the value {value}, but {info.title} holds {kind}.")
        # GDAL interpolates between the entries, and takes the first and last of them beyond their ends.
        entries = {value + step: 255 for value in self.values for step in (-1, 1)} | dict.fromkeys(
            self.values, 0
        )
        table = ",".join(f"{value}:{entries[value]}" for value in sorted(entries))
        return f"<LUT>{'nan:255,' if kind.kind == 'f' else ''}{table}</LUT>"


def _check_place(mask: SceneInfo, grid: GeoBox, scene: str) -> None:
    """Refuse a mask that does not cover the whole scene."""
    if not can_lie_on(mask.grid, grid):
        raise SceneError(
            f"The mask {mask.title} has {mask.grid.width} x {mask.grid.height} pixels and {scene} has {grid.width} x "
            f"{grid.height}, and one of them has no CRS or no transform; give a mask of the scene's size."
        )
    beyond = reach_beyond(mask.grid, grid)
    if beyond == np.inf:
        raise SceneError(
            f"The mask {mask.title} lies elsewhere than {scene}; give one that covers the scene."
        )
    if beyond > MOST_BEYOND:
        raise SceneError(
            f"The mask {mask.title} covers only a part of {scene}, which reaches {beyond:.0f} of its pixels beyond it; "
            "give one that covers the scene."
        )
