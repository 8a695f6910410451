"""Writing class maps: classes, the Cloud-Optimised GeoTIFF, overviews, mosaics and sidecars."""
