"""Where a model comes from: a folder, a file, the Hugging Face hub, or the models in the package."""
