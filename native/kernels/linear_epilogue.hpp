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

constexpr int64_t kPanelsAhead = 1;  // whose B is fetched

// row[32] += B h for one panel of B: a chain over the rank, which is added at once.
inline void add_adapter(const LoraPair& pair, int64_t panel, const uint32_t* hidden, float* row) {
  const int64_t rank = pair.rank;
  if (pair.type == Format::f32) {
    const float* b = reinterpret_cast<const float*>(pair.b) + panel * rank * kPanel;
    float sums[kPanel] = {};
    for (int64_t j = 0; j < rank; ++j, b += kPanel) {
      const float h = float_of(hidden[j]);
      for (int c = 0; c < kPanel; ++c) sums[c] += h * b[c];
    }
    for (int c = 0; c < kPanel; ++c) row[c] += sums[c];
    return;
  }
  const uint8_t* b = pair.b + panel * rank * kPanel * 2;
#if defined(HEADRACE_ISA_avx512)
  __m512 low = _mm512_setzero_ps(), high = low;
  for (int64_t j = 0; j < rank / 2; ++j, b += 128) {
    const __m512bh h = (__m512bh)_mm512_set1_epi32(static_cast<int>(hidden[j]));
    __builtin_prefetch(b + kPanelsAhead * rank * kPanel * 2);
    __builtin_prefetch(b + kPanelsAhead * rank * kPanel * 2 + 64);
    low = _mm512_dpbf16_ps(low, (__m512bh)_mm512_loadu_si512(b), h);
    high = _mm512_dpbf16_ps(high, (__m512bh)_mm512_loadu_si512(b + 64), h);
  }
  _mm512_storeu_ps(row, _mm512_add_ps(_mm512_loadu_ps(row), low));
  _mm512_storeu_ps(row + 16, _mm512_add_ps(_mm512_loadu_ps(row + 16), high));
#else
  float sums[kPanel] = {};
  for (int64_t j = 0; j < rank / 2; ++j, b += 128) {
    const float even = float_of(hidden[j] << 16), odd = float_of(hidden[j] & 0xffff0000u);
    uint32_t words[kPanel];
    std::memcpy(words, b, sizeof words);
    for (int c = 0; c < kPanel; ++c) {
      sums[c] += even * float_of(words[c] << 16);
      sums[c] += odd * float_of(words[c] & 0xffff0000u);
    }
  }
  for (int c = 0; c < kPanel; ++c) row[c] += sums[c];
#endif
}

// What the adapters of rows [row0, row0 + rows) add to one panel of weight `which`.
inline void add_adapters(const LoraRows& lora, int which, int64_t panel, int64_t row0, int64_t rows, float* acc) {
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t adapter = lora.adapters[row0 + r];
    if (adapter < 0) continue;
    const LoraPair& pair = lora.pairs[static_cast<int64_t>(adapter) * kMaxLinears + which];
    if (pair.rank > 0) add_adapter(pair, panel, lora.hidden + (row0 + r) * lora.stride + pair.at, acc + r * kPanel);
  }
}

// Sums of rows [row0, row0 + rows) become products in place: acc[rows][32], integers to floats, bias and adapters added.
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
  if (args.lora != nullptr) add_adapters(*args.lora, which, panel, row0, rows, acc);
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
