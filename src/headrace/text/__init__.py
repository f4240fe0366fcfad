"""Bytes to ids and back, as they arrive, up to a stop string."""
