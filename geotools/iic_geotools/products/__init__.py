"""What is made from a class map: areas, polygons, previews and pages for browsers."""
