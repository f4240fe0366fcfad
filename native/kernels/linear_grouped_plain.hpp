// Grouped tiles over the int8 kernel of any ISA: it sums a group, plain C++ scales the sums.
#pragma once
#include "linear_layout.hpp"

namespace headrace {
namespace {

template <int kRows, bool kHalves, bool kMinima>
HEADRACE_LEAF void tile_group(const GroupTile& t) {
  constexpr int kParts = kHalves ? 2 : 1;
  for (int64_t g = 0; g < t.groups; ++g) {
    const uint32_t* in = t.inputs + g * kGroupInputs * kRows;
    for (int half = 0; half < kParts; ++half) {
      const int64_t step = g * 8 + half * 4;
      const uint8_t* w = t.codes + g * t.stride + half * 512;
      int32_t sums[kRows * kStrip] = {};
      tile_int8<kRows>(w, t.x + step * kRows, 8 / kParts, sums, {w, 0, 0});
      const GroupScales& s = t.scales[g];
      for (int r = 0; r < kRows; ++r) {
        const int32_t low = static_cast<int32_t>(in[kInputLow * kRows + r]);
        const int32_t high = static_cast<int32_t>(in[kInputHigh * kRows + r]);
        const int32_t codes = kHalves ? (half == 0 ? low : high) : low + high;
        const float row = float_of(in[kInputScale * kRows + r]);
        const float total = row * static_cast<float>(codes);
        // Where int8's kernel takes 128 off the bytes by itself, that is no longer part of the zero.
        const int32_t offset = codes * (t.zero - 128 + kWeightZero);
        float* acc = t.acc + r * kStrip;
        for (int c = 0; c < kStrip; ++c) {
          acc[c] += static_cast<float>(sums[r * kStrip + c] + offset) * (s.scale[half][c] * row);
          if (kMinima) acc[c] += s.minimum[half][c] * total;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
