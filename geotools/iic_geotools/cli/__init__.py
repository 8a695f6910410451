"""What all commands share: errors as sentences and exit codes, verbosity, option types, the display of progress.

A command looks like this:

    app = App()

    @app.command()
    def command(scene: str, settings: SceneSettings, display: Display) -> None:
        with display.show_progress() as progress:
            function(scene, progress=progress, **settings.values())

A settings class (`iic_geotools.settings`) becomes an option per setting; `Display`, or `Shell` where there is no
progress, adds what every command has, and runs the body in the shell.
"""

from iic_geotools.cli.app import App as App
from iic_geotools.cli.app import Given as Given
from iic_geotools.cli.app import Shell as Shell
from iic_geotools.cli.app import as_options as as_options
from iic_geotools.cli.app import print_error as print_error
from iic_geotools.cli.app import shell as shell
from iic_geotools.cli.display import AsJson as AsJson
from iic_geotools.cli.display import Display as Display
from iic_geotools.cli.display import Version as Version
from iic_geotools.cli.display import show_progress as show_progress
