"""What the tags of a raster say about its bands and its sensor."""

import re
from pathlib import PurePosixPath
from typing import Any

_NAME_KEYS = ("eo:common_name", "common_name", "bandname", "band_name", "long_name", "standard_name", "name")
_LENGTH_KEYS = re.compile(r"^(?:central?_?)?wavelength(?:_um|_nm)?$|^center_wavelength$", re.IGNORECASE)
_PRODUCT_KEYS = re.compile(
    r"PRODUCT|SPACECRAFT|SATELLITE|SENSOR|PLATFORM|INSTRUMENT|IMAGEDESCRIPTION|DOCUMENTNAME|LANDSAT|(?:^|_)ID$",
    re.IGNORECASE,
)
_SHORTEST_NM = 100.0
"""Smaller numbers are wavelengths in micrometres."""
_MOST_TEXT = 2000
_XMP_WAVELENGTHS = re.compile(r"CentralWavelength(?:=\"|>)(.*?)(?:\"|</\w+:CentralWavelength>)", re.DOTALL)
_XMP_NAMES = re.compile(r"BandName(?:=\"|>)(.*?)(?:\"|</\w+:BandName>)", re.DOTALL)


def read_descriptions(dataset: Any) -> tuple[str | None, ...]:
    """The descriptions of the bands of an open raster, or else their names in tags."""
    descriptions = tuple(text or None for text in dataset.descriptions)
    if all(descriptions):
        return descriptions
    listed = _listed(dataset, "band_names", _XMP_NAMES)
    return tuple(
        text or _tag_name(dataset, band) or (listed[band - 1] if listed else None)
        for band, text in enumerate(descriptions, 1)
    )


def read_wavelengths(dataset: Any) -> tuple[float | None, ...]:
    """The central wavelengths of the bands of an open raster in nm, as far as tags state them; empty if none is."""
    listed = _listed(dataset, "wavelength", _XMP_WAVELENGTHS)
    lengths = tuple(
        _nanometres(_tag_length(dataset, band) or (listed[band - 1] if listed else ""))
        for band in range(1, int(dataset.count) + 1)
    )
    return lengths if any(lengths) else ()


def read_product(dataset: Any, path: str) -> str:
    """Texts that may name the product or sensor of an open raster: the name of its file, and tags."""
    tags = {**dataset.tags(ns="IMD"), **dataset.tags(ns="IMAGERY"), **dataset.tags()}
    texts = [value for key, value in tags.items() if _PRODUCT_KEYS.search(key)]
    # The name of a virtual raster that is text is its whole content.
    names = [] if path.lstrip().startswith("<") else list(PurePosixPath(path.partition("?")[0]).parts[-3:])
    return "\n".join(names + texts)[:_MOST_TEXT]


def _tag_name(dataset: Any, band: int) -> str | None:
    tags = {key.lower(): value for key, value in dataset.tags(band).items()}
    name = next((tags[key] for key in _NAME_KEYS if tags.get(key)), None)
    return name if name and name.isprintable() else None


def _tag_length(dataset: Any, band: int) -> str:
    tags = {**dataset.tags(band, ns="IMAGERY"), **dataset.tags(band)}
    return next((str(value) for key, value in tags.items() if _LENGTH_KEYS.match(key)), "")


def _listed(dataset: Any, key: str, xmp: re.Pattern[str]) -> list[str] | None:
    """What the header of ENVI, or the XMP of a camera, lists for the bands; None if it is not one entry per band."""
    text = dataset.tags(ns="ENVI").get(key, "")
    entries = [entry.strip() for entry in text.strip("{} \n").split(",")] if text else []
    if not entries:
        match = xmp.search(dataset.tags(ns="xml:XMP").get("xml:XMP", ""))
        if match:
            items = re.findall(r"<rdf:li>(.*?)</rdf:li>", match[1]) or [match[1]]
            entries = [item.strip() for item in items]
    return entries if len(entries) == dataset.count else None


def _nanometres(text: str) -> float | None:
    match = re.search(r"\d+(?:\.\d+)?", text)
    if match is None:
        return None
    length = float(match[0])
    if not 0 < length < 1e5:
        return None
    return length * 1000 if length < _SHORTEST_NM else length
