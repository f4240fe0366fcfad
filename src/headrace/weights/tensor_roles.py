"""What a tensor of a checkpoint is for, told by its name: the classes that reports count by."""

from __future__ import annotations

import re

# In order: the first that is found in a name.
_CLASSES = (
    ("router", re.compile(r"(mlp|block_sparse_moe)\.(gate|router)\.")),
    ("experts", re.compile(r"\bexperts\.")),
    (
        "token table",
        re.compile(r"embed_tokens|embed_in|embeddings\.|word_embeddings|\bwte\b|\bwpe\b|tok_embeddings"),
    ),
    ("output", re.compile(r"lm_head|embed_out|\boutput\.weight")),
    ("attention", re.compile(r"attn|attention")),
    ("mlp", re.compile(r"mlp|feed_forward|shared_experts")),
    ("state space", re.compile(r"mixer")),
)
VECTORS = "norms, biases"
OTHER = "other"


def class_of(name: str, dimensions: int) -> str:
    """The class of the tensor called `name`; vectors are one of their own."""
    if dimensions < 2:
        return VECTORS
    return next((kind for kind, pattern in _CLASSES if pattern.search(name)), OTHER)
