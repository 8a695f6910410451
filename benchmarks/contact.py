"""Whether scenes are understood: each is written in every way that people store scenes, and read without an option.

    python benchmarks/contact.py DATA [--leave-out] [--every N]

Scenes of known reflectance under DATA/pool, the two examples, and aerial chips are written as reflectance x 1000,
with the names of sensors or without any, as products in folders and archives, and so on. Each file is then described
and read for the bundled model that fits it, as `iic-segment-raster` does before it labels the first pixel. Printed
are, for each way, how many were understood right (bands and values), how many of the others asked or warned, how many
were wrong in silence, and the seconds of CPU that understanding takes, as a median and of the slowest file. Where the
values cannot be known, as those of raw numbers and of stretched imagery, the right answer is a warning; where a file
contradicts itself, it is a question. The bundled models are read as if infrared were optional.

The mixture of spectra that decides was fitted on some of these scenes. With --leave-out it is fitted again for every
scene, without the folder that the scene is in.
"""

import argparse
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from PIL import Image
from rasterio.enums import ColorInterp
from rasterio.transform import from_origin

from iic_geotools.errors import AssumptionWarning, IICError
from iic_geotools.scene import spectra
from iic_geotools.scene.listing import find_scene
from iic_geotools.scene.spectra import World
from iic_geotools.tiling import Rect
from iic_runtime.model.card import Card
from iic_runtime.model.select import ModelSelector
from iic_runtime.raster.model_input import choose_reading

SATELLITE = (
    "s2_ftw/*window0", "s2_ftw/*window1", "s2_rondonia/*20LLQ*", "s2_rondonia/*20LMR*", "s2_california_rcv/*2020*",
    "s2_dsen2/*iran*", "s2_dsen2/S2B*", "s2_opengeos_cog/*", "s2_worldcereal_belgium/*month02", "s2_demmin/*",
    "landsat_ontario/*37884*", "landsat_ontario/*6642*", "landsat8_chesapeake/*leafon", "landsat8_chesapeake/*leafoff",
    "landsat7_gewata/*", "landsat7_chiapas/*1999", "landsat8_taylorsville/*", "hls_terratorch/*", "sen12ms_samples/*",
    "s2_alberta_clouds/*2019-05-22", "neon_woods_rgbn1m/*SJER*4104000*",
)  # fmt: skip
AERIAL = (
    "flair/zone1_rgbir.tif",
    "naip/bishop_2020_0.tif",
    "naip/chico_2018_16.tif",
    "pool/naip_misc/*2010*_rgbn.tif",
)
SIDE = 400
ORIGIN = (500000.0, 5400000.0)
RGBN = ("red", "green", "blue", "nir")
BGRN = ("blue", "green", "red", "nir")
SHIFTED = "S2A_MSIL2A_20220315T101031_N0400_R022_T32UPU_20220315T141522"
LANDSAT = "LC08_L2SP_017051_20151205_20200908_02_T1"
ANY: Any = "any values: unknown on purpose"
Picture = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A file and what it must be understood as.

    Attributes:
        way: How the scene is stored.
        path: The file, folder or archive.
        bands: The scene's bands for red, green, blue and infrared, counted from 1, as far as there are any; empty if
            the only right answer is a question.
        truth: Reflectance or 8-bit values [bands, H, W] of these bands; `ANY` if the values cannot be known.
    """

    way: str
    path: Path
    bands: tuple[int, ...]
    truth: Any


def write(path: Path, values: Picture, names: Sequence[str] | None = None, **profile: Any) -> Path:
    """Write a GeoTIFF, of 10 m unless said otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metres = profile.pop("metres", 10.0)
    colours, scales = profile.pop("colours", None), profile.pop("scales", None)
    place = {"crs": "EPSG:32632", "transform": from_origin(*ORIGIN, metres, metres)}
    settings = {"driver": "GTiff"} | place | profile
    count, height, width = values.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with rasterio.open(
            path, "w", width=width, height=height, count=count, dtype=values.dtype, **settings
        ) as dataset:
            dataset.write(values)
            if names:
                dataset.descriptions = tuple(names)
            if colours:
                dataset.colorinterp = colours
            if scales:
                dataset.scales, dataset.offsets = (scales[0],) * count, (scales[1],) * count
    return path


def whole(values: Picture, dtype: str = "uint16") -> Picture:
    """Round and clip to a whole type."""
    limits = np.iinfo(dtype)
    return np.asarray(np.clip(np.rint(values), limits.min, limits.max), dtype)


def satellite_cases(folder: Path, true: Picture, rng: np.random.Generator) -> Iterator[Case]:
    """Write a scene of known reflectance, red, green, blue and infrared, in every way."""
    r, plain, reverse = true, {"photometric": "MINISBLACK"}, true[[2, 1, 0, 3]]
    every, back = (1, 2, 3, 4), (3, 2, 1, 4)

    def case(
        way: str, bands: tuple[int, ...], truth: Any, values: Picture, *names: str, **profile: Any
    ) -> Case:
        name = f"{way.replace(' ', '-').replace('/', '-')}.tif"
        return Case(way, write(folder / name, values, names or None, **(plain | profile)), bands, truth)

    yield case("x 10000", every, r, whole(r * 1e4), *RGBN)
    yield case(
        "x 10000, signed, codes of Sentinel-2",
        back,
        r,
        whole(reverse * 1e4, "int16"),
        "B02",
        "B03",
        "B04",
        "B08",
    )
    yield case("x 1000", every, r, whole(r * 1e3), *RGBN)
    yield case("real numbers", every, r, r.astype(np.float32), *RGBN)
    yield case("per cent", every, r, (r * 100).astype(np.float32), *RGBN)
    yield case("x 10000 + 1000", every, r, whole(r * 1e4 + 1000), *RGBN)
    level2 = whole((r + 0.2) / 2.75e-5)
    yield case("Landsat level 2, SR_B4", every, r, level2, "SR_B4", "SR_B3", "SR_B2", "SR_B5")
    yield case("Landsat level 2, nir08", every, r, level2, "red", "green", "blue", "nir08")
    twelve = np.stack([r[2], r[2], r[1], r[0], *(r[0] + (r[3] - r[0]) * part for part in (0.3, 0.7, 0.9)), r[3],
                       r[3], r[3] * 0.9, r[3] * 0.7, r[0]])  # fmt: skip
    codes = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
    yield case("12 bands B01..B12", (4, 3, 2, 8), r, whole(twelve * 1e4), *codes)
    yield case("no names, R G B N", every, r, whole(r * 1e4))
    yield case("no names, B G R N", back, r, whole(reverse * 1e4))
    yield case("RGB only", (1, 2, 3), r[:3], whole(r[:3] * 1e4), *RGBN[:3])
    holes, blank = r.copy(), whole(r * 1e4, "int16")
    top = r.shape[1] // 10
    holes[:, :top], blank[:, :top] = np.nan, -9999
    yield case("-9999 without a nodata value", every, holes, blank, *RGBN)
    strange = ("red", "green", "blue", "quux")
    yield case("infrared with a strange name", every[:3], ANY, whole(r * 1e4), *strange)
    yield case("names in Russian", back, r, whole(reverse * 1e4), "Синий", "Зелёный", "Красный", "Ближний ИК")
    yield case("no CRS, but a transform", every, r, whole(r * 1e4), *RGBN, crs=None)
    yield case("no CRS", every, r, whole(r * 1e4), *RGBN, crs=None, transform=None)
    low, high = np.percentile(r, (2, 98), axis=(1, 2))[..., None, None]
    stretched = whole((r - low) / (high - low) * 253 + 1, "uint8")
    yield case("stretched to 8 bits", every, ANY, stretched, *RGBN)
    yield case("infrared picture, 8 bits", (), ANY, stretched[[3, 0, 1]], photometric="RGB")
    yield case("x 65535", every, r, whole(r * 65535), *RGBN)
    masked = np.concatenate([whole(reverse * 1e4), np.full((1, *r.shape[1:]), 65535, np.uint16)])
    yield case("no names, B G R N and a mask", back, r, masked)
    decibels = (10 * np.log10(np.maximum(r, 1e-3)) - 5).astype(np.float32)
    yield case("radar in decibels, no names", (), ANY, decibels)
    default = (ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha)
    yield case("8 bits, B02 B03 B04 nir, default colours", back, ANY, stretched[[2, 1, 0, 3]], "B02", "B03", "B04",
               "nir", colours=default)  # fmt: skip
    for bits in (11, 12):
        gains = rng.uniform(0.5, 1.1) * np.exp(rng.normal(0, 0.25, 4))
        air = np.array([0.03, 0.05, 0.08, 0.01])
        raw = np.clip(np.rint((r + air[:, None, None]) * gains[:, None, None] * 2**bits), 0, 2**bits - 1)
        yield case(f"raw numbers of {bits} bits", every, ANY, raw.astype(np.uint16), *RGBN)
    yield case("scale and offset in the file", every, r, whole((r + 0.3) / 5e-5), *RGBN, scales=(5e-5, -0.3))
    contradiction = (ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.undefined)
    yield case("B02 is red, says its colour", (), ANY, whole(np.repeat(reverse, 2, 0)[:5] * 1e4), "B02", "B03", "B04",
               "nir", "swir22", colours=(*contradiction, ColorInterp.undefined))  # fmt: skip
    yield from _product_cases(folder, r)
    yield from _bundle_cases(folder, r)


def _product_cases(folder: Path, r: Picture) -> Iterator[Case]:
    """Write a scene as products: one file per band. The order of the bands is that of their names."""
    even = r[:, : r.shape[1] // 2 * 2, : r.shape[2] // 2 * 2]
    files = []
    for name, band in zip(("B04", "B03", "B02", "B08"), even, strict=True):
        files.append(write(folder / f"plain/{name}.tif", whole(band[None] * 1e4)))
    coarse = even[3].reshape(even.shape[1] // 2, 2, even.shape[2] // 2, 2).mean((1, 3))
    files.append(write(folder / "plain/B11.tif", whole(coarse[None] * 1e4), metres=20.0))
    yield Case("a folder of bands, 10 and 20 m", folder / "plain", (3, 2, 1, 4), even)
    with zipfile.ZipFile(folder / "plain.zip", "w") as archive:
        for file in files:
            archive.write(file, f"scene/{file.name}")
    yield Case("a zip of bands", folder / "plain.zip", (3, 2, 1, 4), even)
    images = folder / f"safe/{SHIFTED}.SAFE/GRANULE/L2A/IMG_DATA/R10m"
    for name, band in zip(("B04", "B03", "B02", "B08"), even, strict=True):
        write(images / f"T32UPU_20220315T101031_{name}_10m.jp2", whole(band[None] * 1e4 + 1000))
    yield Case(".SAFE, shifted", folder / "safe", (3, 2, 1, 4), even)
    for name, band in zip(("SR_B4", "SR_B3", "SR_B2", "SR_B5"), even, strict=True):
        write(folder / f"landsat/{LANDSAT}_{name}.TIF", whole((band[None] + 0.2) / 2.75e-5), metres=30.0)
    yield Case("Landsat Collection 2", folder / "landsat", (3, 2, 1, 4), even)


def _bundle_cases(folder: Path, r: Picture) -> Iterator[Case]:
    """Write a scene as downloads of the Copernicus Browser and of PlanetScope."""
    stem = "2023-06-12-00:00_2023-06-12-23:59_Sentinel-2_L2A"
    for name, band in zip(("B04", "B03", "B02", "B08"), r, strict=True):
        write(folder / f"browser/{stem}_{name}_(Raw).tiff", whole(band[None] * 65535))
    yield Case("Copernicus Browser", folder / "browser", (3, 2, 1, 4), r)
    stem = "PSScene/20230501_101112_55_24a1_3B"
    write(folder / f"planet/{stem}_AnalyticMS_SR_clip.tif", whole(r[[2, 1, 0, 3]] * 1e4), metres=3.0)
    write(folder / f"planet/{stem}_udm2_clip.tif", np.ones((1, *r.shape[1:]), np.uint8), metres=3.0)
    yield Case("PlanetScope, clipped", folder / "planet", (3, 2, 1, 4), r)


def aerial_cases(folder: Path, image: Picture) -> Iterator[Case]:
    """Write an aerial image of 8 bits in the ways of cameras and surveys."""
    every, metres = (1, 2, 3, 4), {"metres": 0.5}
    plain = {"photometric": "MINISBLACK"} | metres
    truth = image.astype(float)
    yield Case("aerial", write(folder / "a.tif", image, RGBN, **plain), every, truth)
    yield Case("aerial, RGB by default", write(folder / "rgb.tif", image[:3], **metres), (1, 2, 3), truth[:3])
    yield Case("aerial, infrared picture", write(folder / "cir.tif", image[[3, 0, 1]], **metres), (), ANY)
    nameless = write(folder / "three.img", image[:3], driver="HFA", **metres)
    yield Case("aerial, RGB without names", nameless, (1, 2, 3), truth[:3])
    alpha = np.concatenate([image[:3], np.full_like(image[:1], 255)])
    alpha[:, :40] = 0
    kept = truth[:3].copy()
    kept[:, :40] = np.nan
    yield Case("aerial, RGBA", write(folder / "rgba.tif", alpha, **metres), (1, 2, 3), kept)
    yield Case("aerial, black border", write(folder / "b.tif", alpha[:3], **metres), (1, 2, 3), kept)
    paletted = Image.fromarray(np.moveaxis(image[:3], 0, -1)).quantize(256)
    table = np.array(paletted.getpalette(), np.uint8).reshape(-1, 3)
    index = np.asarray(paletted, np.uint8)
    path = write(folder / "p.tif", index[None], photometric="PALETTE", **metres)
    with rasterio.open(path, "r+") as dataset:
        dataset.write_colormap(1, {value: (*map(int, colour), 255) for value, colour in enumerate(table)})
    yield Case("aerial, paletted", path, (1, 2, 3), np.moveaxis(table[index], -1, 0).astype(float))
    deep = whole(image.astype(float) * 257)
    yield Case("aerial, 8 bits in 16", write(folder / "deep.tif", deep, RGBN, **plain), every, truth)
    raw = whole(image.astype(float) * 13)
    yield Case("aerial, 12 bits", write(folder / "raw.tif", raw, RGBN, **plain), every, ANY)
    yield Case("aerial, no names", write(folder / "none.tif", image, **plain), every, truth)
    described = write(folder / "s2.tif", image[[2, 1, 0, 3]], ("B02", "B03", "B04", "nir"), **metres)
    yield Case("aerial, B02 B03 B04 nir, default colours", described, (3, 2, 1, 4), truth)
    where: dict[str, Any] = {"crs": None, "transform": None}
    yield Case("aerial, no CRS", write(folder / "nowhere.tif", image, RGBN, **(plain | where)), every, truth)


@dataclass(frozen=True)
class Verdict:
    """How a case was understood."""

    right: bool
    warned: bool
    seconds: float
    what: str


def understand(case: Case) -> Verdict:
    """Describe and read a case without an option."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = time.process_time()
        try:
            info = find_scene(case.path)
            card = without_need_of_infrared(ModelSelector().for_scene(info).card)
            source = choose_reading(info, card, match_gsd=False)
        except IICError as error:
            return Verdict(not case.bands, True, time.process_time() - began, str(error))
        seconds = time.process_time() - began
    said = " ".join(str(entry.message) for entry in caught if issubclass(entry.category, AssumptionWarning))
    right = source.bidx == case.bands
    if right and case.truth is ANY:
        right = bool(said)
    elif right:
        with source.open() as scene:
            pixels = scene.read(Rect(0, 0, info.grid.width, info.grid.height))
        values = (pixels.values[: len(case.truth)] - card.offset[0]) * card.scale[0]
        truth = case.truth * (card.scale[0] if card.values is None else 1.0)
        error = np.nanmedian(np.abs(values - truth)) / np.nanmedian(np.abs(truth))
        outside = np.isnan(case.truth).all(0)
        declared = pixels.valid is not None and not pixels.valid[outside].any()
        right = bool(error < 0.03) and (declared or not outside.any())
    return Verdict(right, bool(said), seconds, said or f"bands {source.bidx}, {source.rescale}")


def without_need_of_infrared(card: Card) -> Card:
    """The card of a model that can do without infrared, if it is not one already."""
    return card if card.optional else replace(card, optional={"nir": 0 if card.dtype == "uint8" else -32768})


@contextmanager
def mixture_without(world: World | None) -> Iterator[None]:
    """Use another mixture than the one that comes with the package."""
    original = spectra.bundled_world
    if world is not None:
        spectra.bundled_world = lambda: world  # type: ignore[assignment]
    try:
        yield
    finally:
        spectra.bundled_world = original


def worlds_without(data: Path) -> Callable[[str], World]:
    """Return a function that fits the mixture without a folder, once for each."""
    from iic_research.spectra import fit_spectra, read_places

    places = read_places(data)
    return cache(lambda folder: fit_spectra(places, [folder]))


def read_scene(path: Path) -> Picture:
    """Read the upper left of a scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with rasterio.open(path) as dataset:
            side = (min(SIDE, dataset.height), min(SIDE, dataset.width))
            return np.asarray(dataset.read((1, 2, 3, 4), window=((0, side[0]), (0, side[1]))))


def scenes(data: Path) -> Iterator[tuple[str, Picture, Callable[..., Iterator[Case]]]]:
    """Yield the name, values and ways of every scene."""
    for pattern in SATELLITE:
        path = sorted((data / "pool").glob(f"{pattern}_rgbn.tif"))[0]
        yield f"{path.parent.name}/{path.stem}", np.maximum(read_scene(path), 0) / 1e4, satellite_cases
    examples = Path(__file__).parent.parent / "examples"
    yield "examples/sentinel2", np.maximum(read_scene(examples / "sentinel2.tif"), 0) / 1e4, satellite_cases
    for path in [examples / "scene.tif", *(sorted(data.glob(pattern))[0] for pattern in AERIAL)]:
        yield f"aerial/{path.stem}", read_scene(path), aerial_cases


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth scene only")
    parser.add_argument("--leave-out", action="store_true", help="fit the mixture without the scene's folder")
    arguments = parser.parse_args()
    fit = worlds_without(arguments.data) if arguments.leave_out else None
    rng = np.random.default_rng(0)
    verdicts: dict[str, list[Verdict]] = {}
    for name, image, ways in islice(scenes(arguments.data), 0, None, arguments.every):
        world = fit(name.split("/")[0]) if fit is not None and ways is satellite_cases else None
        with tempfile.TemporaryDirectory() as temporary, mixture_without(world):
            extra = (rng,) if ways is satellite_cases else ()
            for case in ways(Path(temporary), image, *extra):
                verdict = understand(case)
                verdicts.setdefault(case.way, []).append(verdict)
                if not verdict.right:
                    state = "asked or warned" if verdict.warned else "WRONG IN SILENCE"
                    print(f"{name}, {case.way}: {state}: {verdict.what[:300]}", flush=True)
    _print_table(verdicts)


def _print_table(verdicts: dict[str, list[Verdict]]) -> None:
    print(f"\n{'way':45} files right  asked/warned  silent  seconds  slowest")
    for way, results in [
        *verdicts.items(),
        ("all", [entry for found in verdicts.values() for entry in found]),
    ]:
        right = sum(result.right for result in results)
        warned = sum(not result.right and result.warned for result in results)
        silent = sum(not result.right and not result.warned for result in results)
        seconds = [result.seconds for result in results]
        figures = f"{np.median(seconds):8.2f} {max(seconds):8.2f}"
        print(f"{way:45} {len(results):5} {right:5} {warned:13} {silent:7} {figures}")


if __name__ == "__main__":
    main()
