"""True lengths and areas on the ellipsoid of a coordinate reference system."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from rasterio.crs import CRS
from rasterio.errors import CRSError
from rasterio.warp import transform as reproject

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ellipsoid:
    """The figure of the earth a reference system is drawn on.

    Attributes:
        a: Equatorial radius in metres.
        b: Polar radius in metres.
    """

    a: float
    b: float

    @cached_property
    def eccentricity(self) -> float:
        """First eccentricity; 0 for a sphere."""
        return float(np.sqrt(max(0.0, 1.0 - (self.b / self.a) ** 2)))

    def zone(self, latitude: npt.ArrayLike) -> Floats:
        """Area in m2 between the equator and a latitude (radians), per radian of longitude, exactly."""
        sine = np.sin(np.asarray(latitude, np.float64))
        e = self.eccentricity
        if e < 1e-9:
            return np.asarray(self.a**2 * sine)
        return np.asarray(self.b**2 / 2 * (sine / (1 - (e * sine) ** 2) + np.arctanh(e * sine) / e))

    def metres_per_radian(self, latitude: float) -> tuple[float, float]:
        """Length of one radian of longitude and of one radian of latitude."""
        squeeze = 1 - (self.eccentricity * np.sin(latitude)) ** 2
        along_meridian = self.b**2 / self.a / squeeze**1.5
        return float(self.a / np.sqrt(squeeze) * np.cos(latitude)), float(along_meridian)

    def ring_areas(self, longitude: Floats, latitude: Floats, ring: npt.NDArray[np.int64]) -> Floats:
        """Areas in m2 of closed rings.

        Edges are straight in longitude against `zone`, which is exact for edges along meridians and
        parallels; a ring may cross the antimeridian or go around a pole.

        Args:
            longitude: Of the points of all rings (radians), one ring after the other.
            latitude: Of the same points; the last of a ring is its first again.
            ring: Number of the ring that each point is of: 0, 1, ...
        """
        inside = ring[1:] == ring[:-1]
        edge = ring[:-1][inside]
        turn = np.diff(longitude)[inside]
        turn -= 2 * np.pi * np.round(turn / (2 * np.pi))
        height = self.zone(latitude)
        first = height[np.searchsorted(ring, np.arange(ring[-1] + 1 if len(ring) else 0))]
        # Relative to the first point: a pixel is so small that its area would drown in the sum.
        rise = height - first[ring]
        swept = np.bincount(edge, ((rise[1:] + rise[:-1]) / 2)[inside] * turn, minlength=len(first))
        winding = np.round(np.bincount(edge, turn, minlength=len(first)) / (2 * np.pi))
        cap = 2 * np.pi * float(self.zone(np.pi / 2))
        around_pole = cap - np.abs(swept + winding * 2 * np.pi * first)
        return np.asarray(np.where(winding == 0, np.abs(swept), around_pole))


@dataclass(frozen=True)
class Ground:
    """From a reference system's coordinates to longitude and latitude on its own ellipsoid.

    Attributes:
        crs: The reference system.
        geographic: Its longitudes and latitudes.
        ellipsoid: The figure these are on.
    """

    crs: CRS
    geographic: CRS
    ellipsoid: Ellipsoid

    @classmethod
    def of(cls, crs: CRS) -> Self | None:
        """The ground under `crs`; None if it is not tied to the earth."""
        try:
            definition = crs.to_dict(projjson=True)
        except CRSError:
            return None
        shape = _find(definition, "ellipsoid")
        base = definition if crs.is_geographic else _find(definition, "base_crs")
        if shape is None or base is None:
            return None
        a = _metres(shape.get("semi_major_axis", shape.get("radius")))
        flattening = 1 / shape["inverse_flattening"] if shape.get("inverse_flattening") else 0.0
        b = _metres(shape["semi_minor_axis"]) if "semi_minor_axis" in shape else a * (1 - flattening)
        geographic = crs if crs.is_geographic else CRS.from_user_input(json.dumps(base))
        return cls(crs, geographic, Ellipsoid(a, b))

    def radians(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Longitude and latitude of points in the reference system; not finite where there are none."""
        if not self.crs.is_geographic:
            shape = x.shape
            lon, lat = reproject(self.crs, self.geographic, x.ravel(), y.ravel())
            x, y = np.reshape(lon, shape), np.reshape(lat, shape)
        _, factor = self.geographic.units_factor
        return np.asarray(x) * factor, np.asarray(y) * factor


def _metres(length: Any) -> float:
    """A length of PROJJSON: a plain number is in metres."""
    if isinstance(length, dict):
        unit = length["unit"]
        return float(length["value"]) * (float(unit["conversion_factor"]) if isinstance(unit, dict) else 1.0)
    return float(length)


def _find(definition: Any, key: str) -> Any:
    """The first value under `key`, however deep: compound and bound systems wrap the one that counts."""
    if isinstance(definition, dict):
        if key in definition:
            return definition[key]
        definition = list(definition.values())
    if isinstance(definition, list):
        for value in definition:
            if (found := _find(value, key)) is not None:
                return found
    return None
