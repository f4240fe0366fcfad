"""A stored output matrix beside `tie_word_embeddings`: it counts, where it is not the token table itself."""

from __future__ import annotations

import logging

import numpy as np

from headrace.models.config_classes import complete
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.config_json import Config, boolean
from headrace.weights.quant_types import BY_NAME
from headrace.weights.tensor_roles import class_of

LOG = logging.getLogger("headrace.loading")
_FIELD = "tie_word_embeddings"
_BLOCK_BYTES = 4 << 20


def config_with_ties(checkpoint: CheckpointReader) -> Config:
    """The checkpoint's config, in which the output is not tied if the files hold another matrix for it:
    `transformers` 5 decides the same. The two matrices are compared only where both are stored.
    """
    config = complete(checkpoint.config)
    if not boolean(config, _FIELD, False):
        return config
    output = next((name for name in checkpoint.tensors if class_of(name, 2) == "output"), None)
    if output is None or not output.endswith(".weight") or _is_table(checkpoint, output):
        return config
    LOG.warning(
        "config.json ties the output matrix to the token table (%s), the checkpoint stores another one, %s:"
        " the stored one is used; set the field to false to say so",
        _FIELD,
        output,
    )
    return config | {_FIELD: False}


def _is_table(checkpoint: CheckpointReader, output: str) -> bool:
    """Whether a token table holds the same bytes."""
    info = checkpoint.info(output)
    return any(
        class_of(name, 2) == "token table"
        and table.shape == info.shape
        and len(info.shape) == 2
        and checkpoint.row_dtype(name) == checkpoint.row_dtype(output)
        and _equal(checkpoint, name, output)
        for name, table in checkpoint.tensors.items()
    )


def _equal(checkpoint: CheckpointReader, one: str, other: str) -> bool:
    rows, k = checkpoint.info(one).shape
    row_bytes = BY_NAME[checkpoint.row_dtype(one)].row_bytes(k)
    step = max(_BLOCK_BYTES // row_bytes, 1)
    blocks = np.empty((2, step * row_bytes), np.uint8)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        for name, block in zip((one, other), blocks, strict=True):
            checkpoint.read_rows(name, start, count, block.data)
        if not np.array_equal(*blocks[:, : count * row_bytes]):
            return False
    return True
