// int4: a panel is
//   bytes 0..127   32 floats: the scale of each output
//   then one group of 576 bytes per 32 inputs (p = k rounded up to 32):
//     bytes 0..31    multiplier of each output, 0..17
//     bytes 32..63   offset of each output, 0..255
//     bytes 64..575  eight lines of 64 bytes; line 2 i + h (i = 0..3, h = 0, 1) holds outputs 16 h .. 16 h + 15
//                    as [16 outputs][4 inputs]; input t of output c is byte 4 (c - 16 h) + t, whose low nibble
//                    is the code of input 8 i + t and whose high nibble that of input 8 i + 4 + t
// The stored numbers are those of the rotated weights (panel.hpp):
//   w_rotated[output][input] = scale[output] * (multiplier * code + offset - 128), where 15 * multiplier + offset <= 255.
// So unpacking is one 16-bit multiplication for two weights and one byte addition, which some kernels do not make at all
// (linear_int4_avx2.hpp); the result fits int8, so a row's sum is exact in int32 whatever its order.
// 4.5 bits a weight. 128 + 18 p bytes.
//
// Quantiser, per output: scale0 = largest magnitude / 127. Per group, of four multipliers (from the one that
// covers the group's range downwards, which clips) and four phases of the offset the pair of least squared
// error, its offset then refined once; at last the scale is fitted by least squares. All in float, sums in
// ascending order of inputs: the NumPy definition gives the same bits.
#pragma once
#include "int8.hpp"

namespace headrace {
namespace {

constexpr int64_t kGroupBytes = 64 + kGroup * kPanel / 2;
constexpr int kMultipliers = 4;
constexpr int kPhases = 4;

struct Int4 {
  static int64_t panel_bytes(int64_t k) { return kScaleBytes + padded_k(k) / kGroup * kGroupBytes; }
  static int64_t padded_k(int64_t k) { return rotated_k(k); }

  // One group of 32 inputs of 32 outputs: all arrays are over outputs.
  struct Choice {
    float error[kPanel];
    float multiplier[kPanel];
    float offset[kPanel];
  };

  static float offset_within(float offset, float multiplier) {
    return min_of(max_of(offset, -128.0f), 127.0f - 15.0f * multiplier);
  }

  // The nearest code. Clamped as an integer: compilers vectorize that everywhere, unlike a clamp of floats.
  static float code_of(float value) {
    constexpr int32_t kZero = 0x4b400000;  // kRound's bits
    int32_t code = static_cast<int32_t>(bits_of(value + kRound));
    code = code < kZero ? kZero : code;
    code = code > kZero + 15 ? kZero + 15 : code;
    return float_of(static_cast<uint32_t>(code)) - kRound;
  }

  // Keeps (m, b) where its squared error is below the best so far; `mean` gets the mean of v - m q.
  static void weigh(const float* v, const float* m, const float* b, Choice& best, float* mean) {
    float error[kPanel], rest[kPanel], inverse[kPanel];
    for (int64_t c = 0; c < kPanel; ++c) {
      error[c] = 0;
      rest[c] = 0;
      inverse[c] = 1.0f / m[c];
    }
    for (int64_t i = 0; i < kGroup; ++i) {
      for (int64_t c = 0; c < kPanel; ++c) {
        const float above = v[i * kPanel + c] - b[c];
        const float q = code_of(above * inverse[c]);
        const float miss = above - m[c] * q;
        error[c] = error[c] + miss * miss;
        rest[c] = rest[c] + miss;
      }
    }
    for (int64_t c = 0; c < kPanel; ++c) {
      const bool better = error[c] < best.error[c];
      best.error[c] = better ? error[c] : best.error[c];
      best.multiplier[c] = better ? m[c] : best.multiplier[c];
      best.offset[c] = better ? b[c] : best.offset[c];
      mean[c] = b[c] + rest[c] * (1.0f / kGroup);
    }
  }

  static void choose(const float* v, Choice& best) {
    float low[kPanel], high[kPanel], m[kPanel], b[kPanel], mean[kPanel];
    for (int64_t c = 0; c < kPanel; ++c) {
      low[c] = high[c] = v[c];
      best.error[c] = 3e38f;
      best.multiplier[c] = 1;
      best.offset[c] = 0;
    }
    for (int64_t i = 1; i < kGroup; ++i) {
      for (int64_t c = 0; c < kPanel; ++c) {
        low[c] = min_of(low[c], v[i * kPanel + c]);
        high[c] = max_of(high[c], v[i * kPanel + c]);
      }
    }
    for (int less = 0; less < kMultipliers; ++less) {
      for (int phase = 0; phase < kPhases; ++phase) {
        const float below = -7.875f + 0.25f * static_cast<float>(phase);
        for (int64_t c = 0; c < kPanel; ++c) {
          const float covering = round_even((high[c] - low[c]) * (1.0f / 15.0f) + 0.49f);
          m[c] = max_of(min_of(covering, 17.0f) - static_cast<float>(less), 1.0f);
          b[c] = offset_within(round_even((low[c] + high[c]) * 0.5f + m[c] * below), m[c]);
        }
        weigh(v, m, b, best, mean);
      }
    }
    Choice start = best;
    weigh(v, start.multiplier, start.offset, best, mean);
    for (int64_t c = 0; c < kPanel; ++c) {
      b[c] = offset_within(round_even(mean[c]), start.multiplier[c]);
    }
    weigh(v, start.multiplier, b, best, mean);
  }

  // Writes a group; adds to the sums of the least-squares scale.
  static void write_group(const float* w, const float* v, const Choice& choice, float* product, float* square,
                          uint8_t* out) {
    uint8_t codes[kGroup][kPanel];
    float inverse[kPanel];
    for (int64_t c = 0; c < kPanel; ++c) inverse[c] = 1.0f / choice.multiplier[c];
    for (int64_t i = 0; i < kGroup; ++i) {
      for (int64_t c = 0; c < kPanel; ++c) {
        const float above = v[i * kPanel + c] - choice.offset[c];
        const float q = code_of(above * inverse[c]);
        const float value = choice.multiplier[c] * q + choice.offset[c];
        product[c] = product[c] + w[i * kPanel + c] * value;
        square[c] = square[c] + value * value;
        codes[i][c] = static_cast<uint8_t>(round_to_int(q));
      }
    }
    for (int64_t c = 0; c < kPanel; ++c) {
      out[c] = static_cast<uint8_t>(round_to_int(choice.multiplier[c]));
      out[kPanel + c] = static_cast<uint8_t>(round_to_int(choice.offset[c]) + 128);
    }
    for (int64_t i = 0; i < kGroup; i += 8) {
      for (int64_t c = 0; c < kPanel; ++c) {
        uint8_t* line = out + 64 + (i / 4 + c / 16) * 64 + c % 16 * 4;
        for (int64_t t = 0; t < 4; ++t) line[t] = static_cast<uint8_t>(codes[i + t][c] | (codes[i + 4 + t][c] << 4));
      }
    }
  }

  static bool pack_panel(float* w, int64_t k, uint8_t* out) {
    const int64_t padded = padded_k(k);
    const int64_t block = rotation_block(k);
    for (int64_t i = 0; i < padded; i += block) rotate_columns(w + i * kPanel, block);
    float largest[kPanel], inverse[kPanel], product[kPanel] = {}, square[kPanel] = {};
    Int8::largest_magnitudes(w, padded, largest);
    for (int64_t c = 0; c < kPanel; ++c) {
      if (!is_finite(largest[c])) return false;
      inverse[c] = largest[c] < kTiny ? 0.0f : 127.0f / largest[c];
    }
    for (int64_t group = 0; group < padded / kGroup; ++group) {
      const float* from = w + group * kGroup * kPanel;
      float v[kGroup * kPanel];
      for (int64_t i = 0; i < kGroup; ++i) {
        for (int64_t c = 0; c < kPanel; ++c) v[i * kPanel + c] = from[i * kPanel + c] * inverse[c];
      }
      Choice choice;
      choose(v, choice);
      write_group(from, v, choice, product, square, out + kScaleBytes + group * kGroupBytes);
    }
    for (int64_t c = 0; c < kPanel; ++c) {
      const float scale = square[c] > 0 && largest[c] >= kTiny ? product[c] / square[c] : 0.0f;
      if (!is_finite(scale)) return false;
      std::memcpy(out + c * 4, &scale, 4);
    }
    return true;
  }

  // The rotated weight of input i.
  static float value(const uint8_t* panel, int64_t i, int64_t column) {
    float scale;
    std::memcpy(&scale, panel + column * 4, 4);
    const uint8_t* group = panel + kScaleBytes + i / kGroup * kGroupBytes;
    const int64_t within = i % kGroup;
    const uint8_t both = group[64 + (within / 8 * 2 + column / 16) * 64 + column % 16 * 4 + within % 4];
    const int code = within % 8 < 4 ? both & 15 : both >> 4;
    const int integer = group[column] * code + group[kPanel + column] - 128;
    return static_cast<float>(integer) * scale;
  }
};

}  // namespace
}  // namespace headrace
