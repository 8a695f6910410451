"""Which model labels which scene."""

import logging
from typing import Any

from iic_geotools.errors import UsageError
from iic_geotools.scene import SceneInfo
from iic_runtime.bundled import Model, alternatives, bundled_models, choose, named_model, nothing_named
from iic_runtime.resolution import in_words, made_for, pixel_size
from iic_runtime.segmenter import Segmenter

_LOG = logging.getLogger(__name__)


class Models:
    """The one model that was named, or for each scene the bundled one that fits it; each is opened once.

    Args:
        model: a model file or the name of a bundled model, by default the environment's `IIC_MODEL`; or a Segmenter.
        opening: how models are opened: the other arguments of `Segmenter`.

    Raises:
        IICError: the model that was named cannot be opened, or none was named and none is bundled.
    """

    def __init__(self, model: Model | Segmenter | None = None, **opening: Any) -> None:
        self._opening = opening
        self._open: dict[str, Segmenter] = {}
        self._named: Segmenter | None
        if isinstance(model, Segmenter):
            self._named = model
        else:
            file = named_model(model)
            self._named = None if file is None else Segmenter(file, **opening)
        if self._named is None and not bundled_models():
            raise nothing_named()

    def fitting(self, info: SceneInfo) -> Segmenter:
        """The model for a scene.

        Raises:
            UsageError: None was named, and the scene does not tell how large its pixels are.
        """
        if self._named is not None:
            return self._named
        size = pixel_size(info.grid)
        if size is None:
            raise UsageError(
                f"{info.path} does not tell its ground resolution (it has no CRS or no transform), by which a "
                f"model could be chosen; give {alternatives('--model ')}."
            )
        file = choose(size)
        known = made_for(file.card)
        meant = "" if known is None else f"for {in_words(known)}; "
        _LOG.info("Model: %s (%sthe scene has %.3g m)", file.card.name, meant, size)
        if file.digest not in self._open:
            self._open[file.digest] = Segmenter(file, **self._opening)
        return self._open[file.digest]
