// int8: a panel is
//   bytes 0..127   32 floats: the scale of each output
//   then           [p / 4][32][4] bytes: weight + 128, four inputs side by side, as vpdpbusd needs them
// where p = k rounded up to 32. The stored integers are those of the rotated weights (panel.hpp), so
//   w_rotated[output][input] = scale[output] * (byte - 128).
// Symmetric: scale = largest magnitude / 127. 128 + 32 p bytes.
#pragma once
#include "panel.hpp"

namespace headrace {
namespace {

constexpr int64_t kScaleBytes = kPanel * 4;

struct Int8 {
  static int64_t panel_bytes(int64_t k) { return kScaleBytes + padded_k(k) * kPanel; }
  static int64_t padded_k(int64_t k) { return rotated_k(k); }

  static void largest_magnitudes(const float* w, int64_t padded, float* largest) {
    for (int64_t c = 0; c < kPanel; ++c) largest[c] = 0;
    for (int64_t i = 0; i < padded; ++i) {
      for (int64_t c = 0; c < kPanel; ++c) {
        const float magnitude = float_of(bits_of(w[i * kPanel + c]) & 0x7fffffffu);
        largest[c] = max_of(largest[c], magnitude);
      }
    }
  }

  // Packs w[padded k][32], which is left rotated; false where rotating overflowed.
  static bool pack_panel(float* w, int64_t k, uint8_t* out) {
    const int64_t padded = padded_k(k);
    const int64_t block = rotation_block(k);
    for (int64_t i = 0; i < padded; i += block) rotate_columns(w + i * kPanel, block);
    float scale[kPanel], inverse[kPanel];
    largest_magnitudes(w, padded, scale);
    bool good = true;
    for (int64_t c = 0; c < kPanel; ++c) {
      good = good && is_finite(scale[c]);
      inverse[c] = scale[c] < kTiny ? 0.0f : 127.0f / scale[c];
      scale[c] = scale[c] < kTiny ? 0.0f : scale[c] / 127.0f;
    }
    if (!good) return false;
    std::memcpy(out, scale, sizeof scale);
    for (int64_t i = 0; i < padded; ++i) {
      for (int64_t c = 0; c < kPanel; ++c) {
        const int32_t q = round_to_int(w[i * kPanel + c] * inverse[c]) + 128;
        out[kScaleBytes + (i / 4 * kPanel + c) * 4 + i % 4] = static_cast<uint8_t>(q);
      }
    }
    return true;
  }

  // The rotated weight of input i.
  static float value(const uint8_t* panel, int64_t i, int64_t column) {
    float scale;
    std::memcpy(&scale, panel + column * 4, 4);
    return static_cast<float>(panel[kScaleBytes + (i / 4 * kPanel + column) * 4 + i % 4] - 128) * scale;
  }
};

}  // namespace
}  // namespace headrace
