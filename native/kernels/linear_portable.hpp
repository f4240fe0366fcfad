// Tile kernels in plain C++: loops over the 32 columns of a panel that compilers vectorize.
#pragma once
#include "linear_layout.hpp"

namespace headrace {
namespace {

constexpr int kMaxRows = 4;
constexpr int32_t kWeightZero = 128;  // the int8 kernel multiplies by the stored byte, weight + 128

template <int kRows>
HEADRACE_LEAF void tile_f32(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch) {
  float* acc = static_cast<float*>(sums);
  for (int64_t s = 0; s < steps; ++s, w += 128, x += kRows) {
    float line[kPanel];
    std::memcpy(line, w, sizeof line);
    for (int r = 0; r < kRows; ++r) {
      const float xr = float_of(x[r]);
      for (int c = 0; c < kPanel; ++c) acc[r * kPanel + c] += line[c] * xr;
    }
  }
}

template <int kRows>
HEADRACE_LEAF void tile_f16(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch) {
  float* acc = static_cast<float*>(sums);
  for (int64_t s = 0; s < steps; ++s, w += 64, x += kRows) {
    uint16_t half[kPanel];
    std::memcpy(half, w, sizeof half);
    float line[kPanel];
    for (int c = 0; c < kPanel; ++c) line[c] = from_f16(half[c]);
    for (int r = 0; r < kRows; ++r) {
      const float xr = float_of(x[r]);
      for (int c = 0; c < kPanel; ++c) acc[r * kPanel + c] += line[c] * xr;
    }
  }
}

template <int kRows>
HEADRACE_LEAF void tile_bf16(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch) {
  float* acc = static_cast<float*>(sums);
  for (int64_t s = 0; s < steps; ++s, w += 128, x += kRows) {
    uint32_t pair[kPanel];
    std::memcpy(pair, w, sizeof pair);
    for (int r = 0; r < kRows; ++r) {
      const float even = float_of(x[r] << 16);
      const float odd = float_of(x[r] & 0xffff0000u);
      for (int c = 0; c < kPanel; ++c) {
        const float sum = acc[r * kPanel + c] + float_of(pair[c] << 16) * even;
        acc[r * kPanel + c] = sum + float_of(pair[c] & 0xffff0000u) * odd;
      }
    }
  }
}

template <int kRows>
HEADRACE_LEAF void tile_int8(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch) {
  int32_t* acc = static_cast<int32_t*>(sums);
  for (int64_t s = 0; s < steps; ++s, w += 128, x += kRows) {
    // Even and odd bytes of the inputs' quadruples apart, as 16-bit numbers, so that products vectorize.
    uint16_t pairs[2 * kPanel];
    std::memcpy(pairs, w, sizeof pairs);
    int16_t even[2 * kPanel], odd[2 * kPanel];
    for (int c = 0; c < 2 * kPanel; ++c) {
      even[c] = static_cast<int16_t>(pairs[c] & 255);
      odd[c] = static_cast<int16_t>(pairs[c] >> 8);
    }
    for (int r = 0; r < kRows; ++r) {
      int8_t q[4];
      std::memcpy(q, x + r, 4);
      const int16_t q0 = q[0], q1 = q[1], q2 = q[2], q3 = q[3];
      for (int c = 0; c < kPanel; ++c) {
        acc[r * kPanel + c] += even[2 * c] * q0 + even[2 * c + 1] * q2;
        acc[r * kPanel + c] += odd[2 * c] * q1 + odd[2 * c + 1] * q3;
      }
    }
  }
}

// Bytes below 16 by a table of 16.
inline void lookup(const uint8_t* table, uint8_t* bytes) {
  for (int64_t i = 0; i < kGroup * kPanel; ++i) bytes[i] = table[bytes[i]];
}

}  // namespace
}  // namespace headrace

#include "linear_plain.hpp"
