"""`iic-model list | show | get | index | validate | benchmark | rename | convert | name | cluster | suggest | page`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import iic_runtime  # whose names are imported when they are used, so that --help answers at once
from iic_geotools.cli import App, AsJson, Display, Shell, Version, show_progress
from iic_geotools.option_texts import parse_names
from iic_geotools.settings import names
from iic_runtime import cli
from iic_runtime.options import (
    BENCHMARK_SECONDS,
    ClusterSettings,
    ConvertSettings,
    EngineOptions,
    NameSettings,
    PageSettings,
    SegmentSettings,
    SuggestSettings,
)

app = App(no_args_is_help=True)
main = app
Scene = Annotated[
    Path, typer.Option("--scene", help="The scene: anything that GDAL opens.", show_default=False)
]
Model = Annotated[
    str,
    typer.Argument(
        help="The model file, its https:// address, or the name of a bundled model.", show_default=False
    ),
]
Index = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|URL",
        help="The index of a collection of models.",
        show_default=False,
    ),
]


@app.callback()
def iic_model(version: Version = False) -> None:
    """Print, get, validate, measure, rename models and name their classes: bundled ones, files and addresses."""


@app.command(name="list")
def list_models(*, index: Index = None, as_json: AsJson = False, shell: Shell) -> None:
    """Print the models that come with the package, or those of a collection."""
    if index is not None:
        entries = iic_runtime.Collection.read(index).entries
        if as_json:
            typer.echo(cli.tables.entries_json(entries))
        else:
            cli.tables.print_entries(entries)
    elif as_json:
        typer.echo(cli.tables.models_json(iic_runtime.bundled_models()))
    else:
        cli.tables.print_models(iic_runtime.bundled_models())


@app.command()
def show(
    model: Model,
    *,
    style: Annotated[
        Literal["table", "json", "huggingface"],
        typer.Option(
            "--format",
            help="A table, the JSON that is in the file, or the README.md of a Hugging Face repository.",
        ),
    ] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    shell: Shell,
) -> None:
    """Print the card of a model."""
    file = iic_runtime.find_model(model)
    if as_json or style == "json":
        typer.echo(file.card.to_json())
    elif style == "huggingface":
        typer.echo(iic_runtime.huggingface_card(file), nl=False)
    else:
        cli.tables.print_card(file)


@app.command()
def get(
    model: Annotated[
        str,
        typer.Argument(
            metavar="NAME|URL",
            help="The https:// address of a model file, with #sha256=DIGEST behind it if the digest is known; or the "
            "name of a model in the collection.",
            show_default=False,
        ),
    ],
    *,
    index: Index = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Download again what an address held before.")
    ] = False,
    shell: Shell,
) -> None:
    """Download a model into the cache, unless it is there, and print its path."""
    typer.echo(str(iic_runtime.get_model(model, index=index, refresh=refresh).path))


@app.command(name="index")
def write_index(
    models: Annotated[
        list[Path],
        typer.Argument(help="The model files, .onnx, in the folder of the index.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The index, .json.", show_default=False)],
    shell: Shell,
) -> None:
    """Write the index of a collection of models: names, digests and what they are made for."""
    typer.echo(f"{out}: {len(iic_runtime.write_index(models, out).entries)} models")


@app.command()
def validate(model: Model, shell: Shell) -> None:
    """Check that the graph matches its card, by running the model; exit with code 1 if it does not."""
    checks = iic_runtime.validate_model(model)
    for check in checks:
        detail = f" ({check.detail})" if check.detail else ""
        typer.echo(f"{'ok  ' if check.kept else 'FAIL'} {check.promise}{detail}")
    if not all(check.kept for check in checks):
        raise typer.Exit(1)


@app.command()
def benchmark(
    model: Model,
    *,
    scene: Annotated[
        Path | None,
        typer.Option(
            help="Take the tiles from this scene, and map it with the best settings. By default tiles are noise.",
            show_default=False,
        ),
    ] = None,
    bands: Annotated[
        str | None, typer.Option(metavar="LIST", help="With --scene: its bands, as in iic-segment-raster.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long each setting is run, at least.")
    ] = BENCHMARK_SECONDS,
    as_json: AsJson = False,
    shell: Shell,
) -> None:
    """Measure speed, start-up, memory and energy on every engine here, and say which options are best."""
    with show_progress(quiet=shell.quiet or as_json) as progress:
        result = iic_runtime.benchmark_model(
            model,
            scene,
            bands=None if bands is None else parse_names(bands, "bands"),
            seconds=seconds,
            progress=progress,
        )
    if as_json:
        typer.echo(result.to_json())
    else:
        cli.tables.print_benchmark(result)
    if result.best is None:
        raise typer.Exit(1)


@app.command()
def rename(
    model: Model,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="OLD=NEW[:#rrggbb]...",
            help='A class by name or number, e.g. "cluster 0=water:#0000ff"; OLD=:#rrggbb changes only the colour. '
            "Classes that are given one name become one class.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Write a changed copy to this file. By default the file itself is changed."
        ),
    ] = None,
    shell: Shell,
) -> None:
    """Change names and colours of a model's classes, or merge them; nothing is trained or fitted."""
    for label, map_class in enumerate(iic_runtime.rename_model(model, changes, out).classes):
        typer.echo(f"{label} {map_class.name} {map_class.colour}")


@app.command()
def name(
    model: Annotated[
        str | None,
        typer.Argument(
            help="The model file, its https:// address, or the name of a bundled model, whose features are fitted. By "
            "default those of the scene itself and of the bundled model that suits it.",
            show_default=False,
        ),
    ] = None,
    *,
    labels: Annotated[
        Path,
        typer.Option(
            help="Points or polygons with a class field, or a raster of classes, in any CRS.",
            show_default=False,
        ),
    ],
    scene: Scene,
    out: Annotated[Path, typer.Option("--out", "-o", help="The named model, .onnx.", show_default=False)],
    settings: NameSettings,
    display: Display,
) -> None:
    """Name the classes of a model by a few labels on a scene, and say how well they are recognised."""
    with display.show_progress() as progress:
        options = {**settings.values(), "progress": progress}
        named = iic_runtime.name_model(model, labels, scene, out, **options)
    for line in (named.sentence(), *named.advice):
        typer.echo(line, err=display.progress_json)


@app.command()
def cluster(
    scene: Annotated[
        str, typer.Argument(help="The scene, as iic-segment-raster takes it.", show_default=False)
    ],
    classes: Annotated[int, typer.Option(help="Number of clusters.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model, .onnx.", show_default=False)],
    settings: ClusterSettings,
    display: Display,
) -> None:
    """Find clusters of a scene without labels and without PyTorch, and write a model that maps them."""
    with display.show_progress() as progress:
        options = {**settings.values(), "progress": progress}
        clustered = iic_runtime.cluster_scene(scene, out, classes, **options)
    typer.echo(clustered.sentence(), err=display.progress_json)


@app.command()
def suggest(
    model: Model,
    scene: Scene,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The places, as points in .gpkg.", show_default=False)
    ],
    settings: SuggestSettings,
    display: Display,
) -> None:
    """Write the places of a scene that a model is least sure of: give them a class, and they are labels."""
    with display.show_progress() as progress:
        places = iic_runtime.suggest_places(model, scene, out, **{**settings.values(), "progress": progress})
    typer.echo(f"{out}: {len(places)} places to click", err=display.progress_json)


@app.command()
def convert(
    model: Model,
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The model, .onnx or .engine; a folder for Triton.", show_default=False
        ),
    ],
    settings: ConvertSettings,
    engine: EngineOptions,
    shell: Shell,
) -> None:
    """Write a model in fp16 or int8, for TensorRT or a Triton server, without PyTorch, and compare labels."""
    from iic_runtime.model.convert import convert_model

    converted = convert_model(model, out, engine=engine, **settings.values())
    typer.echo(f"{converted.sentence()}\nNext: {converted.next_command}")


@app.command(context_settings={"obj": tuple(names(SegmentSettings))})
def page(
    model: Model,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the page.", show_default=False)],
    settings: PageSettings,
    shell: Shell,
) -> None:
    """Write a static site that maps scenes in the browser, on the user's own device."""
    from iic_runtime.page.site import write_page

    folder = write_page(model, out, **settings.values())
    typer.echo(f"{folder}: host it anywhere, or look at it with: python -m http.server --directory {folder}")
