"""IQ4_NL and IQ4_XS: nibbles that index one table of 16 uneven steps.

Layouts and table: block_iq4_nl, block_iq4_xs and kvalues_iq4nl of ggml/src/ggml-common.h.
"""

from __future__ import annotations

import numpy as np

from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats, bit_fields, fields, half, signed

STEPS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)


def _iq4_nl(blocks: Bytes) -> Floats:
    scale, codes = fields(blocks, 2, 16)
    return half(scale) * STEPS[bit_fields(codes, 16, 4)]


def _iq4_xs(blocks: Bytes) -> Floats:
    """Eight groups of 32; of their 6-bit scales the upper two bits lie in a 16-bit word, the lower four in
    nibbles."""
    scale, high, low, codes = fields(blocks, 2, 2, 4, 128)
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    upper = ((high.view("<u2") >> shifts) & np.uint16(3)).astype(np.uint8)
    scales = half(scale) * signed(bit_fields(low, 1, 4) | (upper << np.uint8(4)), 32)
    values = STEPS[bit_fields(codes, 16, 4)].reshape(-1, 8, 32)
    return (scales[:, :, None] * values).reshape(-1, 256)


TYPES = (BlockType("IQ4_NL", 20, 32, 18, _iq4_nl), BlockType("IQ4_XS", 23, 256, 136, _iq4_xs))
