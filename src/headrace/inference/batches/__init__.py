"""Batches: requests that are kept in the store and computed while there is room."""
