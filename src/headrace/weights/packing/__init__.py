"""Packed weights: from stored tensors to the layout of the kernels, and their cache on disk."""
