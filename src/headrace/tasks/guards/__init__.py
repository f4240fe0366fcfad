"""Guards: checks of what goes into a model and of what it answers."""
