"""`iic train | export | segment | model | map | scenes | classify | studio`: all commands under one name.

Commands are named by module and imported when they are run, so that `iic --help` answers at once and this room knows
nothing of the others.
"""

from importlib import import_module
from typing import Any, NamedTuple

from typer.core import TyperCommand
from typer.main import get_command

from iic_geotools.cli.app import App, SentenceGroup
from iic_geotools.cli.display import Version


class _Lazy(NamedTuple):
    """A command: the module that holds its app, and the help that the list shows."""

    module: str
    help: str


COMMANDS = {
    "segment": _Lazy("iic_runtime.cli.segment_raster", "Map the land cover of a scene."),
    "studio": _Lazy("iic_runtime.cli.studio", "Teach a map with clicks in the browser."),
    "map": _Lazy("iic_geotools.cli.map", "Assess, compare, clean and measure maps."),
    "model": _Lazy("iic_runtime.cli.model", "List, get, validate, measure, rename and name models."),
    "scenes": _Lazy("iic_runtime.cli.scenes", "Find scenes in catalogues."),
    "classify": _Lazy("iic_runtime.cli.classify", "Label whole images."),
    "train": _Lazy("iic_train.cli", "Train without labels; fine-tune with them."),
    "export": _Lazy("iic_export.cli", "Turn a training run into a model file."),
}


class _Umbrella(SentenceGroup):
    """A group that imports a command when it is run, and lists all without importing one."""

    listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, the ones that most people need first."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while help is printed, only its name and help."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if self.listing:
            return TyperCommand(cmd_name, help=entry.help)
        return get_command(import_module(entry.module).app)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the list of commands."""
        self.listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.listing = False


app = App(no_args_is_help=True, cls=_Umbrella)
main = app


@app.callback()
def iic(version: Version = False) -> None:
    """Land-cover maps from unlabelled imagery, on small machines."""
