"""A static site that maps scenes in the browser, on the user's own device."""
