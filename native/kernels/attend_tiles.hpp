// Register tiles of attention: scores of some rows with some pages of keys, outputs of some rows from values.
#pragma once
#include <math.h>

#include "attend.hpp"
#include "simd.hpp"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kBlockPages = 4;
constexpr int kBlock = kBlockPages * kPageTokens;  // keys
constexpr int kTileRows = 48;
constexpr int kPageVectors = kPageTokens / kWidth;

// Register tiles: rows x pages for scores, rows x vectors of the head for outputs.
#if defined(HEADRACE_ISA_avx512)
constexpr int kScoreRows = 6, kScorePages = 4, kOutRows = 6, kOutVectors = 4;
#elif defined(HEADRACE_ISA_avx2)
constexpr int kScoreRows = 5, kScorePages = 1, kOutRows = 5, kOutVectors = 2;
#elif defined(HEADRACE_ISA_neon)
constexpr int kScoreRows = 5, kScorePages = 1, kOutRows = 5, kOutVectors = 4;
#else
constexpr int kScoreRows = 2, kScorePages = 1, kOutRows = 3, kOutVectors = 4;
#endif

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int larger(int a, int b) { return a < b ? b : a; }

static inline F load_any(const float* p) { return load(p); }
static inline F load_any(const uint16_t* p) { return load_bf16(p); }
static inline F load_any_partial(const float* p, int count) { return load_partial(p, count); }
static inline F load_any_partial(const uint16_t* p, int count) { return load_bf16_partial(p, count); }

// scores[r][0 .. 16 Pages) = sum over d of q[r][d] * K[d][key], for Rows rows and Pages pages.
template <typename T, int Rows, int Pages>
static void score_tile(const float* q, int q_stride, const T* const* pages, int head_dim, float* scores) {
  F acc[Rows][Pages * kPageVectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Pages * kPageVectors; ++v) acc[r][v] = F{};
  }
  const T* page[Pages];
  for (int p = 0; p < Pages; ++p) page[p] = pages[p];
  for (int d = 0; d < head_dim; ++d) {
    F keys[Pages * kPageVectors];
    for (int p = 0; p < Pages; ++p) {
      for (int v = 0; v < kPageVectors; ++v) {
        keys[p * kPageVectors + v] = load_any(page[p] + d * kPageTokens + v * kWidth);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      const F factor = splat(q[r * q_stride + d]);
      for (int v = 0; v < Pages * kPageVectors; ++v) acc[r][v] = fma(factor, keys[v], acc[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Pages * kPageVectors; ++v) store(scores + r * kBlock + v * kWidth, acc[r][v]);
  }
}

template <typename T, int Rows>
static void score_rows(const float* q, int q_stride, const T* const* pages, int page_count, int head_dim,
                       float* scores) {
  int p = 0;
  for (; p + kScorePages <= page_count; p += kScorePages) {
    score_tile<T, Rows, kScorePages>(q, q_stride, pages + p, head_dim, scores + p * kPageTokens);
  }
  for (; p < page_count; ++p) {
    score_tile<T, Rows, 1>(q, q_stride, pages + p, head_dim, scores + p * kPageTokens);
  }
}

// out[r][0 .. Vectors) = out * decay[r] + sum over keys of weight[r][key] * V[key], in order of keys.
template <typename T, int Rows, int Vectors>
static void out_tile(const float* weights, const float* decay, const T* const* pages, int key0, int key1, int value_dim,
                     int lanes, float* out, int out_stride) {
  F acc[Rows][Vectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) acc[r][v] = load(out + r * out_stride + v * kWidth) * splat(decay[r]);
  }
  for (int key = key0; key < key1; ++key) {
    const T* values = pages[key / kPageTokens] + (key % kPageTokens) * value_dim;
    F value[Vectors];
    for (int v = 0; v < Vectors; ++v) {
      value[v] = lanes == kWidth ? load_any(values + v * kWidth) : load_any_partial(values + v * kWidth, lanes);
    }
    for (int r = 0; r < Rows; ++r) {
      const F weight = splat(weights[r * kBlock + key]);
      for (int v = 0; v < Vectors; ++v) acc[r][v] = fma(weight, value[v], acc[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) store(out + r * out_stride + v * kWidth, acc[r][v]);
  }
}

template <typename T, int Rows>
static void out_rows(const float* weights, const float* decay, const T* const* pages, int key0, int key1, int value_dim,
                     float* out, int out_stride) {
  const T* shifted[kBlockPages];
  int d = 0;
  while (d < value_dim) {
    for (int p = 0; p < kBlockPages; ++p) shifted[p] = pages[p] == nullptr ? nullptr : pages[p] + d;
    const int rest = value_dim - d;
    if (rest >= kOutVectors * kWidth) {
      out_tile<T, Rows, kOutVectors>(weights, decay, shifted, key0, key1, value_dim, kWidth, out + d, out_stride);
      d += kOutVectors * kWidth;
    } else {
      out_tile<T, Rows, 1>(weights, decay, shifted, key0, key1, value_dim, smaller(rest, kWidth), out + d, out_stride);
      d += kWidth;
    }
  }
}

// Calls f<Rows>(row) over tiles of Max rows, then one of the rest.
template <int Rows, typename Call>
static inline void rest_of_rows(int rest, int row, const Call& call) {
  if constexpr (Rows > 0) {
    if (rest == Rows) {
      call.template operator()<Rows>(row);
    } else {
      rest_of_rows<Rows - 1>(rest, row, call);
    }
  }
}
template <int Max, typename Call>
static inline void over_rows(int rows, const Call& call) {
  int row = 0;
  for (; row + Max <= rows; row += Max) call.template operator()<Max>(row);
  rest_of_rows<Max - 1>(rows - row, row, call);
}

// `count` numbers, a multiple of 16, as float32: where they are, or in `to`.
static inline const float* widened(const float* from, int, float*) { return from; }
static inline const float* widened(const uint16_t* from, int count, float* to) {
  for (int i = 0; i < count; i += kWidth) store(to + i, load_bf16(from + i));
  return to;
}

// Values that are the first `dim` entries of a page of keys [dim][16], as [16][dim].
static inline const float* turned(const float* keys, int dim, float* to) {
  typedef float Four __attribute__((vector_size(16)));
  const auto four = [&](int d, int token) {
    Four r;
    memcpy(&r, keys + d * kPageTokens + token, sizeof r);
    return r;
  };
  int d = 0;
  for (; d + 4 <= dim; d += 4) {
    for (int token = 0; token < kPageTokens; token += 4) {
      const Four a = four(d, token), b = four(d + 1, token), c = four(d + 2, token), e = four(d + 3, token);
      const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Four ce_low = __builtin_shufflevector(c, e, 0, 4, 1, 5), ce_high = __builtin_shufflevector(c, e, 2, 6, 3, 7);
      const Four columns[4] = {
          __builtin_shufflevector(ab_low, ce_low, 0, 1, 4, 5), __builtin_shufflevector(ab_low, ce_low, 2, 3, 6, 7),
          __builtin_shufflevector(ab_high, ce_high, 0, 1, 4, 5), __builtin_shufflevector(ab_high, ce_high, 2, 3, 6, 7)};
      for (int i = 0; i < 4; ++i) memcpy(to + (token + i) * dim + d, &columns[i], sizeof(Four));
    }
  }
  for (; d < dim; ++d) {
    for (int token = 0; token < kPageTokens; ++token) to[token * dim + d] = keys[d * kPageTokens + token];
  }
  return to;
}

}  // namespace headrace::HEADRACE_NAMESPACE
