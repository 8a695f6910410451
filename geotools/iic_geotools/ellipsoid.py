"""True lengths and areas on the ellipsoid of a coordinate reference system."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.warp import transform as reproject

from iic_geotools.gdal import gdal_errors

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ellipsoid:
    """The figure of the earth that a reference system is based on.

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
        """Exact area in m2 between the equator and a latitude (radians), per radian of longitude."""
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

    def around(
        self, longitude: Floats, latitude: Floats, centre: npt.NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        """Coordinates in metres that keep areas, each point relative to a centre of its own.

        This is Lambert's azimuthal equal-area projection of the sphere that has the ellipsoid's area. Poles and the
        antimeridian are not special to it.

        Args:
            longitude: Longitudes of the points in radians.
            latitude: Latitudes of the points in radians.
            centre: For each point, the index of the point that is its centre.
        """
        full = float(self.zone(np.pi / 2))
        sine = np.clip(self.zone(latitude) / full, -1.0, 1.0)
        cosine = np.sqrt(1 - sine**2)
        turn = longitude - longitude[centre]
        across = cosine * np.sin(turn)
        up = cosine[centre] * sine - sine[centre] * cosine * np.cos(turn)
        depth = sine[centre] * sine + cosine[centre] * cosine * np.cos(turn)
        scale = np.sqrt(2 * full / np.maximum(1 + depth, 1e-12))
        return scale * across, scale * up


@dataclass(frozen=True)
class Ground:
    """From a reference system's coordinates to longitude and latitude on its own ellipsoid.

    Attributes:
        crs: The reference system.
        geographic: The geographic system of its longitudes and latitudes.
        ellipsoid: The ellipsoid that these lie on.
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
        """Longitude and latitude in radians of points in the reference system; not finite off the earth."""
        if not self.crs.is_geographic:
            x, y = self._unprojected(x, y)
        _, factor = self.geographic.units_factor
        return np.asarray(x) * factor, np.asarray(y) * factor

    def _unprojected(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        try:
            with gdal_errors():
                lon, lat = reproject(self.crs, self.geographic, x, y)
        except RasterioError:
            # One point off the earth fails all of them: halve until it stands alone.
            if len(x) == 1:
                return np.array([np.nan]), np.array([np.nan])
            half = len(x) // 2
            parts = [self._unprojected(x[part], y[part]) for part in (slice(half), slice(half, None))]
            lon, lat = (np.concatenate(axis) for axis in zip(*parts, strict=True))
        return np.asarray(lon), np.asarray(lat)

    def ring_areas(self, x: Floats, y: Floats, ring: npt.NDArray[np.int64]) -> Floats:
        """True areas in m2 of closed rings; not finite where points lie off the earth.

        Areas are exact for rings in degrees along meridians and parallels. Elsewhere edges should be short, for they
        are not quite straight on the ground.

        Args:
            x: x of the points of all rings, in the reference system, one ring after the other.
            y: y of the same points; the last point of a ring equals its first.
            ring: Number of the ring that each point belongs to: 0, 1, ...
        """
        if not len(ring):
            return np.empty(0)
        lon, lat = self.radians(x, y)
        first = np.searchsorted(ring, ring)
        if self.crs.is_geographic:
            u, v = lon, self.ellipsoid.zone(lat)
        else:
            u, v = self.ellipsoid.around(lon, lat, first)
        # Relative to a ring's first point: the area of a pixel would otherwise drown in rounding errors.
        u, v = u - u[first], v - v[first]
        inside = ring[1:] == ring[:-1]
        swept = (u[:-1] * v[1:] - u[1:] * v[:-1])[inside] / 2
        return np.abs(np.bincount(ring[:-1][inside], swept, int(ring[-1]) + 1))


def _metres(length: Any) -> float:
    """A length of PROJJSON: a plain number is in metres."""
    if isinstance(length, dict):
        unit = length["unit"]
        return float(length["value"]) * (float(unit["conversion_factor"]) if isinstance(unit, dict) else 1.0)
    return float(length)


def _find(definition: Any, key: str) -> Any:
    """The first value under `key`, however deep: compound and bound systems wrap the relevant one."""
    if isinstance(definition, dict):
        if key in definition:
            return definition[key]
        definition = list(definition.values())
    if isinstance(definition, list):
        for value in definition:
            if (match := _find(value, key)) is not None:
                return match
    return None
