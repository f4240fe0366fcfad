// f32: a panel is [k][32] floats. 128 k bytes.
#pragma once
#include "panel.hpp"

namespace headrace {
namespace {

struct F32 {
  static int64_t panel_bytes(int64_t k) { return k * kPanel * 4; }
  static int64_t padded_k(int64_t k) { return k; }
  // Packs w[padded k][32]; false where a value does not fit the format.
  static bool pack_panel(float* w, int64_t k, uint8_t* out) {
    std::memcpy(out, w, static_cast<size_t>(panel_bytes(k)));
    return true;
  }
  static float value(const uint8_t* panel, int64_t i, int64_t column) {
    float value;
    std::memcpy(&value, panel + (i * kPanel + column) * 4, 4);
    return value;
  }
};

}  // namespace
}  // namespace headrace
