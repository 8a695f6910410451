"""`iic-train`: train, resume, evaluate, compare, fine-tune and report."""

from iic_geotools.cli import App, Version
from iic_train.cli.evaluation import baseline, evaluate, report
from iic_train.cli.finetuning import finetune
from iic_train.cli.training import add_preset, rasters, recipe, resume
from iic_train.recipes.presets import PRESETS

app = App(no_args_is_help=True)


@app.callback()
def describe_app(version: Version = False) -> None:
    """Unsupervised clustering and segmentation with Invariant Information Clustering."""


for _preset, _summary in PRESETS.items():
    add_preset(app, _preset, _summary)
for _command in (rasters, recipe, resume, evaluate, baseline, finetune, report):
    app.command()(_command)

main = app
