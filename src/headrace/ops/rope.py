"""Rotary position embedding (Su et al. 2021), in the half-split order that checkpoints use."""

import numpy as np

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@op("T D, T, F -> T D", tolerance=1e-5)
def rope(x: Array, positions: Ints, inv_freq: Array, *, head_dim: int, scale: float) -> Array:
    """Rotate the first 2F entries of each head; `scale` multiplies cosine and sine (YaRN)."""
    angles: Array = positions[:, None, None].astype(np.float32) * inv_freq
    cos = np.cos(angles) * np.float32(scale)
    sin = np.sin(angles) * np.float32(scale)
    heads = x.reshape(len(x), -1, head_dim)
    half = len(inv_freq)
    first, second = heads[..., :half], heads[..., half : 2 * half]
    rotated = [first * cos - second * sin, second * cos + first * sin, heads[..., 2 * half :]]
    return np.concatenate(rotated, axis=-1, dtype=np.float32).reshape(x.shape)
