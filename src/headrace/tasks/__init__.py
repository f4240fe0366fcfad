"""Tasks of encoders: embeddings, entity extraction."""
