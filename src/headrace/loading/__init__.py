"""From the name of a model to a loaded model: resolve, open, plan, pack."""
