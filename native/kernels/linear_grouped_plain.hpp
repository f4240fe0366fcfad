// Unpacking in plain C++, and grouped tiles over the int8 kernel of any ISA: it sums a group, plain C++ scales it.
#pragma once
#include "linear_layout.hpp"

namespace headrace {
namespace {

// Codes of kLow + kHigh bits from their planes. In words of 32 bits, whose shifts every ISA vectorizes.
template <int kLow, int kHigh>
inline void join_planes(const uint8_t* planes, uint8_t* out) {
  constexpr int kWords = kPanel;  // of a step
  constexpr uint32_t kLowMask = 0x01010101u * ((1 << kLow) - 1), kHighMask = 0x01010101u * ((1 << kHigh) - 1);
  const uint8_t* high = planes + kGroup * kPanel / 8 * kLow;
#pragma GCC unroll 8
  for (int step = 0; step < kGroup / 4; ++step) {
    uint32_t words[kWords], upper[kWords];
    std::memcpy(words, planes + step / (8 / kLow) * 128, sizeof words);
    for (int c = 0; c < kWords; ++c) words[c] = (words[c] >> (step % (8 / kLow) * kLow)) & kLowMask;
    if constexpr (kHigh > 0) {
      constexpr int kPer = 8 / (kHigh > 0 ? kHigh : 1);
      std::memcpy(upper, high + step / kPer * 128, sizeof upper);
      for (int c = 0; c < kWords; ++c) words[c] |= ((upper[c] >> (step % kPer * kHigh)) & kHighMask) << kLow;
    }
    std::memcpy(out + step * 128, words, sizeof words);
  }
}

inline void unpack_codes(const Grouped& g, const uint8_t* planes, const uint8_t* table, uint8_t* out) {
  if (g.codes == Codes::table) {
    join_planes<4, 0>(planes, out);
    return lookup(table, out);
  }
  if (g.low_bits == 2) {
    return g.high_bits == 0 ? join_planes<2, 0>(planes, out) : join_planes<2, 1>(planes, out);
  }
  if (g.high_bits == 0) return join_planes<4, 0>(planes, out);
  return g.high_bits == 1 ? join_planes<4, 1>(planes, out) : join_planes<4, 2>(planes, out);
}

inline GroupKernel direct_group(const Grouped&, int64_t) { return nullptr; }

template <int kRows, bool kHalves, bool kMinima>
HEADRACE_LEAF void tile_group(const GroupTile& t) {
  constexpr int kParts = kHalves ? 2 : 1;
  for (int64_t g = 0; g < t.groups; ++g) {
    const uint32_t* in = t.inputs + g * kGroupInputs * kRows;
    for (int half = 0; half < kParts; ++half) {
      const int64_t step = g * 8 + half * 4;
      const uint8_t* w = t.codes + g * t.stride + half * 512;
      int32_t sums[kRows * kPanel] = {};
      tile_int8<kRows>(w, t.x + step * kRows, 8 / kParts, sums, {w, 0, 0});
      const GroupScales& s = t.scales[g];
      for (int r = 0; r < kRows; ++r) {
        const int32_t codes = static_cast<int32_t>(in[(kHalves ? kInputLow + half : kInputAll) * kRows + r]);
        const float row = float_of(in[kInputScale * kRows + r]);
        const float total = row * static_cast<float>(codes);
        // Where int8's kernel takes 128 off the bytes by itself, that is no longer part of the zero.
        const int32_t offset = codes * (t.zero - 128 + kWeightZero);
        float* acc = t.acc + r * kPanel;
        for (int c = 0; c < kPanel; ++c) {
          acc[c] += static_cast<float>(sums[r * kPanel + c] + offset) * (s.scale[half][c] * row);
          if (kMinima) acc[c] += s.minimum[half][c] * total;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
