"""Scenes of a place and time, from the catalogue of any STAC API, as a list that can be mapped."""

import json
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin
from urllib.request import Request

from iic_geotools.addresses import HEADERS, is_web, read, send
from iic_geotools.errors import MissingPackageError, SceneError, UsageError
from iic_geotools.files import check_writable, write_atomically
from iic_geotools.options import SearchSettings
from iic_geotools.scene.listing import MOST_ITEMS, SUFFIXES, parse_item
from iic_geotools.scene.region import Bounds
from iic_geotools.settings import PathLike, takes

_LOG = logging.getLogger(__name__)
PAGE = 100
CLOUD_COVER = "eo:cloud_cover"
_DATE_FORMATS = {4: "%Y", 7: "%Y-%m", 10: "%Y-%m-%d"}


@dataclass(frozen=True)
class CatalogueScene:
    """A scene of a catalogue.

    Attributes:
        id: Its identifier.
        time: When it was taken, as the catalogue writes it; empty if it does not say.
        cloud: Per cent of it under clouds, if known.
        assets: Names of its assets.
    """

    id: str
    time: str
    cloud: float | None
    assets: tuple[str, ...]

    def sentence(self) -> str:
        """Describe the scene in one line."""
        cloud = "" if self.cloud is None else f", {self.cloud:.0f} % clouds"
        return f"{self.id} {self.time[:10]}{cloud}"


@dataclass(frozen=True)
class SearchArguments(SearchSettings):
    """Arguments of `search_scenes`."""

    api: str
    out: PathLike


@takes(SearchArguments)
def search_scenes(arguments: SearchArguments) -> list[CatalogueScene]:
    """List the scenes of a place and time that a STAC API knows, as a STAC item collection.

    The list is a file that `segment_rasters` takes, and that GDAL opens as footprints.

    Args:
        api: Address of the API, https://.
        out: The list, .json or .geojson.

    Returns:
        The scenes, in the order in which the API returns them.

    Raises:
        UsageError: An argument cannot be right.
        SceneError: The API cannot be reached or searched, or knows no such scene. Nothing is written.
    """
    file, api, collection = Path(arguments.out), arguments.api, arguments.collection
    bbox, max_cloud, limit = arguments.bbox, arguments.max_cloud, arguments.limit
    _check_search(api, bbox, limit)
    dates = check_dates(arguments.dates)
    check_writable([(file, SUFFIXES, "out")], overwrite=arguments.overwrite)
    query = {"collections": [collection], "bbox": list(bbox), "datetime": dates, "limit": min(limit, PAGE)}
    items = list(islice(_search(api, query, max_cloud), limit + 1))
    if not items:
        clouds = "" if max_cloud is None else f" with at most {max_cloud:g} % clouds"
        raise SceneError(
            f"{api} knows no scene of {collection} in that place and time ({dates}){clouds}; search a larger box or a "
            "longer time, or check the name of the collection."
        )
    if len(items) > limit:
        items.pop()
        _LOG.warning("There are more than %d scenes, and the first ones are listed; give `limit`.", limit)
    content = {"type": "FeatureCollection", "features": items}
    write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False).encode())
    return [_describe(item) for item in items]


def check_dates(text: str) -> str:
    """Check a day, month or year, or the first and the last one."""
    first, slash, last = (part.strip() for part in text.partition("/"))
    ends = [first, last] if slash else [first]
    try:
        times = [None if end == ".." and slash else _parse_date(end) for end in ends]
    except ValueError:
        times = [None]
    if all(time is None for time in times):
        raise UsageError(
            f'`dates` takes a day, month or year, or two, e.g. 2024-06-01/2024-08-31, not "{text}".'
        )
    if None not in times and times != sorted(time for time in times if time is not None):
        raise UsageError(f"`dates` ends before it begins: {text}.")
    return "/".join(ends)


def _parse_date(text: str) -> datetime:
    if not re.fullmatch(r"\d{4}(-\d\d(-\d\d)?)?", text):
        raise ValueError(text)
    return datetime.strptime(text, _DATE_FORMATS[len(text)])


def _check_search(api: str, bbox: Bounds, limit: int) -> None:
    if not is_web(api):
        raise UsageError(f'`api` takes the address of a STAC API, https://..., not "{api}".')
    left, bottom, right, top = bbox
    if not (-180 <= left < right <= 180 and -90 <= bottom < top <= 90):
        raise UsageError(
            f"`bbox` takes left, bottom, right and top in degrees, left below right and bottom below top, not "
            f"{left:g} {bottom:g} {right:g} {top:g}."
        )
    if not 1 <= limit <= MOST_ITEMS:
        raise UsageError(f"`limit` takes 1 to {MOST_ITEMS}, not {limit}.")


def _search(api: str, query: dict[str, Any], max_cloud: float | None) -> Iterator[dict[str, Any]]:
    """Yield the items that an API returns, with full addresses of their assets."""
    try:
        from pystac.errors import STACError
        from pystac_client import Client
        from pystac_client.exceptions import APIError
        from pystac_client.stac_api_io import StacApiIO
        from pystac_client.warnings import DoesNotConformTo
    except ImportError as error:
        raise MissingPackageError.for_extra("pystac-client", "stac") from error

    class Reader(StacApiIO):
        """Reads answers within the limits of every download; the client's own way has none."""

        def request(
            self,
            href: str,
            method: str | None = None,
            headers: dict[str, str] | None = None,
            parameters: dict[str, Any] | None = None,
        ) -> str:
            posts = (method or "GET").upper() == "POST"
            body = json.dumps(parameters or {}).encode() if posts else None
            query = "" if posts or not parameters else f"{'&' if '?' in href else '?'}{urlencode(parameters)}"
            kind = {"Content-Type": "application/json"} if posts else {}
            try:
                with send(Request(href + query, body, {**HEADERS, **kind, **(headers or {})})) as answer:
                    return read(answer).decode()
            except HTTPError as error:
                with error:  # what it says is wrong with the query
                    text = read(error).decode(errors="replace")  # type: ignore[arg-type]
                raise APIError(text or f"{error.code} {error.reason}") from error

    try:
        with warnings.catch_warnings():
            # What an API does not declare shows when it is asked for it.
            warnings.simplefilter("ignore")
            client = Client.open(api, stac_io=Reader())
            if max_cloud is not None and client.conforms_to("QUERY"):
                query = query | {"query": {CLOUD_COVER: {"lte": max_cloud}}}
            for item in islice(client.search(**query).items_as_dicts(), MOST_ITEMS):
                if max_cloud is None or _cloud(item) <= max_cloud:
                    yield _with_addresses(item, api)
    except (NotImplementedError, DoesNotConformTo) as error:
        raise SceneError(f"{api} cannot be searched: it is not a STAC API with item search.") from error
    except (
        APIError, STACError, ValueError, LookupError, TypeError, AttributeError, OSError, HTTPException, RecursionError,
    ) as error:  # fmt: skip
        raise SceneError(
            f"{api} cannot be searched ({_reason(error)}); check that it is the address of a STAC API."
        ) from error


def _reason(error: Exception) -> str:
    """What an API or the network said, to be quoted within a sentence."""
    text = str(error).strip() or type(error).__name__
    network = re.search(r"\[Errno -?\d+\] ([\w ]+)|((?:Read )?timed out)", text)
    return (network[1] or network[2]) if network else text.splitlines()[0][:200].rstrip(".")


def _with_addresses(content: dict[str, Any], api: str) -> dict[str, Any]:
    """An item whose assets have full addresses: in a file of its own, relative ones would lead nowhere."""
    item = parse_item(content, api)
    own = [link.get("href") for link in content.get("links") or () if link.get("rel") == "self"]
    base = urljoin(api, own[0]) if own else api
    assets = {
        key: {**asset, "href": urljoin(base, asset["href"])} if isinstance(asset.get("href"), str) else asset
        for key, asset in item.assets.items()
    }
    return {**content, "assets": assets}


def _cloud(item: Mapping[str, Any]) -> float:
    """Per cent of an item under clouds; infinite if it does not say."""
    cover = (item.get("properties") or {}).get(CLOUD_COVER)
    return float(cover) if isinstance(cover, int | float) else math.inf


def _describe(item: Mapping[str, Any]) -> CatalogueScene:
    properties, cloud = item.get("properties") or {}, _cloud(item)
    time = properties.get("datetime") or properties.get("start_datetime") or ""
    return CatalogueScene(item["id"], str(time), None if cloud == math.inf else cloud, tuple(item["assets"]))
