"""Indexes in Qdrant. Needs the extra qdrant."""
