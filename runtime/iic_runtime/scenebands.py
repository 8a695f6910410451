"""Which of a scene's bands are a model's; where some are missing, what can be done about it."""

from collections.abc import Sequence

from iic_geotools.bands import list_bands, match_bands, named_bands
from iic_geotools.errors import SceneError
from iic_geotools.scene import SceneInfo
from iic_runtime.card import Card


def scene_bands(info: SceneInfo, card: Card, given: Sequence[str] | None = None) -> tuple[int, ...]:
    """The scene's band, counted from 1, for each of the model's, in its order.

    Args:
        info: the scene.
        card: the model's.
        given: bands of the scene by name or number; by default those of the model's names.

    Raises:
        UsageError: `given` does not fit the model.
        SceneError: a band is missing, or two bands go by the same name.
    """
    if given is None:
        _check(info, card)
    return match_bands(card.bands, info.descriptions, info.interpretations, given)


def _check(info: SceneInfo, card: Card) -> None:
    found = {name: named_bands(name, info.descriptions, info.interpretations) for name in card.bands}
    missing = [name for name in card.bands if not found[name]]
    if not missing:
        return
    count = len(info.descriptions)
    others = [band for band in range(1, count + 1) if not any(band in bands for bands in found.values())]
    spare = iter(others)
    there = [name for name in card.bands if found[name]]
    order, which = ",".join(card.bands), " and ".join(missing)
    training = "iic-train rasters SCENE --classes 6 --bands " + ",".join(
        there or map(str, range(1, count + 1))
    )
    if len(others) < len(missing):
        way = f", but {card.name} takes {order}; train a model on the bands there are: {training}"
    else:
        example = ",".join(str(found[name][0] if found[name] else next(spare)) for name in card.bands)
        way = f"; say which of its bands are {order}, in that order, with --bands, e.g. --bands {example}"
        if there:
            way = (
                f"; if it has {which} under another name say so with --bands, e.g. --bands {example} for {order}, "
                f"else train a model on the bands there are: {training}"
            )
    known = list_bands(info.descriptions, info.interpretations)
    raise SceneError(f"The scene has no band named {which} (it has {known}){way}.")
