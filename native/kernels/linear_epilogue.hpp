// What follows a product, on one panel's sums: scales, bias, gated activation, residual.
//
// Everything is per element, so the result does not depend on which rows come together. The loops over
// 32 columns are for the compiler to vectorize, but for the activation: its clamps made AVX2's code scalar.
#pragma once
#include "activation.hpp"
#include "linear_layout.hpp"

namespace headrace {
namespace {

namespace simd = HEADRACE_NAMESPACE;

// Sums of rows [row0, row0 + rows) become products in place: acc[rows][32], integers to floats, bias added.
inline void settle(const FusedLinearArgs& args, const Scratch& scratch, int which, int64_t panel, int64_t row0,
                   int64_t rows, float* acc) {
  const Weight& w = args.w[which];
  const bool integer = form_of(w.format) == Form::int8;
  float scale[kPanel], bias[kPanel] = {};
  if (integer) std::memcpy(scale, w.data + panel * panel_bytes_of(w.format, w.k), sizeof scale);
  const float* from = args.bias[which];
  const int64_t left = w.n - panel * kPanel;
  if (from != nullptr) std::memcpy(bias, from + panel * kPanel, static_cast<size_t>(left < kPanel ? left : kPanel) * 4);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = acc + r * kPanel;
    if (integer) {
      uint32_t sums[kPanel];
      std::memcpy(sums, row, sizeof sums);
      // Unsigned, so that sums beyond int32 on the way wrap and come back.
      const uint32_t shift = static_cast<uint32_t>(kWeightZero) * static_cast<uint32_t>(scratch.sums[row0 + r]);
      const float row_scale = scratch.scales[row0 + r];
      for (int c = 0; c < kPanel; ++c) {
        row[c] = static_cast<float>(static_cast<int32_t>(sums[c] - shift)) * scale[c] * row_scale;
      }
    }
    if (from != nullptr) {
      for (int c = 0; c < kPanel; ++c) row[c] += bias[c];
    }
  }
}

// Adds a panel's columns of the residual; those of later rows, `stride` numbers apart, are fetched meanwhile.
inline void add_line(const float* residual, int64_t stride, float* row) {
  constexpr int kRowsAhead = 8;
  __builtin_prefetch(residual + kRowsAhead * stride);
  __builtin_prefetch(residual + kRowsAhead * stride + kPanel / 2);
  for (int c = 0; c < kPanel; ++c) row[c] += residual[c];
}

// Writes settled products to y[which]; with `gate`, act(gate) * products.
inline void write_out(const FusedLinearArgs& args, int which, int64_t panel, int64_t row0, int64_t rows, float* acc,
                      float* gate) {
  float* y = args.y[gate == nullptr ? which : 0];
  const int64_t n = args.w[which].n;
  const int64_t left = n - panel * kPanel;
  const int64_t columns = left < kPanel ? left : kPanel;
  const float* residual = which == 0 || gate != nullptr ? args.residual : nullptr;
  for (int64_t r = 0; r < rows; ++r) {
    float* row = acc + r * kPanel;
    const int64_t at = (row0 + r) * n + panel * kPanel;
    if (gate != nullptr) {
      for (int c = 0; c < kPanel; c += simd::kWidth) {
        simd::store(row + c, simd::activate(args.act, simd::load(gate + r * kPanel + c)) * simd::load(row + c));
      }
    }
    if (columns == kPanel) {
      if (residual != nullptr) add_line(residual + at, n, row);
      std::memcpy(y + at, row, kPanel * 4);
    } else {
      for (int64_t c = 0; c < columns && residual != nullptr; ++c) row[c] += residual[at + c];
      std::memcpy(y + at, row, static_cast<size_t>(columns) * 4);
    }
  }
}

}  // namespace
}  // namespace headrace
