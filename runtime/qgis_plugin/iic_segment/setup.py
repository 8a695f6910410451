"""The algorithm "Set up": makes, repairs or removes the environment in which the commands run."""

from __future__ import annotations

from typing import Any

from qgis.core import QgsProcessingException, QgsProcessingParameterEnum

from .algorithm import CommandAlgorithm, own_environment
from .command import CommandError

MAKE, REMOVE = "make anew", "remove"


class SetUp(CommandAlgorithm):
    """Makes the plugin's environment before it is needed, makes it anew, or removes it."""

    NAME, TITLE = "setup", "Set up"
    HELP = (
        "The algorithms run in a Python environment of their own in your profile, so that nothing is installed into "
        "QGIS. It is made when an algorithm is first run, and made anew when the plugin is updated: about 120 MB are "
        "downloaded from the package index, 400 MB on disk.\n\n"
        "Make anew does this now, for instance because you will be offline later, or because the environment is "
        "damaged.\n"
        "Remove frees the space: do it before you uninstall the plugin."
    )

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameter."""
        return (
            QgsProcessingParameterEnum(
                "ACTION", "Environment", options=[MAKE, REMOVE], defaultValue=MAKE, usesStaticStrings=True
            ),
        )

    def processAlgorithm(  # noqa: N802
        self, parameters: dict[str, Any], context: Any, feedback: Any
    ) -> dict[str, str]:
        """Make or remove the environment."""
        try:
            environment = own_environment()
            if self.parameterAsEnumString(parameters, "ACTION", context) == REMOVE:
                environment.remove()
                feedback.pushInfo(f"Removed {environment.home}.")
            elif environment.make(feedback.setProgress, feedback.pushInfo, feedback.isCanceled):
                feedback.pushInfo(f"The environment in {environment.home} is ready.")
        except CommandError as error:
            raise QgsProcessingException(str(error)) from error
        return {}
