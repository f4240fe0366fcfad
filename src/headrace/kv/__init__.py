"""Pages of the KV cache and the prefix tree over them: integers only, no arrays of numbers."""
