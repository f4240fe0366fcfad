"""Linear kernels by format and row count: share of read bandwidth, operations per second.

The weights are the seven of one layer of a 1B Llama, repeated in memory larger than any cache. Bandwidth is
measured around each line, because a shared machine's bandwidth varies.
Usage: python bench/kernels/linear.py [--threads 2] [--formats int4] [--rows 1 512]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np

from headrace import _native
from headrace.weights.formats import FORMATS, GROUPED
from headrace.weights.formats.grouped import TYPES

# (outputs, inputs): q, k, v, o, gate, up, down
LAYER = [(2048, 2048), (512, 2048), (512, 2048), (2048, 2048), (8192, 2048), (8192, 2048), (2048, 8192)]
BYTES = 256 << 20
ROWS = (1, 2, 4, 8, 12, 16, 32, 64, 128, 512)

Weight = tuple[str, int, int, np.ndarray]


def aligned(nbytes: int) -> np.ndarray:
    buffer = np.empty(nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + nbytes]


def copies_of_a_layer(format: str, pool: _native.Pool) -> list[list[Weight]]:
    """Layers in distinct memory; their contents repeat, which saves time and does not affect speed."""
    random = np.random.default_rng(0)
    first: list[Weight] = []
    for n, k in LAYER:
        if format in GROUPED:  # blocks of random bytes with small scales
            rows = np.full((n, TYPES[format].row_bytes(k)), 0x11, np.uint8)
        else:
            rows = random.standard_normal((n, k), np.float32)
        source_type = format.upper() if format in GROUPED else "F32"
        packed = aligned(_native.packed_nbytes(format, n, k))
        _native.pack(pool, format, rows.view(np.uint8).reshape(-1), source_type, n, k, 0, n // 32, packed)
        first.append((format, n, k, packed))
    layers = [first]
    while len(layers) * sum(weight[3].nbytes for weight in first) < BYTES:
        copy: list[Weight] = []
        for _, n, k, packed in first:
            memory = aligned(packed.nbytes)
            memory[:] = packed
            copy.append((format, n, k, memory))
        layers.append(copy)
    return layers


def layer_s(pool: _native.Pool, layer: list[Weight], inputs: dict[int, np.ndarray]) -> float:
    start = time.perf_counter()
    for weight in layer:
        _native.linear(pool, inputs[weight[2]], [weight], [None])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=(*FORMATS, *GROUPED))
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    arguments = parser.parse_args()
    pool = _native.Pool(arguments.threads)
    print(
        f"{_native.isa()}, {arguments.threads} threads; medians; preparing the inputs and the call included"
    )
    for format in arguments.formats:
        layers = copies_of_a_layer(format, pool)
        nbytes = sum(weight[3].nbytes for weight in layers[0])
        for rows in arguments.rows:
            inputs = {
                k: np.random.default_rng(k).standard_normal((rows, k), np.float32) for k in (2048, 8192)
            }
            before = _native.read_bandwidth(pool)
            repeats = max(3, min(3 * len(layers), 400 // rows))
            times = [layer_s(pool, layers[i % len(layers)], inputs) for i in range(repeats)]
            bandwidth = (before + _native.read_bandwidth(pool)) / 2
            seconds = statistics.median(times)
            operations = 2 * rows * sum(n * k for n, k in LAYER)
            print(
                f"{format:8} {rows:4} rows  {nbytes / seconds / 1e9:6.1f} GB/s, "
                f"{100 * nbytes / seconds / bandwidth:4.0f} % of {bandwidth / 1e9:5.1f}   "
                f"{operations / seconds / 1e9:7.0f} GOP/s"
            )


if __name__ == "__main__":
    main()
