"""`rio iic-segment`: the command as a plugin of rasterio's command line.

rio is built on click, our commands on typer, which brings a click of its own: a command of the one cannot be hung
into the other. So the options are read off the signature of our command and said again in rio's click.
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

from iic_runtime.cli.segment_raster import segment_raster


def rio_command(name: str, function: Callable[..., None]) -> click.Command:
    """A typer command function as a command of rio, which lends it its verbosity and its GDAL environment."""
    parameters = _parameters(function)

    @click.pass_context
    def run(context: click.Context, /, **values: Any) -> None:
        shared = context.obj or {}
        verbosity = shared.get("verbosity", 0)
        values["verbose"] |= verbosity > 0
        values["quiet"] |= verbosity < 0
        try:
            with shared.get("env") or nullcontext():
                function(**values)
        except typer.Exit as leaving:
            context.exit(leaving.exit_code)

    return click.Command(name, params=parameters, callback=run, help=function.__doc__)


def _parameters(function: Callable[..., None]) -> list[click.Parameter]:
    return [_parameter(meta) for meta in get_params_from_function(function).values()]


def _parameter(meta: ParamMeta) -> click.Parameter:
    info = meta.default
    kind, many = _plain(meta.annotation)
    if isinstance(info, ArgumentInfo):
        return click.Argument([meta.name], type=kind, nargs=-1 if many else 1, required=True)
    flag, dashed = kind is bool, meta.name.replace("_", "-")
    spelled = info.param_decls or [f"--{dashed}/--no-{dashed}" if flag else f"--{dashed}"]
    return click.Option(
        [meta.name, *spelled],
        type=None if flag else kind,
        is_flag=flag,
        multiple=many,
        default=info.default,
        envvar=info.envvar,
        help=info.help,
        metavar=info.metavar,
    )


def _plain(kind: Any) -> tuple[Any, bool]:
    """What click calls a type, and whether it is a list of them."""
    if get_origin(kind) is UnionType:
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    many = get_origin(kind) is list
    if many:
        (kind,) = get_args(kind)
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind)), many
    return click.Path(path_type=Path) if kind is Path else kind, many


command = rio_command("iic-segment", segment_raster)
