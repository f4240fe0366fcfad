"""Small models that answer a task: kinds, the ladder of rungs, training, checks of what they keep."""
