"""Reading scenes: their description, bands, masks, values, and the part of them that is mapped."""
