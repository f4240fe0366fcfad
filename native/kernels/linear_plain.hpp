// Unpacking int4 groups into int8's layout and rotating rows, in plain C++, for the ISAs that have no better way.
#pragma once
#include "linear_layout.hpp"

namespace headrace {
namespace {

// `groups` groups of 576 bytes into [8 groups][32][4] bytes.
inline void unpack_groups(const uint8_t* from, int64_t groups, uint8_t* out) {
  for (int64_t g = 0; g < groups; ++g, from += kGroupBytes, out += kGroup * kPanel) {
    uint8_t multiplier[kPanel * 4], offset[kPanel * 4];
    for (int c = 0; c < kPanel * 4; ++c) {
      multiplier[c] = from[c / 4];
      offset[c] = from[kPanel + c / 4];
    }
    for (int line = 0; line < 8; ++line) {
      const uint8_t* codes = from + 64 + line * 64;
      const int half = line % 2 * 64;
      uint8_t* low = out + line / 2 * 256 + half;
      for (int b = 0; b < 64; ++b) {
        low[b] = static_cast<uint8_t>((codes[b] & 15) * multiplier[half + b] + offset[half + b]);
        low[128 + b] = static_cast<uint8_t>((codes[b] >> 4) * multiplier[half + b] + offset[half + b]);
      }
    }
  }
}

template <int kDistance>
void butterflies(float* x, int64_t count) {
  for (int64_t start = 0; start < count; start += 2 * kDistance) {
    for (int i = 0; i < kDistance; ++i) {
      const float a = x[start + i];
      const float b = x[start + i + kDistance];
      x[start + i] = a + b;
      x[start + i + kDistance] = a - b;
    }
  }
}

// Rotates a whole row of `count` values, a multiple of `block`, to `x`, which may be where they are.
inline void rotate_row(const float* from, float* x, int64_t count, int64_t block) {
  const float scale = rotation_scale(block);
  if (from != x) std::memcpy(x, from, static_cast<size_t>(count) * 4);
  for (int64_t start = 0; start < count; start += block) {
    float* at = x + start;
    butterflies<1>(at, block);
    butterflies<2>(at, block);
    butterflies<4>(at, block);
    butterflies<8>(at, block);
    butterflies<16>(at, block);
    if (block >= 64) butterflies<32>(at, block);
    if (block >= 128) butterflies<64>(at, block);
    for (int64_t i = 0; i < block; ++i) at[i] *= scale;
  }
}

}  // namespace
}  // namespace headrace
