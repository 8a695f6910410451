"""How a scene is understood before any map: bands, values, resolution, masks, and the model that would be used."""

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from PIL import Image, ImageDraw, ImageFont
from rasterio.windows import Window

from iic_geotools.errors import AssumptionWarning, IICError
from iic_geotools.files import check_writable, replacement
from iic_geotools.gdal import network_options
from iic_geotools.products.preview import scene_picture
from iic_geotools.scene.bands import COLOURS, USUAL_ORDER, Names, pick
from iic_geotools.scene.info import SceneInfo, open_raster
from iic_geotools.scene.listing import find_product, find_scene
from iic_geotools.scene.scene import SceneSource, value_sample
from iic_geotools.settings import PathLike, checked
from iic_runtime.model.card import Card
from iic_runtime.model.select import Model, ModelSelector, ground_resolution
from iic_runtime.raster.model_input import BandOrderError, choose_reading, read_bands
from iic_runtime.raster.novelty import foreign_share, wrong_gain
from iic_runtime.raster.plausibility import FOREIGN, describe_gain

_LOG = logging.getLogger(__name__)
SHEET, GAP, TITLE = 480, 10, 20
"""The longest side in pixels of a picture on the contact sheet, the gap around it and the height of its title."""
COMPOSITES = {"true colour": ("red", "green", "blue"), "infrared": ("nir", "red", "green")}
"""What the contact sheet shows."""


@dataclass(frozen=True)
class Band:
    """A band of a scene.

    Attributes:
        number: Its number, counted from 1.
        description: What the file calls it.
        name: What it is taken for: "red", "nir", ...
        model_band: The model's band that it is read as, if it is read.
    """

    number: int
    description: str | None
    name: str | None
    model_band: str | None


@dataclass(frozen=True)
class Look:
    """How a scene is understood.

    Attributes:
        title: What the scene is called.
        width: Number of its columns.
        height: Number of its rows.
        dtype: Data type of its first band.
        metres: Side of its pixels in metres; None if it is unknown.
        nodata: Its nodata value.
        masked: Whether a mask or alpha band says where there is data.
        cloud_mask: The cloud mask that comes with it, if one does.
        bands: Its bands.
        bands_by: How its bands are known.
        model: The model that would map it.
        notes: What is understood and assumed, in sentences.
        question: What must be answered before it can be mapped, if anything.
        novelty: Share of its spectra that are unlike those of the world; None for models that take other values.
    """

    title: str
    width: int
    height: int
    dtype: str
    metres: float | None
    nodata: float | None
    masked: bool
    cloud_mask: str | None
    bands: tuple[Band, ...]
    bands_by: str
    model: str
    notes: tuple[str, ...]
    question: str | None
    novelty: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        content = asdict(self)
        if self.nodata is not None and not math.isfinite(self.nodata):
            content["nodata"] = str(self.nodata)
        return content

    def lines(self) -> list[str]:
        """Return all of it in sentences."""
        size = "unknown size" if self.metres is None else f"{self.metres:.3g} m"
        masks = ["a mask"] if self.masked else []
        masks += [] if self.nodata is None else [f"nodata {self.nodata:g}"]
        lines = [
            f"{self.title}: {self.width} x {self.height} px of {size}, "
            f"{len(self.bands)} band{'s'[: len(self.bands) - 1]} of {self.dtype}, "
            f"{' and '.join(masks) or 'no mask and no nodata value'}",
        ]
        for band in self.bands:
            read = "" if band.model_band is None else f", read as {band.model_band}"
            lines.append(f"  {band.number} {band.description or 'unnamed'}: {band.name or 'unknown'}{read}")
        known = "have no names" if self.bands_by == USUAL_ORDER else f"known by {self.bands_by}"
        lines.append(f"Bands {known}. Model: {self.model}.")
        lines += self.notes
        if self.cloud_mask:
            lines.append(f"Cloud mask: {self.cloud_mask}; `mask` auto applies it.")
        if self.novelty is not None:
            foreign = ": foreign to the model, label some points" if self.novelty > FOREIGN else ""
            lines.append(
                f"{100 * self.novelty:.0f} % of the spectra are unlike those that the models know{foreign}."
            )
        if self.question:
            lines.append(f"Question: {self.question}")
        return lines


@checked
def look(scene: PathLike, model: Model | None = None, sheet: PathLike | None = None) -> Look:
    """Report how a scene is understood, before any map is made.

    Args:
        scene: The scene, as in `segment_raster`.
        model: The model that would map it; by default the one that `segment_raster` would take.
        sheet: Also write a contact sheet to this file, .png: true colour and infrared, as the bands are understood.

    Raises:
        IICError: The scene or the model cannot be opened, or the sheet cannot be written.
    """
    with warnings.catch_warnings(record=True) as expanded:
        warnings.simplefilter("always", AssumptionWarning)
        info = find_scene(scene)
    if sheet is not None:
        check_writable(
            [(Path(sheet), (".png",), "sheet")], map(Path, (info.path, *info.files)), overwrite=True
        )
    product = find_product(str(scene))
    source: SceneSource | None = None
    question: str | None = None
    doubtful: tuple[Names, ...] = ()
    with rasterio.Env(**network_options(info.path)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AssumptionWarning)
        card = ModelSelector(model).for_scene(info).card
        try:
            source = replace(choose_reading(info, card), grid=None)  # looked at in its own pixels
        except IICError as error:
            question = str(error)
            doubtful = error.readings if isinstance(error, BandOrderError) else ()
        said = [
            str(entry.message)
            for entry in (*expanded, *caught)
            if issubclass(entry.category, AssumptionWarning)
        ]
        known = source.notes if source else ()
        # Warnings name the scene, notes do not.
        heard = {note.lower() for note in known}
        notes = (
            *known,
            *(text for text in said if text.replace(info.title, "the scene").lower() not in heard),
        )
        read = {} if source is None else read_bands(card, source)
        if sheet is not None:
            _write_sheet(info, read, doubtful, Path(sheet))
        mask = product.mask if product else None
        novelty, gain = (None, 1.0) if source is None else _compare(info, card, source)
        if gain != 1:
            notes = (*notes, describe_gain(gain))
        return Look(
            title=info.title,
            width=info.grid.width,
            height=info.grid.height,
            dtype=info.dtypes[0],
            metres=ground_resolution(info.grid),
            nodata=info.nodata,
            masked=info.has_mask(tuple(read.values()) or (1,)),
            cloud_mask=mask.path if mask else None,
            bands=_list_bands(info, read),
            bands_by=info.bands.reason,
            model=card.name,
            notes=notes,
            question=question,
            novelty=novelty,
        )


def _list_bands(info: SceneInfo, read: dict[str, int]) -> tuple[Band, ...]:
    by_number = {number: name for name, number in read.items()}
    bands = []
    for number, description in enumerate(info.descriptions, 1):
        alpha = "alpha" if info.interpretations[number - 1] == "alpha" else None
        name = info.bands.certain[number - 1] or by_number.get(number) or alpha
        bands.append(Band(number, description, name, by_number.get(number)))
    return tuple(bands)


def _compare(info: SceneInfo, card: Card, source: SceneSource) -> tuple[float | None, float]:
    """Return the share of spectra that are unlike those of the world, and the factor they seem too dark by."""
    if card.values != "reflectance":
        return None, 1.0
    sample = value_sample(source, info, skip_empty=True)
    if source.rescale is not None:
        sample = source.rescale.apply(sample[:, None], "float32")[:, 0]
    values = np.zeros((len(card.bands), sample.shape[1]))
    values[list(source.positions)] = sample
    return foreign_share(card, source, values), wrong_gain(card, source, values)


def _write_sheet(info: SceneInfo, read: dict[str, int], doubtful: Sequence[Names], out: Path) -> None:
    """Draw the scene in true colour and in infrared, as far as it has these bands, in each reading that is likely."""
    shown: dict[str, tuple[int, ...]] = {}
    for number, names in enumerate(doubtful or info.bands.readings[:1], 1):
        bands = {name: read.get(name) or (pick(names, name) or (0,))[0] for name in COLOURS}
        for title, order in COMPOSITES.items():
            numbers = tuple(bands[name] for name in order)
            if all(numbers):
                listed = ", ".join(f"{name} {band}" for name, band in zip(order, numbers, strict=True))
                prefix = f"Reading {number}, {title}" if doubtful else title.capitalize()
                shown[f"{prefix}: {listed}"] = numbers
    shown = shown or {"Band 1": (1,)}
    width, height = info.grid.width, info.grid.height
    scale = min(1.0, SHEET / max(width, height))
    if max(width, height) < SHEET // 2:
        scale = SHEET // 2 // max(width, height)  # tiny scenes in large pixels
    size = max(1, round(width * scale)), max(1, round(height * scale))
    columns = min(2, len(shown))
    across, down = max(size[0], SHEET // 2) + GAP, size[1] + TITLE + GAP
    picture = Image.new("RGB", (columns * across + GAP, -(-len(shown) // columns) * down + GAP), "#ffffff")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(TITLE - 6)
    with open_raster(info.path, info.name) as dataset:
        window = Window(0, 0, width, height)
        for index, (title, numbers) in enumerate(shown.items()):
            x, y = GAP + index % columns * across, GAP + index // columns * down
            draw.text((x, y), title, font=font, fill="#444444")
            picture.paste(Image.fromarray(scene_picture(dataset, window, size, numbers)), (x, y + TITLE))
    with replacement(out) as temporary:
        picture.save(temporary, format="PNG")
