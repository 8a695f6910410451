"""Areas of classes in polygons: every sum again by intersecting pixels, whatever the windows and the CRS."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from affine import Affine
from pyogrio.raw import read
from rasterio.crs import CRS
from rasterio.warp import transform as reproject
from support.maps import LAMBERT, TRANSFORM, named, random_labels, write_map, write_shapes

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import IICError, OutputError, SceneError, UsageError
from iic_geotools.products import zones as module
from iic_geotools.products.areas import class_areas
from iic_geotools.products.zones import zone_statistics

CLASSES = named("water", "forest", "=town")
HEIGHT, WIDTH = 70, 90
PIXEL_HA = 0.25 / 10_000


def ground(shape: Any, transform: Affine = TRANSFORM) -> Any:
    """A shape in pixels, on the ground."""
    return shapely.transform(shape, lambda points: np.array([transform @ tuple(point) for point in points]))


def parcels() -> list[Any]:
    rng = np.random.default_rng(1)
    ring = shapely.Point(40, 30).buffer(22).difference(shapely.Point(44, 33).buffer(7))
    outline = np.array([(5, 60), (30, 40.5), (80.25, 66), (60, 69)])
    shapes = [ring, shapely.Polygon(outline), shapely.box(-20, 50, 12.5, 90), shapely.box(200, 200, 210, 210)]
    shapes += [shapely.Point(*rng.uniform(5, 65, 2)).buffer(rng.uniform(0.2, 9)) for _ in range(5)]
    shapes.append(shapely.MultiPolygon([shapely.box(1, 1, 3.5, 4), shapely.box(60, 2, 61, 9.75)]))
    return [
        ground(shapely.MultiPolygon([shape]) if shape.geom_type == "Polygon" else shape) for shape in shapes
    ]


@pytest.fixture
def labels() -> np.ndarray:
    return random_labels(HEIGHT, WIDTH, 3, seed=4, patch=3)


@pytest.fixture
def files(tmp_path: Path, labels: np.ndarray) -> tuple[Path, Path]:
    shapes = parcels()
    names = [f"parcel {number}" for number in range(len(shapes))]
    zones = write_shapes(
        tmp_path / "zones.gpkg", shapes, "EPSG:2154", name=names, owner=list(range(len(shapes)))
    )
    return write_map(tmp_path / "map.tif", labels, classes=CLASSES), zones


def by_hand(labels: np.ndarray, shape: Any) -> np.ndarray:
    """Hectares of each of 256 values, by intersecting every pixel."""
    rows, columns = np.mgrid[: labels.shape[0], : labels.shape[1]]
    x, y = TRANSFORM.c + columns * 0.5, TRANSFORM.f - rows * 0.5
    areas = shapely.area(shapely.intersection(shape, shapely.box(x, y - 0.5, x + 0.5, y)))
    return np.bincount(labels.ravel(), areas.ravel(), 256) / 10_000


@pytest.mark.parametrize("tile", [16, 1024])
def test_shares_of_pixels(
    files: tuple[Path, Path], labels: np.ndarray, tmp_path: Path, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TILE", tile)
    result = zone_statistics(*files, tmp_path / "out.csv")
    for index, shape in enumerate(parcels()):
        expected = by_hand(labels, shape)
        assert result.hectares[index] == pytest.approx(expected[:3], abs=1e-9)
        assert result.nodata_ha[index] == pytest.approx(expected[NODATA], abs=1e-9)
        assert result.covered[index] == pytest.approx(expected[:3].sum() * 10_000 / shape.area, abs=1e-9)
    assert result.covered[3] == 0  # it lies elsewhere


def test_centres_of_pixels(files: tuple[Path, Path], labels: np.ndarray, tmp_path: Path) -> None:
    result = zone_statistics(*files, tmp_path / "out.csv", partial_pixels="centre")
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    x, y = TRANSFORM.c + (columns + 0.5) * 0.5, TRANSFORM.f - (rows + 0.5) * 0.5
    for index, shape in enumerate(parcels()):
        # A centre on the border itself belongs to one of two neighbours.
        least, most = (
            np.bincount(labels[inside], minlength=256)[:3] * PIXEL_HA
            for inside in (shapely.contains_xy(shape, x, y), shapely.intersects_xy(shape, x, y))
        )
        assert (result.hectares[index] >= least - 1e-12).all()
        assert (result.hectares[index] <= most + 1e-12).all()
    assert result.description == "planar, pixels on borders by centre"


@pytest.mark.parametrize("partial_pixels", ["share", "centre"])
def test_parcels_that_tile_the_map_add_up_to_it(
    files: tuple[Path, Path], tmp_path: Path, partial_pixels: Any
) -> None:
    x, y = [0, 17.3, 40, 71.77, WIDTH], [0, 33.33, 52, HEIGHT]
    boxes = [
        ground(shapely.box(x[i], y[j], x[i + 1], y[j + 1]))
        for i in range(len(x) - 1)
        for j in range(len(y) - 1)
    ]
    zones = write_shapes(tmp_path / "boxes.gpkg", boxes, "EPSG:2154", name=["box"] * len(boxes))
    result = zone_statistics(files[0], zones, tmp_path / "out.csv", partial_pixels=partial_pixels)
    areas = class_areas(files[0], CLASSES)
    assert result.hectares.sum(0) == pytest.approx([row.ha for row in areas.classes])
    assert result.nodata_ha.sum() == pytest.approx(areas.nodata.ha)


def test_a_coast_of_many_points(files: tuple[Path, Path], labels: np.ndarray, tmp_path: Path) -> None:
    angle = np.linspace(0, 2 * np.pi, 5000, endpoint=False)
    radius = 25 + 6 * np.sin(40 * angle) + np.sin(611 * angle)
    coast = ground(
        shapely.Polygon(np.column_stack([45 + radius * np.cos(angle), 35 + radius * np.sin(angle)]))
    )
    zones = write_shapes(tmp_path / "coast.gpkg", [shapely.make_valid(coast)], "EPSG:2154", name=["coast"])
    result = zone_statistics(files[0], zones, tmp_path / "out.csv")
    assert result.hectares[0] == pytest.approx(by_hand(labels, shapely.make_valid(coast))[:3], rel=1e-9)


def test_zones_in_another_crs(files: tuple[Path, Path], tmp_path: Path) -> None:
    here = zone_statistics(*files, tmp_path / "a.csv")

    def to_degrees(points: np.ndarray) -> np.ndarray:
        return np.column_stack(reproject(LAMBERT, CRS.from_epsg(4326), points[:, 0], points[:, 1]))

    shapes = [shapely.transform(shape, to_degrees) for shape in parcels()]
    far = shapely.box(-120, -60, -119, -59)  # where the projection of the map is of no use
    zones = write_shapes(tmp_path / "z.gpkg", [*shapes, far], "EPSG:4326", name=["x"] * (len(shapes) + 1))
    there = zone_statistics(files[0], zones, tmp_path / "b.csv")
    assert there.hectares[:-1] == pytest.approx(here.hectares, abs=2e-6)
    assert there.covered[-1] == 0


def test_maps_in_degrees(tmp_path: Path) -> None:
    transform = Affine(0.01, 0, 3, 0, -0.01, 60)
    labels = random_labels(50, 40, 3, seed=2)
    path = write_map(tmp_path / "map.tif", labels, CRS.from_epsg(4326), transform, classes=CLASSES)
    whole = ground(shapely.box(0, 0, 40, 50), transform)
    zones = write_shapes(tmp_path / "z.gpkg", [whole], "EPSG:4326", name=["all"])
    result = zone_statistics(path, zones, tmp_path / "out.csv")
    assert result.method == "ellipsoidal"
    assert result.hectares[0] == pytest.approx([row.ha for row in class_areas(path, CLASSES).classes])


def test_files(files: tuple[Path, Path], tmp_path: Path) -> None:
    result = zone_statistics(*files, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [f"parcel {number}" for number in range(len(rows))]
    assert [int(row["owner"]) for row in rows] == list(range(len(rows)))
    assert [int(row["zone"]) for row in rows] == result.fids.tolist()
    assert float(rows[0]["forest_ha"]) == pytest.approx(result.hectares[0, 1])
    assert "'=town_ha" in rows[0]  # not a formula in a spreadsheet
    assert {row["method"] for row in rows} == {"planar, pixels on borders by share"}
    zone_statistics(*files, tmp_path / "out.gpkg")
    meta, _, wkb, columns = read(tmp_path / "out.gpkg")
    content = dict(zip(meta["fields"].tolist(), columns, strict=True))
    assert content["=town_ha"] == pytest.approx(result.hectares[:, 2])
    assert content["owner"].tolist() == list(range(len(rows)))
    assert (shapely.from_wkb(wkb) == np.array(parcels(), object)).all()
    # Its own result is a file of zones like any other, whose figures are replaced.
    zone_statistics(files[0], tmp_path / "out.gpkg", tmp_path / "again.gpkg")
    meta, _, _, _ = read(tmp_path / "again.gpkg")
    assert len(meta["fields"]) == len(content)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        ["map.tif", "map.tif.aux.xml", "zones.gpkg", "out.csv", "out.gpkg", "again.gpkg"]
    )


@pytest.mark.parametrize("suffix", [".csv", ".gpkg"])
def test_fields_with_the_names_of_figures_are_kept(
    files: tuple[Path, Path], tmp_path: Path, suffix: str
) -> None:
    shape = ground(shapely.box(0, 0, 30, 30))
    names = ("zone", "zone_2", "method", "covered", "nodata_ha", "Forest_ha", "fid", "geom", "name")
    fields = {name: [f"my {name}"] for name in names}
    zones = write_shapes(tmp_path / "parcels.fgb", [shape], "EPSG:2154", **fields)
    out = tmp_path / f"out{suffix}"
    result = zone_statistics(files[0], zones, out)
    meta, _, _, columns = read(out)
    content = {
        name: column.tolist()[0] for name, column in zip(meta["fields"].tolist(), columns, strict=True)
    }
    renamed = {name: f"{name}_2" for name in names if name not in ("zone", "zone_2", "name")}
    renamed["zone"] = "zone_3"
    assert {name: content[renamed.get(name, name)] for name in names} == {
        name: f"my {name}" for name in names
    }
    assert int(content["zone"]) == result.fids[0]
    assert content["method"] == result.description
    assert float(content["forest_ha"]) == pytest.approx(result.hectares[0, 1])


def test_maps_without_names_list_the_classes_that_occur(tmp_path: Path, labels: np.ndarray) -> None:
    path = write_map(tmp_path / "map.tif", np.where(labels < 3, labels * 10, labels).astype(np.uint8))
    zones = write_shapes(tmp_path / "z.gpkg", [ground(shapely.box(0, 0, 30, 30))], "EPSG:2154", name=["a"])
    assert zone_statistics(path, zones, tmp_path / "o.csv").names == ("class 0", "class 10", "class 20")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"zones": "missing.gpkg"}, SceneError, "there is no such file"),
        ({"zones": "far.gpkg"}, SceneError, "lie outside the map"),
        ({"zones": "beside.gpkg"}, SceneError, "lie outside the map"),
        ({"zones": "nocrs.gpkg"}, SceneError, "zones .* have no CRS"),
        ({"zones": "points.gpkg"}, SceneError, "no polygon with an area"),
        ({"zones": "map.tif"}, SceneError, "cannot be read"),
        ({"zones": "infinite.gpkg"}, SceneError, "The zones .* not finite numbers"),
        ({"map": "nocrs.tif"}, SceneError, "no CRS in which areas can be measured"),
        ({"map": "missing.tif"}, SceneError, "There is no file"),
        ({"out": "out.shp"}, UsageError, r"`out` must end in \.csv or \.gpkg"),
        ({"out": "zones.gpkg"}, UsageError, "is an input"),
        ({"out": "none/out.csv"}, OutputError, "There is no folder"),
        ({"partial_pixels": "touched"}, UsageError, "`partial_pixels` must be share or centre"),
    ],
)
def test_what_cannot_be_measured(
    files: tuple[Path, Path],
    labels: np.ndarray,
    tmp_path: Path,
    change: dict[str, Any],
    error: type[IICError],
    message: str,
) -> None:
    write_map(tmp_path / "nocrs.tif", labels, None, classes=CLASSES)
    here = ground(shapely.box(0, 0, 9, 9))
    write_shapes(tmp_path / "far.gpkg", [shapely.box(-120, -60, -119, -59)], "EPSG:4326", name=["far"])
    write_shapes(tmp_path / "beside.gpkg", [ground(shapely.box(-9, 0, 0, 9))], "EPSG:2154", name=["beside"])
    write_shapes(tmp_path / "nocrs.gpkg", [here], None, name=["here"])
    endless = shapely.Polygon([(0, 0), (float("inf"), 0), (9, 9)])
    write_shapes(tmp_path / "infinite.gpkg", [here, endless], "EPSG:2154", name=["here", "endless"])
    write_shapes(tmp_path / "points.gpkg", [here.centroid], "EPSG:2154", name=["here"])
    before = sorted(tmp_path.iterdir())
    arguments = {"map": "map.tif", "zones": "zones.gpkg", "out": "out.csv", **change}
    paths = {key: tmp_path / arguments[key] for key in ("map", "zones", "out")}
    with pytest.raises(error, match=message):
        zone_statistics(**{**arguments, **paths})
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("west", [179.93, 199.93, -180.07])
@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3832"])
def test_across_the_antimeridian(tmp_path: Path, west: float, crs: str) -> None:
    """The same areas as around longitude 0, whichever side of the antimeridian zones are written on."""
    labels = random_labels(10, 14, 3, seed=2)
    boxes = [shapely.box(0.021, -0.06, 0.083, -0.02), shapely.box(0.08, -0.09, 0.125, -0.03)]

    def measure(name: str, left: float, shapes: list[Any], crs: str) -> Any:
        transform = Affine(0.01, 0, left, 0, -0.01, 0)
        path = write_map(tmp_path / f"{name}.tif", labels, CRS.from_epsg(4326), transform, classes=CLASSES)
        zones = write_shapes(tmp_path / f"{name}.gpkg", shapes, crs, name=["a", "b"])
        return zone_statistics(path, zones, tmp_path / f"{name}.csv")

    def usual(points: np.ndarray) -> np.ndarray:
        """Longitudes from -180 to 180, or the same places in the other CRS."""
        longitudes, latitudes = points[:, 0] + west, points[:, 1]
        if crs == "EPSG:4326":
            return np.column_stack([longitudes - 360 * round(longitudes.mean() / 360), latitudes])
        return np.column_stack(reproject("EPSG:4326", crs, longitudes, latitudes))

    plain = measure("plain", 0.0, boxes, "EPSG:4326")
    across = measure("across", west, [shapely.transform(box, usual) for box in boxes], crs)
    assert plain.hectares.sum() > 0
    np.testing.assert_allclose(across.hectares, plain.hectares, rtol=1e-4)
    np.testing.assert_allclose(across.covered, plain.covered, rtol=1e-4)


def test_a_zone_around_the_whole_earth_is_counted_once(tmp_path: Path) -> None:
    labels = np.zeros((10, 14), np.uint8)
    path = write_map(
        tmp_path / "map.tif",
        labels,
        CRS.from_epsg(4326),
        Affine(0.01, 0, 179.93, 0, -0.01, 0),
        classes=CLASSES,
    )
    zones = write_shapes(tmp_path / "zones.gpkg", [shapely.box(-180, -10, 180, 10)], "EPSG:4326", name=["a"])
    result = zone_statistics(path, zones, tmp_path / "out.csv")
    assert result.hectares[0, 0] == pytest.approx(class_areas(path, CLASSES).classes[0].ha)
    assert result.covered[0] == pytest.approx(140 * 0.01**2 / (360 * 20))
