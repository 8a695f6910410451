"""`iic-map assess | change | clean | stats`: what is made from a map, one command per module."""

from iic_geotools.cli import App, Version
from iic_geotools.cli.map.assess import assess
from iic_geotools.cli.map.change import change
from iic_geotools.cli.map.clean import clean
from iic_geotools.cli.map.stats import stats

app = App(no_args_is_help=True)
main = app


@app.callback()
def iic_map(version: Version = False) -> None:
    """Assess, compare, clean and measure maps of classes."""


app.command()(assess)
app.command()(change)
app.command()(clean)
app.command()(stats)
