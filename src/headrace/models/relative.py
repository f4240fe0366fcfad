"""Buckets of relative positions: which number of a bias belongs to a distance between query and key."""

from __future__ import annotations

import math

import numpy as np

from headrace.ops.value import Ints


def t5_buckets(reach: int, buckets: int, max_distance: int) -> Ints:
    """For distances i - j from -reach to reach: half of the buckets for each side, of these half for single
    distances and the others ever wider up to `max_distance` (T5; Raffel et al. 2020, section 2.1). Logarithms
    are float32, as those of the models' own code, since they decide at the borders of buckets.
    """
    distance = np.arange(-reach, reach + 1, dtype=np.int32)
    half, far = buckets // 2, np.abs(distance)
    exact = half // 2
    wide = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact))
    wide = wide / np.float32(math.log(max_distance / exact)) * np.float32(half - exact)
    bucket = np.where(far < exact, far, np.minimum(exact + wide.astype(np.int32), half - 1))
    return (bucket + np.where(distance < 0, half, 0)).astype(np.int32)


def deberta_buckets(reach: int, span: int, max_distance: int | None) -> Ints:
    """For distances i - j from -reach to reach: `span` buckets for each side, single distances, or with
    `max_distance` those of one half of the span single and the others ever wider (He et al. 2021, DeBERTaV3).
    """
    distance = np.arange(-reach, reach + 1, dtype=np.int32)
    bucket = distance
    if max_distance is not None:
        middle, far = span // 2, np.maximum(np.abs(distance), span // 2).astype(np.float32)
        whole = np.log(np.float32((max_distance - 1) / middle))
        wide = np.ceil(np.log(far / np.float32(middle)) / whole * np.float32(middle - 1)) + np.float32(middle)
        bucket = np.where(np.abs(distance) <= middle, distance, (wide * np.sign(distance)).astype(np.int32))
    return np.clip(bucket + span, 0, 2 * span - 1).astype(np.int32)
