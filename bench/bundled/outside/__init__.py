"""The outside set: prompts written by hand, by one who had not seen the training data, and their scorers."""
