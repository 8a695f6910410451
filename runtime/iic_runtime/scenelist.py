"""A list of scenes: names as they are, text files of names, STAC items; each with a name for its map."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from iic_geotools.errors import SceneError, UsageError

TEXT = (".txt", ".lst")
STAC = (".json", ".geojson")


@dataclass(frozen=True)
class ListedScene:
    """A scene to map: where it is, and what its map is called, without a suffix."""

    path: str
    name: str


def is_list(name: str) -> bool:
    """Whether a name is that of a list of scenes, by its suffix."""
    return Path(name).suffix.lower() in (*TEXT, *STAC)


def list_scenes(names: Sequence[str], asset: str | None = None) -> list[ListedScene]:
    """The scenes that `names` stand for.

    Args:
        names: scenes, text files with one scene a line (`#` begins a comment), STAC items or item collections.
        asset: which of a STAC item's assets is the scene; by default the only one with the role "data".

    Raises:
        UsageError: no scene, or two whose maps would have one name.
        SceneError: a list cannot be read.
    """
    scenes = [scene for name in names for scene in _expand(name, asset)]
    if not scenes:
        raise UsageError("The list holds no scene.")
    return _told_apart(scenes)


def _expand(name: str, asset: str | None) -> Iterator[ListedScene]:
    if not is_list(name):
        yield ListedScene(name, _stem(name))
        return
    file = Path(name)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SceneError(f"Cannot read the list of scenes {name} ({error}).") from error
    if file.suffix.lower() in STAC:
        yield from _stac_scenes(file, text, asset)
        return
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith("#"):
            path = _located(entry, file)
            yield ListedScene(path, _stem(path))


def _stac_scenes(file: Path, text: str, asset: str | None) -> Iterator[ListedScene]:
    try:
        content = json.loads(text)
        items = content["features"] if content["type"] == "FeatureCollection" else [content]
        for item in items:
            href = _pick(item["id"], item["assets"], asset)["href"]
            yield ListedScene(_located(href.removeprefix("file://"), file), str(item["id"]).replace("/", "-"))
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise SceneError(
            f"{file} is neither a STAC item nor an item collection; list the scenes in a text file instead."
        ) from error


def _pick(item: str, assets: dict[str, Any], asset: str | None) -> dict[str, Any]:
    if asset is not None and asset in assets:
        return dict(assets[asset])
    data = [key for key in assets if "data" in assets[key].get("roles", ())]
    fitting = data or list(assets)
    if asset is None and len(fitting) == 1:
        return dict(assets[fitting[0]])
    raise UsageError(
        f"Which asset of the item {item} is the scene? Give --asset, one of {', '.join(sorted(assets))}."
    )


def _located(entry: str, file: Path) -> str:
    """A name in a list: as written if that is there (or is no local path), else beside the list."""
    beside = file.parent / entry
    if "://" not in entry and not Path(entry).exists() and beside.exists():
        return str(beside)
    return entry


def _stem(path: str) -> str:
    return PurePosixPath(path.partition("?")[0].replace("\\", "/")).stem


def _told_apart(scenes: Sequence[ListedScene]) -> list[ListedScene]:
    """Scenes of one name, e.g. `a/ortho.tif` and `b/ortho.tif`, get the name of their folder in front."""
    counts = Counter(scene.name for scene in scenes)
    named = [
        scene
        if counts[scene.name] == 1
        else ListedScene(scene.path, f"{PurePosixPath(scene.path).parent.name}-{scene.name}")
        for scene in scenes
    ]
    for name, count in Counter(scene.name for scene in named).items():
        if count > 1:
            raise UsageError(
                f"{count} scenes would have the map {name}.tif; map them into folders of their own."
            )
    return named
