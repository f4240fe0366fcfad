"""Pages of the KV cache and the prefix tree over them. Integers only; the KV data lives elsewhere."""
