"""The runtime in other tools: Dask and xarray."""
