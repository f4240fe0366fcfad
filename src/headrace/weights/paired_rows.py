"""Rows of heads whose rotated entries are stored in pairs (ggml, llama2.c) instead of in two halves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def stored_rows(start_row: int, row_count: int, head_rows: int) -> NDArray[np.int64]:
    """Where rows of the original order are stored: row j of the first half of a head at 2j, of the second
    half at 2j + 1."""
    head, within = np.divmod(np.arange(start_row, start_row + row_count), head_rows)
    half = head_rows // 2
    return head * head_rows + within % half * 2 + within // half
