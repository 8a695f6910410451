"""From a run folder to one proven model file."""
