"""Remote models: addresses, the download cache, and collections."""
