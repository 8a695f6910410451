"""The scenes that names stand for: rasters, lists of them, and items of STAC catalogues."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.gdal import name_without_sidecars
from iic_geotools.scene.composition import apply_mask, expand_palette
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.products import AUTO, Product, auto_mask, find_product
from iic_geotools.scene.stac import Item, Pick, is_stac, read_items
from iic_geotools.scene.valuemask import MaskArgument, ValueMask

LIST_SUFFIXES = (".txt", ".lst")
NAME = "{name}"
"""Stands for the name of a scene in the names of files."""
AssetArgument = str | Sequence[str]
"""An asset of STAC items, or several, by name or by the common names of bands."""


@dataclass(frozen=True)
class ListedScene:
    """A scene in a list.

    Attributes:
        path: Path or address of the scene, or of its first asset.
        name: Name of its map without a suffix.
        item: The STAC item that it comes from, if it does.
        picks: What is taken of the item.
        mask: Where it holds no data, if the user says so.
        product: The folder or archive of band files that it is, if it is one.
    """

    path: str
    name: str
    item: Item | None = None
    picks: tuple[Pick, ...] = ()
    mask: ValueMask | None = None
    product: Product | None = None

    def describe(self) -> SceneInfo:
        """Describe the scene.

        Raises:
            SceneError: The scene or its mask cannot be opened, or they do not lie on each other.
        """
        if self.item is not None:
            return self.item.describe(self.picks, self.mask)
        if self.product is not None:
            return self.product.describe(self.mask)
        info = describe(self.path)
        if info.interpretations == ("palette",):
            info = expand_palette(info)
        return info if self.mask is None else apply_mask(info, self.mask)


def find_scene(
    name: str | os.PathLike[str], asset: AssetArgument | None = None, mask: MaskArgument | None = None
) -> SceneInfo:
    """Describe the scene that a name stands for.

    Args:
        name: A raster, anything GDAL opens; a STAC item, a file or an address; or a product, a folder or an archive
            with one file per band.
        asset: The asset of a STAC item that is the scene, or several that are its bands; by default the only one with
            the role "data".
        mask: A raster, or an asset of the item, and those of its values at which the scene holds no data; or "auto"
            for the cloud mask that comes with a product.

    Raises:
        UsageError: The name stands for several scenes, or `asset` does not suit it.
        SceneError: The scene cannot be opened.
    """
    scenes = _list([os.fspath(name)], asset, mask, lists=False)
    if len(scenes) > 1:
        raise UsageError(f"{name} holds {len(scenes)} scenes; give a folder as `out`.")
    return scenes[0].describe()


def list_scenes(
    names: Sequence[str], asset: AssetArgument | None = None, mask: MaskArgument | None = None
) -> list[ListedScene]:
    """The scenes that names stand for.

    Args:
        names: Rasters, text files with one scene per line (`#` begins a comment), STAC items or item collections.
        asset: As in `find_scene`.
        mask: As in `find_scene`, with `{name}` for the name of each scene.

    Raises:
        UsageError: There is no scene, `asset` does not suit one of them, or the maps of two scenes would have the same
            name.
        SceneError: A list cannot be read.
    """
    return _list(names, asset, mask, lists=True)


def _list(
    names: Sequence[str], asset: AssetArgument | None, mask: MaskArgument | None, lists: bool
) -> list[ListedScene]:
    """The scenes that names stand for; a text file may be a list or, as GDAL knows such rasters too, a scene."""
    assets = [asset] if isinstance(asset, str) else asset
    if assets is not None and not all(assets or [""]):
        raise UsageError("`asset` takes names of assets, separated by commas, and none of them is empty.")
    chosen = mask if mask is None or isinstance(mask, str) else ValueMask.of(mask)
    if isinstance(chosen, str) and chosen != AUTO:
        raise UsageError(f'`mask` is "{AUTO}", or a raster and values, not "{chosen}".')
    scenes = [scene for name in names for scene in _expand(name, assets, lists)]
    if not scenes:
        raise UsageError("The list holds no scene.")
    if assets is not None and all(scene.item is None for scene in scenes):
        raise UsageError(f"`asset` is for STAC items, and {scenes[0].path} is not one.")
    return [_add_mask(scene, chosen) for scene in (_make_distinct(scenes) if lists else scenes)]


def _expand(name: str, assets: Sequence[str] | None, lists: bool) -> Iterator[ListedScene]:
    if is_stac(name):
        for item in read_items(name):
            picks = item.choose(assets)
            yield ListedScene(item.href(picks[0].asset), _file_name(item), item, picks)
    elif lists and Path(name).suffix.lower() in LIST_SUFFIXES:
        for entry in _read_list(name):
            yield from _expand(entry, assets, lists=False)
    elif (product := find_product(name)) is not None:
        yield ListedScene(name, product.name, product=product)
    else:
        yield ListedScene(name, _stem(name))


def _read_list(name: str) -> Iterator[str]:
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SceneError(f"Cannot read the list of scenes {name} ({error}).") from error
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield _locate(entry, Path(name))


def _locate(entry: str, file: Path) -> str:
    """The path of an entry of a list: as written if it exists or is not a local path, else beside the list."""
    beside = file.parent / entry
    with suppress(OSError, ValueError):  # names that no file can have
        if "://" not in entry and not Path(entry).exists() and beside.exists():
            return str(beside)
    return entry


def _add_mask(scene: ListedScene, mask: ValueMask | str | None) -> ListedScene:
    """Give a scene its mask: an asset of its item if there is one of that name, else a raster."""
    if mask is None:
        return scene
    if isinstance(mask, str):
        return replace(scene, mask=auto_mask(scene.path, scene.product))
    path, item = mask.path.replace(NAME, scene.name), scene.item
    if item is not None and path in item.assets:
        href = item.href(path)
        return replace(scene, mask=replace(mask, path=name_without_sidecars(href), name=href))
    if item is not None and "://" not in path and not path.startswith("/vsi") and not Path(path).exists():
        raise UsageError(f"`mask` is {path}, which is neither an asset of the item {item.id} nor a file.")
    return replace(scene, mask=replace(mask, path=path))


def _file_name(item: Item) -> str:
    """The id of an item as the name of a file."""
    name = re.sub(r"[/\\\0]", "-", item.id)
    if not name.strip(". "):
        raise UsageError(
            f"{item.base} has an item with the id {item.id!r}, which cannot be the name of a map."
        )
    return name


def _stem(path: str) -> str:
    return PurePosixPath(path.partition("?")[0].replace("\\", "/")).stem


def _make_distinct(scenes: Sequence[ListedScene]) -> list[ListedScene]:
    """Put the name of the folder before names that occur twice, e.g. of `a/ortho.tif` and `b/ortho.tif`."""
    counts = Counter(scene.name for scene in scenes)
    named = [
        scene
        if counts[scene.name] == 1
        else replace(scene, name=f"{PurePosixPath(scene.path).parent.name}-{scene.name}")
        for scene in scenes
    ]
    for name, count in Counter(scene.name for scene in named).items():
        if count > 1:
            raise UsageError(
                f"The maps of {count} scenes would be called {name}.tif; map them into separate folders."
            )
    return named
