"""`headrace bench quality`: what a smaller or faster form of a model costs in quality."""
