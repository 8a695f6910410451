"""A grid of pixels, its place on the ground, and how large its pixels are there, on a plane or on an ellipsoid."""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from affine import Affine
from attrs import evolve
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.rpc import RPC
from rasterio.warp import transform as reproject

from iic_geotools.gdal import gdal_errors
from iic_geotools.tiling import Rect

Floats = npt.NDArray[np.float64]

AreaMethod = Literal["planar", "ellipsoidal", "none"]
"""How areas are measured: "planar" (pixels times their size in the projection), "ellipsoidal" (true area on the
ground, for degrees and for projections that distort areas) or "none" (without a reference system: pixels only)."""

AREA_TOLERANCE = 0.01
"""A projection that distorts areas by more than this share is not trusted with them."""
CELL = 64
"""Side in pixels of the squares that distortion is measured with."""


LARGEST_COORDINATE = 1e18
"""Larger coordinates, and pixels smaller than its inverse, are not places on any planet."""


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


def places_pixels(transform: Affine) -> bool:
    """Whether a transform gives pixels a place and a size: its numbers are finite, and it can be inverted."""
    numbers = tuple(transform)[:6]
    if not all(map(math.isfinite, numbers)) or max(map(abs, numbers)) > LARGEST_COORDINATE:
        return False
    sizes = (math.hypot(transform.a, transform.d), math.hypot(transform.b, transform.e))
    terms = (abs(transform.a * transform.e), abs(transform.b * transform.d))
    return min(sizes) > 1 / LARGEST_COORDINATE and abs(transform.determinant) > 1e-12 * max(terms)


def _read_rpcs(dataset: Any) -> RPC | None:
    try:
        return dataset.rpcs
    except (ValueError, KeyError, TypeError, AttributeError):  # incomplete ones are of no use
        return None


@dataclass(frozen=True)
class GeoBox:
    """The pixels of a raster and their place on the ground.

    Attributes:
        width: Number of columns.
        height: Number of rows.
        transform: Transform from pixel to ground coordinates; the identity if only ground control points are known.
        crs: Coordinate reference system of the transform, if known.
        gcps: Ground control points of a raster that was never rectified.
        gcps_crs: Coordinate reference system of the ground control points.
        rpcs: Rational polynomial coefficients of a raster as a satellite saw it.
    """

    width: int
    height: int
    transform: Affine
    crs: CRS | None = None
    gcps: tuple[GroundControlPoint, ...] = ()
    gcps_crs: CRS | None = None
    rpcs: RPC | None = None

    @classmethod
    def of(cls, dataset: Any) -> Self:
        """The grid of an open rasterio dataset."""
        gcps, gcps_crs = dataset.gcps
        transform = dataset.transform
        # Of formats that have no transform, rasterio gives what happens to be in memory.
        if not dataset.crs and (dataset.driver == "PNM" or not places_pixels(transform)):
            transform = Affine.identity()
        return cls(
            dataset.width,
            dataset.height,
            transform,
            dataset.crs or None,
            tuple(gcps or ()),
            gcps_crs or None if gcps else None,  # of JPEG 2000, GDAL gives a CRS without any points
            _read_rpcs(dataset),
        )

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, bottom, right and top of the smallest upright rectangle around the grid, on the ground."""
        corners = [self.transform @ (x, y) for x in (0, self.width) for y in (0, self.height)]
        xs, ys = zip(*corners, strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    def contains(self, x: float, y: float) -> bool:
        """Return whether a place in the CRS lies on a pixel."""
        column, row = ~self.transform @ (x, y)
        return bool(0 <= column < self.width and 0 <= row < self.height)

    @cached_property
    def area_method(self) -> AreaMethod:
        """How areas on this grid are measured."""
        if self.crs is None:
            return "none"
        if self.crs.is_geographic:
            return "ellipsoidal"
        pixel = self.planar_pixel_area
        if math.isnan(pixel):
            return "none"
        ground = Ground.of(self.crs)
        if ground is None:
            return "planar"
        wide, high = min(CELL, self.width), min(CELL, self.height)
        cols, rows = np.meshgrid(np.linspace(0, self.width - wide, 5), np.linspace(0, self.height - high, 5))
        true_areas = self.cell_areas(ground, cols, rows, wide, high)
        true_areas = true_areas[np.isfinite(true_areas) & (true_areas > 0)]
        distortion = np.abs(pixel * wide * high / true_areas - 1).max(initial=0.0)
        return "ellipsoidal" if distortion > AREA_TOLERANCE else "planar"

    @property
    def planar_pixel_area(self) -> float:
        """Area of a pixel in m2 by the coordinates of the CRS; NaN if those are not lengths."""
        factor = self._metres_per_unit
        return math.nan if factor is None else float(abs(self.transform.determinant) * factor**2)

    @cached_property
    def pixel_size(self) -> tuple[float, float] | None:
        """Width and height of a pixel in metres, at the centre of the grid; None if they cannot be known."""
        if self.crs is None:
            return None
        transform = self.transform
        if self.area_method == "ellipsoidal":
            return self._pixel_size_on_ellipsoid(self.crs)
        factor = self._metres_per_unit
        if factor is None:
            return None
        return (
            factor * float(np.hypot(transform.a, transform.d)),
            factor * float(np.hypot(transform.b, transform.e)),
        )

    @property
    def pixel_side(self) -> float | None:
        """Side in metres of a square as large as a pixel at the centre; None if it cannot be known."""
        size = self.pixel_size
        return None if size is None else math.sqrt(size[0] * size[1])

    def to_ground(self, cols: npt.NDArray[Any], rows: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """Ground coordinates of points in pixels."""
        a, b, c, d, e, f, *_ = self.transform
        return a * cols + b * rows + c, d * cols + e * rows + f

    def cell_areas(self, ground: Ground, left: Floats, top: Floats, wide: Any, high: Any) -> Floats:
        """True areas in m2 of rectangles of pixels; not finite where they lie off the earth."""
        cols = np.stack([left, left + wide, left + wide, left, left], -1)
        rows = np.stack([top, top, top + high, top + high, top], -1)
        ring = np.repeat(np.arange(cols.size // 5), 5)
        with np.errstate(invalid="ignore"):
            areas = ground.ring_areas(*self.to_ground(cols.ravel(), rows.ravel()), ring)
        return areas.reshape(cols.shape[:-1])

    def row_areas(self, ground: Ground, top: int, high: int) -> Floats:
        """Exact area in m2 of a pixel of each row of a grid in degrees, north up."""
        edges = np.arange(top, top + high + 1)
        lon, _ = ground.radians(*self.to_ground(np.array([0.0, 1.0]), np.zeros(2)))
        _, lat = ground.radians(*self.to_ground(np.zeros(len(edges)), edges))
        # Rasters of the whole world overshoot the poles by rounding.
        zones = ground.ellipsoid.zone(np.clip(lat, -np.pi / 2, np.pi / 2))
        return np.asarray(np.abs(np.diff(zones)) * abs(lon[1] - lon[0]))

    def true_pixel_areas(self, ground: Ground, rect: Rect) -> Floats:
        """True areas in m2 of the pixels of a rectangle, one per row (`[height, 1]`) or one per pixel; 0 off the earth.

        The area of a pixel does not depend on the rectangle: where it cannot be known exactly, it is the mean of the
        cell of `CELL` x `CELL` pixels that it lies in, counted from the first pixel of the grid.
        """
        if ground.crs.is_geographic and self.transform.b == self.transform.d == 0:
            return self.row_areas(ground, rect.row, rect.height)[:, None]
        rows = np.arange(rect.row // CELL, -(-rect.bottom // CELL)) * CELL
        cols = np.arange(rect.col // CELL, -(-rect.right // CELL)) * CELL
        wide, high = np.meshgrid(np.minimum(CELL, self.width - cols), np.minimum(CELL, self.height - rows))
        left, top = np.meshgrid(cols.astype(float), rows.astype(float))
        cells = np.nan_to_num(self.cell_areas(ground, left, top, wide, high) / (wide * high))
        pixels = cells.repeat(CELL, 0).repeat(CELL, 1)
        inside = Rect(rect.col % CELL, rect.row % CELL, rect.width, rect.height)
        return np.asarray(pixels[inside.slices])

    def crop(self, rect: Rect) -> "GeoBox":
        """The grid of the pixels of `rect`, in the same place."""
        gcps = tuple(
            GroundControlPoint(gcp.row - rect.row, gcp.col - rect.col, gcp.x, gcp.y, gcp.z, gcp.id, gcp.info)
            for gcp in self.gcps
        )
        # The identity means that there is no georeference: it is not a place and cannot be shifted.
        unplaced = self.transform == Affine.identity()
        transform = self.transform if unplaced else self.transform @ Affine.translation(rect.col, rect.row)
        rpcs = self.rpcs and evolve(
            self.rpcs, line_off=self.rpcs.line_off - rect.row, samp_off=self.rpcs.samp_off - rect.col
        )
        return GeoBox(rect.width, rect.height, transform, self.crs, gcps, self.gcps_crs, rpcs)

    def differences(self, other: "GeoBox") -> list[str]:
        """The parts of the georeference in which another grid differs to the last digit, in words."""
        keys = ("line_off", "samp_off", "line_num_coeff", "samp_num_coeff")
        grids = (self, other)
        points = [[(gcp.row, gcp.col, gcp.x, gcp.y, gcp.z or 0.0) for gcp in grid.gcps] for grid in grids]
        rpcs = [grid.rpcs and [getattr(grid.rpcs, key) for key in keys] for grid in grids]
        same = {
            "transform": self.transform == other.transform,
            "CRS": self.crs == other.crs,
            "ground control points": points[0] == points[1] and self.gcps_crs == other.gcps_crs,
            "rational polynomial coefficients": rpcs[0] == rpcs[1],
        }
        return [name for name, holds in same.items() if not holds]

    @property
    def _metres_per_unit(self) -> float | None:
        """Metres in a unit of the CRS; None if it has none or is geographic."""
        try:
            return None if self.crs is None or self.crs.is_geographic else float(self.crs.units_factor[1])
        except CRSError:
            return None

    def _pixel_size_on_ellipsoid(self, crs: CRS) -> tuple[float, float] | None:
        ground = Ground.of(crs)
        if ground is None:
            return None
        # Steps of many pixels: an inverse projection is accurate to about a millimetre, not enough for one pixel.
        cols = self.width / 2 + np.array([0.0, CELL, 0.0])
        rows = self.height / 2 + np.array([0.0, 0.0, CELL])
        lon, lat = ground.radians(*self.to_ground(cols, rows))
        if not (np.isfinite(lon).all() and np.isfinite(lat).all()):
            return None
        east, north = ground.ellipsoid.metres_per_radian(float(lat[0]))
        turn = lon[1:] - lon[0]
        turn -= 2 * np.pi * np.round(turn / (2 * np.pi))
        lengths = np.hypot(turn * east, (lat[1:] - lat[0]) * north) / CELL
        # At and beyond a pole of a map pixels have no width or height left.
        return (float(lengths[0]), float(lengths[1])) if lengths.all() else None
