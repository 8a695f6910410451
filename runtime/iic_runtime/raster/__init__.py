"""Scene to map: plan, tiles, parts and outputs."""
