"""The checksum of cached weights: its results stay, because files have them."""

from __future__ import annotations

import numpy as np

from headrace import _native

EXPECTED = [
    0xC60BCDF050FCCD95,
    0xD7B2C8611809FBCE,
    0x889D50326AEDDBBE,
    0x5FE7E0857333121D,
    0x26439C64123C616B,
]
"""Never change them: raise LAYOUT_VERSION of the cache with the checksum instead."""


def test_results_of_files_on_disks_stay() -> None:
    data = np.arange(1000, dtype=np.uint32).view(np.uint8)
    assert [_native.checksum(data[:length]) for length in (0, 1, 63, 64, 4000)] == EXPECTED


def test_every_piece_counts() -> None:
    data = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)
    expected = _native.checksum(data)
    assert expected == _native.checksum(data.copy())
    assert _native.checksum(np.zeros_like(data)) != _native.checksum(np.zeros(4095, np.uint8)) != expected
    for at in (0, 7, 8, 1000, 4095):
        changed = data.copy()
        changed[at] ^= 0x80
        assert _native.checksum(changed) != expected
    assert _native.checksum(np.roll(data, 64)) != expected
