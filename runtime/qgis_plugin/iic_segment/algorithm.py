"""What all algorithms of this plugin share: each runs commands of iic-edge, and styles what they have written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import quote

from processing.core.ProcessingConfig import ProcessingConfig
from qgis.core import QgsApplication, QgsProcessingAlgorithm, QgsProcessingException, QgsSettings

from .command import CommandError, find_command, run
from .environment import Environment
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
        HELP: The text next to the dialog.
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
        """Return the text next to the dialog."""
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
            try:
                for step in self.steps(values):
                    if not _run_step(step, feedback):
                        return {}
            except CommandError as error:
                raise QgsProcessingException(str(error)) from error
            self.style(values)
        return values.outputs


def _run_step(step: Step, feedback: Any) -> bool:
    """Run a command and show what it prints; False if the user has cancelled it."""
    setting = ProcessingConfig.getSetting(SETTING) or ""
    path = find_command(setting, step.command) if setting.strip() else _own_command(step.command, feedback)
    if not path:
        return False
    command = [path, *step.arguments]
    feedback.pushCommandInfo(" ".join(command))
    return run(command, feedback.setProgress, feedback.pushInfo, feedback.isCanceled, step.shares)


def _own_command(name: str, feedback: Any) -> str:
    """Return the path of a command in the plugin's own environment, which is made first if it has to be."""
    environment = own_environment()
    if environment.command(name) is None:
        environment.make(feedback.setProgress, feedback.pushInfo, feedback.isCanceled)
    return environment.command(name) or ""


def own_environment() -> Environment:
    """Return the environment of this plugin in the user's profile, whether it is there or not.

    Raises:
        CommandError: The plugin has no wheel to install.
    """
    wheel = next(Path(__file__).parent.glob("*.whl"), None)
    if wheel is None:
        raise CommandError(
            "This copy of the plugin has no package in it: install it from its zip, or give the path of "
            "iic-segment-raster in Settings > Options > Processing > Providers > IIC."
        )
    return Environment(Path(QgsApplication.qgisSettingsDirPath(), "iic_segment"), wheel, _proxy())


def _proxy() -> dict[str, str]:
    """Return the proxy of QGIS's settings as environment variables; none if there is none."""
    settings = QgsSettings()
    host = str(settings.value("proxy/proxyHost", "") or "")
    if not settings.value("proxy/proxyEnabled", False, type=bool) or not host:
        return {}
    user, password = (
        quote(str(settings.value(f"proxy/{key}", "") or ""), safe="")
        for key in ("proxyUser", "proxyPassword")
    )
    scheme = "socks5" if str(settings.value("proxy/proxyType", "")).startswith("Socks") else "http"
    login = f"{user}:{password}@" if user else ""
    port = str(settings.value("proxy/proxyPort", "") or "")
    address = f"{scheme}://{login}{host}{':' if port else ''}{port}"
    return {key: address for name in ("http_proxy", "https_proxy") for key in (name, name.upper())}
