"""What all algorithms of this plugin share: each runs commands of iic-edge, and styles what they have written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from processing.core.ProcessingConfig import ProcessingConfig
from qgis.core import QgsProcessingAlgorithm, QgsProcessingException

from .command import CommandError, find_command, run
from .parameters import Values

SETTING = "IIC_COMMAND"


class Step(NamedTuple):
    """A command to run.

    Attributes:
        command: Its name.
        arguments: Its arguments.
        shares: From which to which percent each stage of the command goes; a stage that is not listed goes from 0
            to 100.
    """

    command: str
    arguments: list[str]
    shares: dict[str, tuple[float, float]]


class CommandAlgorithm(QgsProcessingAlgorithm):
    """An algorithm that runs commands one after the other.

    Subclasses say what it is called, what it asks for, which commands it runs, and how their outputs look.

    Attributes:
        NAME: The identifier, as in iic:segmentraster.
        TITLE: The name that users see.
        HELP: The text beside the dialog.
    """

    NAME = TITLE = HELP = ""

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameters, with the outputs last."""
        raise NotImplementedError

    def steps(self, values: Values) -> Iterator[Step]:
        """Yield the commands to run."""
        raise NotImplementedError

    def style(self, values: Values) -> None:
        """Give outputs a style, where the commands have not done so."""

    def createInstance(self) -> CommandAlgorithm:  # noqa: N802
        """Return a new instance; QGIS makes one per run."""
        return type(self)()

    def name(self) -> str:
        """Return the identifier."""
        return self.NAME

    def displayName(self) -> str:  # noqa: N802
        """Return the name that users see."""
        return self.TITLE

    def shortHelpString(self) -> str:  # noqa: N802
        """Return the text beside the dialog."""
        return self.HELP

    def initAlgorithm(self, configuration: dict[str, Any] | None = None) -> None:  # noqa: N802
        """Declare the parameters."""
        for parameter in self.inputs():
            self.addParameter(parameter)

    def processAlgorithm(  # noqa: N802
        self, parameters: dict[str, Any], context: Any, feedback: Any
    ) -> dict[str, str]:
        """Run the commands, and style what they have written; return nothing if the user has cancelled them."""
        with TemporaryDirectory(prefix="iic-") as folder:
            values = Values(self, parameters, context, Path(folder))
            for step in self.steps(values):
                if not _run_step(step, feedback):
                    return {}
        self.style(values)
        return values.outputs


def _run_step(step: Step, feedback: Any) -> bool:
    """Run a command and show what it says; False if the user has cancelled it."""
    try:
        path = find_command(ProcessingConfig.getSetting(SETTING) or "", step.command)
        command = [path, *step.arguments]
        feedback.pushCommandInfo(" ".join(command))
        return run(command, feedback.setProgress, feedback.pushInfo, feedback.isCanceled, step.shares)
    except CommandError as error:
        raise QgsProcessingException(str(error)) from error
