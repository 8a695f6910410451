"""A static site that maps scenes in the browser, on the device of whoever opens it."""
