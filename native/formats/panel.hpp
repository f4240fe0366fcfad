// What every format shares: reading a panel of a checkpoint's tensor, half precision, the rotation.
//
// Packed weights of shape [n, k] are ceil(n / 32) panels, one after the other. A panel holds 32 outputs
// (missing ones are zero columns) and is read from its first byte to its last. Everything here has
// internal linkage, because kernels include it once per ISA.
#pragma once
#include <cstdint>
#include <cstring>

#include "../kernels/linear.hpp"

namespace headrace {
namespace {

constexpr float kTiny = 1e-30f;           // magnitudes below this count as zero, so that 127 / it is finite
constexpr float kRound = 12582912.0f;     // 1.5 * 2^23: adding it leaves a float's nearest integer in the low bits
constexpr int64_t kGroup = 32;            // inputs that share int4's metadata; rotated inputs are padded to it
constexpr int kMaxRotation = 128;

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
inline int64_t panel_count(int64_t n) { return (n + kPanel - 1) / kPanel; }
inline float min_of(float a, float b) { return a < b ? a : b; }
inline float max_of(float a, float b) { return a > b ? a : b; }

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline bool is_finite(float value) { return (bits_of(value) & 0x7f800000u) != 0x7f800000u; }

// Nearest integer, ties to even, for |value| < 2^22: one addition on every ISA.
inline float round_even(float value) { return (value + kRound) - kRound; }
inline int32_t round_to_int(float value) {
  return static_cast<int32_t>(bits_of(value + kRound)) - static_cast<int32_t>(bits_of(kRound));
}

inline float from_bf16(uint16_t half) { return float_of(static_cast<uint32_t>(half) << 16); }
// Ties to even; a NaN stays one.
inline uint16_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

inline float from_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  // The exponent is off by 112; multiplying also puts subnormals right.
  const uint32_t scaled = bits_of(float_of(magnitude << 13) * 0x1p112f);
  return float_of(sign | (magnitude >= 0x7c00u ? scaled | 0x7f800000u : scaled));
}
// Ties to even; values of 65520 and more become infinite, which the packer refuses.
inline uint16_t to_f16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // 0.5 has the spacing of the smallest subnormal, 2^-24.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const uint32_t half = magnitude < 0x38800000u ? subnormal : (magnitude < 0x47800000u ? normal : 0x7c00u);
  return static_cast<uint16_t>(sign | half);
}

inline float read_source(Format type, const uint8_t* at) {
  if (type == Format::f32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, at, 2);
  return type == Format::f16 ? from_f16(half) : from_bf16(half);
}
template <Format kType>
bool read_row(const uint8_t* row, int64_t k, float* out) {
  uint32_t worst = 0;
  for (int64_t i = 0; i < k; ++i) {
    const float value = read_source(kType, row + i * (kType == Format::f32 ? 4 : 2));
    const uint32_t magnitude = bits_of(value) & 0x7fffffffu;
    worst = magnitude > worst ? magnitude : worst;
    out[i * kPanel] = value;
  }
  return worst < 0x7f800000u;
}

// Transposes `rows` <= 32 rows of k values into out[k_padded][32], zeros elsewhere.
// Returns the first row with a NaN or an infinity, or -1.
inline int64_t read_panel(Format type, const uint8_t* source, int64_t rows, int64_t k, int64_t k_padded, float* out) {
  if (rows < kPanel || k < k_padded) std::memset(out, 0, static_cast<size_t>(k_padded) * kPanel * sizeof(float));
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* row = source + r * source_row_bytes(type, k);
    const bool good = type == Format::f32   ? read_row<Format::f32>(row, k, out + r)
                      : type == Format::f16 ? read_row<Format::f16>(row, k, out + r)
                                                : read_row<Format::bf16>(row, k, out + r);
    if (!good) return r;
  }
  return -1;
}

// The rotation: int8 and int4 multiply blocks of `rotation_block(k)` inputs with the orthonormal
// Hadamard matrix (Sylvester's order), which is its own inverse, so that no input dominates and one
// scale per row is enough (as in QuaRot, Ashkboos et al. 2024). Butterflies go from distance 1 upwards;
// the order is part of the definition, since weights packed by NumPy must have the same bits.
inline int64_t rotated_k(int64_t k) { return round_up(k, kGroup); }
inline int64_t rotation_block(int64_t k) {
  const int64_t low_bit = rotated_k(k) & -rotated_k(k);
  return low_bit < kMaxRotation ? low_bit : kMaxRotation;
}
inline float rotation_scale(int64_t block) {
  return block == 32 ? 0.17677669529663687f : (block == 64 ? 0.125f : 0.08838834764831843f);
}

// Rotates the columns of one block, x[block][32].
inline void rotate_columns(float* x, int64_t block) {
  for (int64_t distance = 1; distance < block; distance *= 2) {
    for (int64_t start = 0; start < block; start += 2 * distance) {
      for (int64_t i = start * kPanel; i < (start + distance) * kPanel; ++i) {
        const float a = x[i];
        const float b = x[i + distance * kPanel];
        x[i] = a + b;
        x[i + distance * kPanel] = a - b;
      }
    }
  }
  const float scale = rotation_scale(block);
  for (int64_t i = 0; i < block * kPanel; ++i) x[i] *= scale;
}

}  // namespace
}  // namespace headrace
