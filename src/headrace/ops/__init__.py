"""The vocabulary: one file per op; its signature is the shape rule, its body the NumPy definition."""
