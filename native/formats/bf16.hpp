// bf16: a panel is [ceil(k / 2)][32][2] bfloat16, little-endian: pairs of inputs side by side, as
// vdpbf16ps needs them; an odd k is padded with zeros. 128 ceil(k / 2) bytes.
#pragma once
#include "panel.hpp"

namespace headrace {
namespace {

struct Bf16 {
  static int64_t panel_bytes(int64_t k) { return padded_k(k) * kPanel * 2; }
  static int64_t padded_k(int64_t k) { return round_up(k, 2); }
  static bool pack_panel(float* w, int64_t k, uint8_t* out) {
    uint32_t worst = 0;
    for (int64_t pair = 0; pair < padded_k(k) / 2; ++pair) {
      const float* even = w + pair * 2 * kPanel;
      for (int64_t c = 0; c < kPanel; ++c) {
        const uint32_t low = to_bf16(even[c]);
        const uint32_t high = to_bf16(even[kPanel + c]);
        const uint32_t larger = (low & 0x7fffu) > (high & 0x7fffu) ? (low & 0x7fffu) : (high & 0x7fffu);
        worst = larger > worst ? larger : worst;
        const uint32_t both = low | (high << 16);
        std::memcpy(out + (pair * kPanel + c) * 4, &both, 4);
      }
    }
    return worst < 0x7f80u;
  }
  static float value(const uint8_t* panel, int64_t i, int64_t column) {
    uint16_t half;
    std::memcpy(&half, panel + ((i / 2 * kPanel + column) * 2 + i % 2) * 2, 2);
    return from_bf16(half);
  }
};

}  // namespace
}  // namespace headrace
