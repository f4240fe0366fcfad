"""The stacked bill: recorded traffic, what the models make of it, and its runs on real engines."""
