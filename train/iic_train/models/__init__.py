"""Named networks and the layers they are made of."""
