"""Models from elsewhere: addresses, the cache of what was downloaded, and collections."""
