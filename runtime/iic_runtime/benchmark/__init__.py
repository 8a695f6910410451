"""How fast a model runs on this machine, by engine, number of threads and tile."""

# Here, so that the command's help can tell it without importing what measures.
SECONDS = 2.0
