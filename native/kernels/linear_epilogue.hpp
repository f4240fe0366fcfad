// What follows a product, on one strip's sums: scales, bias, gated activation, residual.
//
// Everything is per element, so the result does not depend on which rows come together. The loops over
// 32 columns are for the compiler to vectorise.
#pragma once
#include "linear_layout.hpp"

namespace headrace {
namespace {

// e^x within 2 units in the last place for x in [-87, 88], clamped there; a NaN stays one.
inline float exp_of(float x) {
  const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts (Cody and Waite)
  // Taylor to the sixth order: |r| <= 0.35, so the next term is below 2^-23.
  const float p = 1.0f + r * (1.0f + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
  return p * float_of((bits_of(shifted) - bits_of(kRound) + 127u) << 23);
}

inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// The error function to 1.5e-7 (Abramowitz and Stegun 7.1.26).
inline float erf_of(float x) {
  const float z = float_of(bits_of(x) & 0x7fffffffu);
  const float t = 1.0f / (1.0f + 0.3275911f * z);
  const float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float magnitude = 1.0f - p * exp_of(-z * z);
  return float_of(bits_of(magnitude) | (bits_of(x) & 0x80000000u));
}

inline void activate(Act act, float* v) {
  if (act == Act::silu) {
    for (int c = 0; c < kStrip; ++c) v[c] = v[c] * sigmoid_of(v[c]);
  } else if (act == Act::gelu) {
    for (int c = 0; c < kStrip; ++c) v[c] = 0.5f * v[c] * (1.0f + erf_of(v[c] * 0.70710678f));
  } else if (act == Act::gelu_tanh) {
    // 0.5 (1 + tanh(u)) is the logistic function of 2 u.
    for (int c = 0; c < kStrip; ++c) {
      v[c] = v[c] * sigmoid_of(1.59576912f * (v[c] + 0.044715f * v[c] * v[c] * v[c]));
    }
  }
}

// Sums of rows [row0, row0 + rows) become products in place: acc[rows][32], integers to floats, bias added.
inline void settle(const FusedLinearArgs& args, const Scratch& scratch, int which, int64_t strip, int64_t row0,
                   int64_t rows, float* acc) {
  const Weight& w = args.w[which];
  const bool integer = form_of(w.format) == Form::int8;
  float scale[kStrip], bias[kStrip] = {};
  if (integer) std::memcpy(scale, w.data + strip * strip_bytes_of(w.format, w.k), sizeof scale);
  const float* from = args.bias[which];
  const int64_t left = w.n - strip * kStrip;
  if (from != nullptr) std::memcpy(bias, from + strip * kStrip, static_cast<size_t>(left < kStrip ? left : kStrip) * 4);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = acc + r * kStrip;
    if (integer) {
      uint32_t sums[kStrip];
      std::memcpy(sums, row, sizeof sums);
      // Unsigned, so that sums beyond int32 on the way wrap and come back.
      const uint32_t shift = static_cast<uint32_t>(kWeightZero) * static_cast<uint32_t>(scratch.sums[row0 + r]);
      const float row_scale = scratch.scales[row0 + r];
      for (int c = 0; c < kStrip; ++c) {
        row[c] = static_cast<float>(static_cast<int32_t>(sums[c] - shift)) * scale[c] * row_scale;
      }
    }
    if (from != nullptr) {
      for (int c = 0; c < kStrip; ++c) row[c] += bias[c];
    }
  }
}

// Adds a strip's columns of the residual; those of later rows, `stride` numbers apart, are fetched meanwhile.
inline void add_line(const float* residual, int64_t stride, float* row) {
  constexpr int kRowsAhead = 8;
  __builtin_prefetch(residual + kRowsAhead * stride);
  __builtin_prefetch(residual + kRowsAhead * stride + kStrip / 2);
  for (int c = 0; c < kStrip; ++c) row[c] += residual[c];
}

// Writes settled products to y[which]; with `gate`, act(gate) * products.
inline void write_out(const FusedLinearArgs& args, int which, int64_t strip, int64_t row0, int64_t rows, float* acc,
                      float* gate) {
  float* y = args.y[gate == nullptr ? which : 0];
  const int64_t n = args.w[which].n;
  const int64_t left = n - strip * kStrip;
  const int64_t columns = left < kStrip ? left : kStrip;
  const float* residual = which == 0 || gate != nullptr ? args.residual : nullptr;
  for (int64_t r = 0; r < rows; ++r) {
    float* row = acc + r * kStrip;
    const int64_t at = (row0 + r) * n + strip * kStrip;
    if (gate != nullptr) {
      activate(args.act, gate + r * kStrip);
      for (int c = 0; c < kStrip; ++c) row[c] *= gate[r * kStrip + c];
    }
    if (columns == kStrip) {
      if (residual != nullptr) add_line(residual + at, n, row);
      std::memcpy(y + at, row, kStrip * 4);
    } else {
      for (int64_t c = 0; c < columns && residual != nullptr; ++c) row[c] += residual[at + c];
      std::memcpy(y + at, row, static_cast<size_t>(columns) * 4);
    }
  }
}

}  // namespace
}  // namespace headrace
