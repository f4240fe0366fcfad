// f16: a panel is [k][32] IEEE half floats, little-endian. 64 k bytes.
#pragma once
#include "panel.hpp"

namespace headrace {
namespace {

struct F16 {
  static int64_t panel_bytes(int64_t k) { return k * kPanel * 2; }
  static int64_t padded_k(int64_t k) { return k; }
  static bool pack_panel(float* w, int64_t k, uint8_t* out) {
    uint32_t worst = 0;
    for (int64_t i = 0; i < k * kPanel; ++i) {
      const uint16_t half = to_f16(w[i]);
      const uint32_t magnitude = half & 0x7fffu;
      worst = magnitude > worst ? magnitude : worst;
      std::memcpy(out + i * 2, &half, 2);
    }
    return worst < 0x7c00u;
  }
  static float value(const uint8_t* panel, int64_t i, int64_t column) {
    uint16_t half;
    std::memcpy(&half, panel + (i * kPanel + column) * 2, 2);
    return from_f16(half);
  }
};

}  // namespace
}  // namespace headrace
