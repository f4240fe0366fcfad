"""Floats to the blocks of GGUF: for each block the scale (and minimum) of least squared error among several.

Codes and scale are found in turns: codes for a tried scale, then the scale that fits those codes best (least
squares), rounded to the half float that is stored. Layouts: block_q* of ggml/src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.weights.quant_types import BY_NAME
from headrace.weights.quant_types.block_type import Bytes, Floats

# Of the largest magnitude, the share that the last code stands for. The first is what ggml's own does.
_SYMMETRIC_TRIES = (1.0, 1.03, 0.97, 0.94, 0.91, 0.87, 0.83, 0.78)
_RANGE_TRIES = (1.0, 0.97, 0.94, 0.91, 0.87, 0.82, 0.76)
_TINY = np.float32(1e-30)
_LOW, _FOUR = np.uint8(15), np.uint8(4)
_LARGEST = np.float32(65504)  # of half floats


def quantize(type_name: str, rows: Floats) -> Bytes:
    """Rows [n, k] as blocks of a ggml type: [n, bytes of a row]. k is a multiple of the type's block size,
    all numbers are finite; those too large for a half float become its largest."""
    kind = BY_NAME[type_name]
    if type_name not in ("F32", "BF16"):
        rows = np.clip(rows, -_LARGEST, _LARGEST)
    blocks = np.ascontiguousarray(rows, np.float32).reshape(-1, kind.block_size)
    return QUANTIZERS[type_name](blocks).reshape(rows.shape[0], -1)


def _f32(blocks: Floats) -> Bytes:
    return blocks.view(np.uint8)


def _f16(blocks: Floats) -> Bytes:
    return half(blocks).view(np.uint8)


def _bf16(blocks: Floats) -> Bytes:
    """Rounded to the nearest, ties to even."""
    bits = blocks.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2").view(np.uint8)


def _q8_0(blocks: Floats) -> Bytes:
    scale, codes = symmetric(blocks, -127, 127)
    return np.concatenate([scale.view(np.uint8), codes.astype(np.int8).view(np.uint8)], axis=1)


def _q4_0(blocks: Floats) -> Bytes:
    scale, codes = symmetric(blocks, -8, 7)
    return q4_0_blocks(scale, codes)


def q4_0_blocks(scale: NDArray[np.float16], codes: Floats) -> Bytes:
    """Blocks of Q4_0: half-float scales [n, 1], codes [n, 32] from -8 to 7."""
    return np.concatenate([scale.view(np.uint8), nibbles((codes + 8).astype(np.uint8))], axis=1)


def _q5_0(blocks: Floats) -> Bytes:
    scale, codes = symmetric(blocks, -16, 15)
    unsigned = (codes + 16).astype(np.uint8)
    return np.concatenate([scale.view(np.uint8), fifth_bits(unsigned), nibbles(unsigned)], axis=1)


def _q4_1(blocks: Floats) -> Bytes:
    scale, minimum, codes = _with_minimum(blocks, 15)
    return np.concatenate([scale.view(np.uint8), minimum.view(np.uint8), nibbles(codes)], axis=1)


def _q5_1(blocks: Floats) -> Bytes:
    scale, minimum, codes = _with_minimum(blocks, 31)
    parts = [scale.view(np.uint8), minimum.view(np.uint8), fifth_bits(codes), nibbles(codes)]
    return np.concatenate(parts, axis=1)


def _q4_k(blocks: Floats) -> Bytes:
    return _k_blocks(blocks, 15)


def _q5_k(blocks: Floats) -> Bytes:
    return _k_blocks(blocks, 31)


def _k_blocks(blocks: Floats, top: int) -> Bytes:
    fitted = fit_k_blocks(blocks, top)
    return fitted.pack(fitted.codes(blocks, top), top)


def _q6_k(blocks: Floats) -> Bytes:
    fitted = fit_six_blocks(blocks)
    codes = _codes(blocks.reshape(-1, 16, 16), fitted.steps[:, :, None], -32, 31)
    integers = (fitted.scales[:, :, None] * codes).reshape(blocks.shape)
    refitted = SixBlocks(_refit(fitted.scale, blocks, integers), fitted.scales)
    return refitted.pack(codes.reshape(blocks.shape))


QUANTIZERS: Mapping[str, Callable[[Floats], Bytes]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def symmetric(blocks: Floats, low: int, high: int) -> tuple[NDArray[np.float16], Floats]:
    """Blocks [n, size] as half-float scales [n, 1] times codes [n, size] in [low, high]."""
    scale, codes = fit_symmetric(blocks, low, high)
    return half(scale), codes


def symmetric_bf16(blocks: Floats, low: int, high: int) -> tuple[Bytes, Floats, Floats]:
    """Blocks [n, size] as scales times codes: the scales as bf16 [n, 2 bytes] and as float32, codes."""
    stored, scale = to_bf16(fit_symmetric(blocks, low, high)[0])
    return stored, scale, _codes(blocks, scale, low, high)


def to_bf16(scale: Floats) -> tuple[Bytes, Floats]:
    """Scales [n, 1] rounded to bf16: as stored [n, 2 bytes], and as float32."""
    stored = _bf16(scale).reshape(-1, 2)
    return stored, (stored.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def fit_symmetric(
    blocks: Floats, low: int, high: int, importance: Floats | None = None
) -> tuple[Floats, Floats]:
    """Of several first scales, the one whose codes with their best scale err least: scales [n, 1], codes
    [n, size]. `importance` [1 or n, size] weighs the squared errors."""
    place = np.abs(blocks).argmax(axis=1)[:, None]
    extreme = np.take_along_axis(blocks, place, axis=1)
    best_scale, best_codes = np.zeros_like(extreme), np.zeros_like(blocks)
    weighed = blocks if importance is None else blocks * importance
    best_error: Floats = (weighed * blocks).sum(axis=1, keepdims=True)
    for end in (low,) if low == -high else (low, high):
        for share in _SYMMETRIC_TRIES:
            codes = _codes(blocks, extreme * np.float32(share / end), low, high)
            of_codes = codes if importance is None else codes * importance
            fitted = _ratio(
                (blocks * of_codes).sum(1, keepdims=True), (codes * of_codes).sum(1, keepdims=True)
            )
            scale = half(fitted).astype(np.float32)
            errors: Floats = np.square(blocks - scale * codes)
            error = (errors if importance is None else errors * importance).sum(axis=1, keepdims=True)
            better = error < best_error
            best_error = np.where(better, error, best_error)
            best_scale = np.where(better, scale, best_scale)
            best_codes = np.where(better, codes, best_codes)
    return best_scale, best_codes


def _with_minimum(
    blocks: Floats, top: int
) -> tuple[NDArray[np.float16], NDArray[np.float16], NDArray[np.uint8]]:
    scale, minimum, codes = _fit_range(blocks, top, to_half=True)
    return half(scale), half(minimum), codes.astype(np.uint8)


def _fit_range(
    blocks: Floats, top: int, *, to_half: bool = False, below_zero: bool = False
) -> tuple[Floats, Floats, Floats]:
    """Scales and minima [n, 1], codes [n, size] in [0, top]: x ~ scale * code + minimum.

    `to_half`: both are rounded to what half floats hold. `below_zero`: no minimum may be above zero.
    """
    low = blocks.min(axis=1, keepdims=True)
    if below_zero:
        low = np.minimum(low, 0)
    spread = blocks.max(axis=1, keepdims=True) - low
    best = np.zeros_like(low), low, np.zeros_like(blocks)
    best_error = np.full_like(low, np.inf)
    for share in _RANGE_TRIES:
        minimum = low + spread * np.float32((1 - share) / 2)
        scale = spread * np.float32(share / top)
        for _ in range(2):
            codes = _codes(blocks - minimum, scale, 0, top)
            scale, minimum = _line(blocks, codes, below_zero=below_zero)
        if to_half:
            scale, minimum = (half(part).astype(np.float32) for part in (scale, minimum))
        codes = _codes(blocks - minimum, scale, 0, top)
        error: Floats = np.square(blocks - (scale * codes + minimum)).sum(axis=1, keepdims=True)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best = _chosen(better, (scale, minimum, codes), best)
    return best


def _chosen(
    better: NDArray[np.bool_], new: tuple[Floats, Floats, Floats], old: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    scale, minimum, codes = (np.where(better, a, b) for a, b in zip(new, old, strict=True))
    return scale, minimum, codes


def _line(blocks: Floats, codes: Floats, *, below_zero: bool) -> tuple[Floats, Floats]:
    """Scale and minimum of least squared error for given codes."""
    size = np.float32(blocks.shape[1])
    sum_c, sum_x = codes.sum(1, keepdims=True), blocks.sum(1, keepdims=True)
    sum_cc, sum_cx = (codes * codes).sum(1, keepdims=True), (codes * blocks).sum(1, keepdims=True)
    scale = np.maximum(_ratio(size * sum_cx - sum_c * sum_x, size * sum_cc - sum_c * sum_c), 0)
    minimum = (sum_x - scale * sum_c) / size
    if below_zero:  # else zero is the best, and the scale that of a line through it
        scale = np.where(minimum > 0, np.maximum(_ratio(sum_cx, sum_cc), 0), scale)
        minimum = np.minimum(minimum, 0)
    return scale, minimum


class KBlocks(Struct, frozen=True, eq=False):
    """What Q4_K and Q5_K keep of blocks of 256 besides their codes: whole scales and minima [n, 8] of 32
    numbers each, and half-float factors [n, 1] of both. A number is factor * scale * code - factor * minimum.
    """

    scales: Floats
    minima: Floats
    scale: NDArray[np.float16]
    minimum: NDArray[np.float16]

    @property
    def steps(self) -> Floats:
        """What a code counts, [n, 8]."""
        return self.scale.astype(np.float32) * self.scales

    @property
    def below(self) -> Floats:
        """What is taken off, [n, 8]."""
        return self.minimum.astype(np.float32) * self.minima

    def codes(self, blocks: Floats, top: int) -> NDArray[np.uint8]:
        """The nearest, [n, 8, 32]."""
        groups = blocks.reshape(-1, 8, 32) + self.below[:, :, None]
        return _codes(groups, self.steps[:, :, None], 0, top).astype(np.uint8)

    def pack(self, codes: NDArray[np.uint8], top: int) -> Bytes:
        """Blocks of Q4_K (`top` 15) or Q5_K (31), with codes [n, 8, 32]."""
        parts = [self.scale.view(np.uint8), self.minimum.view(np.uint8), six_bits(self.scales, self.minima)]
        if top > int(_LOW):
            places = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
            parts.append(np.bitwise_or.reduce((codes >> _FOUR) << places, axis=1))
        return np.concatenate([*parts, k_nibbles(codes)], axis=1)


class SixBlocks(Struct, frozen=True, eq=False):
    """What Q6_K keeps of blocks of 256 besides their codes: whole scales [n, 16] of 16 numbers each, in units
    of `scale` [n, 1]."""

    scale: NDArray[np.float16]
    scales: Floats

    @property
    def steps(self) -> Floats:
        """Between the numbers of two codes, [n, 16]."""
        return self.scale.astype(np.float32) * self.scales

    def pack(self, codes: Floats) -> Bytes:
        """The blocks' bytes, for codes [n, 256] from -32 to 31."""
        unsigned = (codes + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
        low, high = unsigned & _LOW, unsigned >> _FOUR
        low = (low[:, :, :2] | low[:, :, 2:] << _FOUR).reshape(-1, 128)
        high = np.bitwise_or.reduce(high << np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1), axis=2)
        scales = self.scales.astype(np.int8).view(np.uint8)
        return np.concatenate([low, high.reshape(-1, 64), scales, self.scale.view(np.uint8)], axis=1)


def fit_six_blocks(blocks: Floats, importance: Floats | None = None) -> SixBlocks:
    """For blocks [n, 256]; `importance` [256] weighs the squared errors."""
    weights = None if importance is None else np.tile(importance.reshape(16, 16), (len(blocks), 1))
    wanted = fit_symmetric(blocks.reshape(-1, 16), -32, 31, weights)[0].reshape(-1, 16)
    # The largest scale, with its sign, becomes -128.
    largest = np.take_along_axis(wanted, np.abs(wanted).argmax(axis=1)[:, None], axis=1)
    scale = half(largest / np.float32(-128))
    return SixBlocks(scale, _codes(wanted, scale.astype(np.float32), -128, 127))


def fit_k_blocks(blocks: Floats, top: int) -> KBlocks:
    """For blocks [n, 256] with codes from 0 to `top`."""
    groups = blocks.reshape(-1, 8, 32)
    wanted, lows, _ = _fit_range(groups.reshape(-1, 32), top, below_zero=True)
    wanted, lows = wanted.reshape(-1, 8), -lows.reshape(-1, 8)
    scale, minimum = (half(part.max(axis=1, keepdims=True) / np.float32(63)) for part in (wanted, lows))
    scales = _codes(wanted, scale.astype(np.float32), 0, 63)
    minima = _codes(lows, minimum.astype(np.float32), 0, 63)
    for _ in range(2):
        offsets: Floats = (minimum.astype(np.float32) * minima)[:, :, None]
        codes = _codes(groups + offsets, (scale.astype(np.float32) * scales)[:, :, None], 0, top)
        steps = (scales[:, :, None] * codes).reshape(blocks.shape)
        below = np.repeat(minima, 32, axis=1)
        scale, minimum = _refit_two(scale, minimum, blocks, steps, below)
    return KBlocks(scales, minima, scale, minimum)


def _refit(scale: NDArray[np.float16], blocks: Floats, steps: Floats) -> NDArray[np.float16]:
    """The half-float scale that fits given codes times their groups' scales best."""
    fitted = half(_ratio((blocks * steps).sum(1, keepdims=True), (steps * steps).sum(1, keepdims=True)))
    return np.where(fitted == 0, scale, fitted)


def _refit_two(
    scale: NDArray[np.float16], minimum: NDArray[np.float16], blocks: Floats, steps: Floats, below: Floats
) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Scale and minimum of x ~ scale * steps - minimum * below, where that errs less than the given ones."""
    ss, bb, sb = ((a * b).sum(1, keepdims=True) for a, b in ((steps, steps), (below, below), (steps, below)))
    sx, bx = ((a * blocks).sum(1, keepdims=True) for a in (steps, below))
    determinant = ss * bb - sb * sb
    fitted = half(_ratio(sx * bb - bx * sb, determinant)), half(_ratio(sx * sb - bx * ss, determinant))

    def error(scale: NDArray[np.float16], minimum: NDArray[np.float16]) -> Floats:
        made = scale.astype(np.float32) * steps - minimum.astype(np.float32) * below
        return np.square(made - blocks).sum(1, keepdims=True)

    better = (error(*fitted) < error(scale, minimum)) & (fitted[0] > 0) & (fitted[1] >= 0)
    return np.where(better, fitted[0], scale), np.where(better, fitted[1], minimum)


def _codes(values: Floats, scale: Floats, low: int, high: int) -> Floats:
    return np.clip(np.rint(values * _ratio(np.float32(1), scale)), np.float32(low), np.float32(high))


def _ratio(above: Floats | np.float32, below: Floats) -> Floats:
    """A quotient, 0 where there is nothing to divide by."""
    safe = np.where(np.abs(below) < _TINY, np.float32(1), below)
    return np.where(np.abs(below) < _TINY, np.float32(0), above / safe)


def half(values: Floats) -> NDArray[np.float16]:
    return np.clip(values, -_LARGEST, _LARGEST).astype("<f2")


def nibbles(codes: NDArray[np.uint8]) -> Bytes:
    half = codes.shape[1] // 2
    return codes[:, :half] & _LOW | codes[:, half:] << _FOUR


def k_nibbles(codes: NDArray[np.uint8]) -> Bytes:
    pairs = codes.reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] & _LOW | pairs[:, :, 1] << _FOUR).reshape(-1, 128)


def fifth_bits(codes: NDArray[np.uint8]) -> Bytes:
    return np.packbits(codes >> _FOUR, axis=1, bitorder="little")


def six_bits(scales: Floats, minima: Floats) -> Bytes:
    """Eight scales and eight minima of 6 bits in 12 bytes, as Q4_K and Q5_K hold them."""
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    six = np.uint8(6)
    parts = [part[:, :4] | part[:, 4:] >> _FOUR << six for part in (s, m)]
    return np.concatenate([*parts, s[:, 4:] & _LOW | m[:, 4:] << _FOUR], axis=1)
