"""Training data: the data sets of the paper and any rasters, as partitions with random access to raw images."""
