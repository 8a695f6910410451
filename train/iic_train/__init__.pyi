from .config import TrainConfig as TrainConfig
from .evaluation.evaluate import evaluate as evaluate
from .evaluation.report import write_report as write_report
from .finetune.pixel_runs import finetune_scenes as finetune_scenes
from .finetune.pixel_runs import learn as learn
from .models.networks import Network as Network
from .models.registry import NetworkConfig as NetworkConfig
from .recipes.rasters import train_rasters as train_rasters
from .recipes.registry import train_preset as train_preset
from .recipes.registry import train_recipe as train_recipe
from .runs import Run as Run
from .runs import find_run as find_run
from .runs import load_run as load_run
from .trainer import resume as resume
from .trainer import train as train

__version__: str
