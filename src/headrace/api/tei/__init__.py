"""The API of text-embeddings-inference (TEI) and the pipelines of the hub's inference API."""
