"""Settings as data: the published ones, those for any rasters, and named recipes. Nothing here needs PyTorch."""
