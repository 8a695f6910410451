from .benchmark import Benchmark as Benchmark
from .benchmark import Trial as Trial
from .benchmark import benchmark_model as benchmark_model
from .classifier import Classification as Classification
from .classifier import Classifier as Classifier
from .classifier import classify_images as classify_images
from .model.card import Card as Card
from .model.remote.cache import get_model as get_model
from .model.remote.collection import Collection as Collection
from .model.remote.collection import write_index as write_index
from .model.validate import validate_model as validate_model
from .naming.name import NamedModel as NamedModel
from .naming.name import name_model as name_model
from .naming.suggestions import Place as Place
from .naming.suggestions import suggest_places as suggest_places
from .raster.many_scenes import Outcome as Outcome
from .raster.many_scenes import segment_rasters as segment_rasters
from .raster.segment import Summary as Summary
from .raster.segment import segment_raster as segment_raster
from .segmenter import Segmentation as Segmentation
from .segmenter import Segmenter as Segmenter

__version__: str
