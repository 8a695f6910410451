"""`rio iic-segment`: the command as a plugin of rasterio's command line.

rio is built on click, our commands on typer, which may bring its own copy of click, so a command of one cannot be
added to the other. Therefore this module reads the options from our command and declares them with rio's click.
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import click
import typer
from typer.models import ArgumentInfo, ParamMeta
from typer.utils import get_params_from_function

from iic_geotools.cli.app import CONTEXT, expand
from iic_runtime.cli.segment_raster import segment_raster

# rio has an option --version itself.
_OMITTED = {"version", CONTEXT}


def rio_command(name: str, function: Callable[..., None]) -> click.Command:
    """Make a command of rio from the function of a typer command, with rio's verbosity and GDAL environment."""
    metas = get_params_from_function(function)
    parameters = [_parameter(meta) for meta in metas.values() if meta.name not in _OMITTED]

    @click.pass_context
    def run(context: click.Context, /, **values: Any) -> None:
        shared = context.obj or {}
        verbosity = shared.get("verbosity", 0)
        values["verbose"] |= verbosity > 0
        values["quiet"] |= verbosity < 0
        try:
            with shared.get("env") or nullcontext():
                function(**values)
        except typer.Exit as error:
            context.exit(error.exit_code)

    return click.Command(name, params=parameters, callback=run, help=function.__doc__)


def _parameter(meta: ParamMeta) -> click.Parameter:
    info = meta.default
    kind, many = _click_type(meta.annotation)
    if isinstance(info, ArgumentInfo):
        return click.Argument([meta.name], type=kind, nargs=-1 if many else 1, required=True)
    flag, dashed = kind is bool, meta.name.replace("_", "-")
    names = info.param_decls or [f"--{dashed}/--no-{dashed}" if flag else f"--{dashed}"]
    return click.Option(
        [meta.name, *names],
        type=None if flag else kind,
        is_flag=flag,
        multiple=many,
        default=info.default,
        show_default=info.show_default is True and not flag,
        envvar=info.envvar,
        help=info.help,
        metavar=info.metavar,
    )


def _click_type(kind: Any) -> tuple[Any, bool]:
    """Return click's type for an annotation, and whether the parameter takes several values."""
    if get_origin(kind) is UnionType:
        (kind,) = (member for member in get_args(kind) if member is not NoneType)
    many = get_origin(kind) is list
    if many:
        (kind,) = get_args(kind)
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind)), many
    return click.Path(path_type=Path) if kind is Path else kind, many


command = rio_command("iic-segment", expand(segment_raster))
