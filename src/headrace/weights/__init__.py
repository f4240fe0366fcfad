"""From a name to packed weights: hub, checkpoints, formats, the cache on disk."""
