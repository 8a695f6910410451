"""Training data: the data sets of the paper and any rasters, as partitions with random access to raw images."""

from iic_train.data.base import Arrays, Dataset, Images, Joined, Subset
from iic_train.data.training_data import DATASETS, data_root, open_dataset

__all__ = ["DATASETS", "Arrays", "Dataset", "Images", "Joined", "Subset", "data_root", "open_dataset"]
