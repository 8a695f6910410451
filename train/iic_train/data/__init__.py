"""Training data: partitions of the paper's data sets and of anyone's rasters, read from their usual files."""

from iic_train.data.base import Arrays, Dataset, Images, Joined, Subset
from iic_train.data.registry import DATASETS, data_root, open_dataset

__all__ = ["DATASETS", "Arrays", "Dataset", "Images", "Joined", "Subset", "data_root", "open_dataset"]
