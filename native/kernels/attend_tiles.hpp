// Register tiles of attention: scores of some rows with some pages of keys, outputs of some rows from values.
#pragma once
#include "attend.hpp"
#include "attend_numbers.hpp"

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

// scores[r][0 .. 16 Pages) = sum over d of q[r][d] * K[d][key], for Rows rows and Pages pages.
template <typename T, int Rows, int Pages>
static void score_tile(const typename Arithmetic<T>::Factor* q, int q_stride, const T* const* pages, int head_dim,
                       float* scores) {
  constexpr int kTogether = Arithmetic<T>::kTogether;
  F acc[Rows][Pages * kPageVectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Pages * kPageVectors; ++v) acc[r][v] = F{};
  }
  const T* page[Pages];
  for (int p = 0; p < Pages; ++p) page[p] = pages[p];
  int d = 0;
  for (; d + kTogether <= head_dim; d += kTogether) {
    decltype(load_numbers(page[0])) keys[Pages * kPageVectors];
    for (int p = 0; p < Pages; ++p) {
      for (int v = 0; v < kPageVectors; ++v) {
        keys[p * kPageVectors + v] = load_numbers(page[p] + d * kPageTokens + v * kWidth * kTogether);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      const auto factor = splat_factors<T>(q + r * q_stride + d);
      for (int v = 0; v < Pages * kPageVectors; ++v) acc[r][v] = add_products(factor, keys[v], acc[r][v]);
    }
  }
  if constexpr (kTogether == 2) {
    if (d < head_dim) {  // q is padded with zeros
      for (int r = 0; r < Rows; ++r) {
        const auto factor = splat_factors<T>(q + r * q_stride + d);
        for (int v = 0; v < Pages * kPageVectors; ++v) {
          const T* lone = page[v / kPageVectors] + d * kPageTokens + v % kPageVectors * kWidth;
          acc[r][v] = add_products(factor, load_lone(lone), acc[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Pages * kPageVectors; ++v) store(scores + r * kBlock + v * kWidth, acc[r][v]);
  }
}

template <typename T, int Rows>
static void score_rows(const typename Arithmetic<T>::Factor* q, int q_stride, const T* const* pages, int page_count,
                       int head_dim, float* scores) {
  int p = 0;
  for (; p + kScorePages <= page_count; p += kScorePages) {
    score_tile<T, Rows, kScorePages>(q, q_stride, pages + p, head_dim, scores + p * kPageTokens);
  }
  for (; p < page_count; ++p) {
    score_tile<T, Rows, 1>(q, q_stride, pages + p, head_dim, scores + p * kPageTokens);
  }
}

// Weights of a row of a block, where its scores were.
template <typename T>
static inline typename Arithmetic<T>::Factor* weights_of(float* scores) {
  return reinterpret_cast<typename Arithmetic<T>::Factor*>(scores);
}
template <typename T>
constexpr int kWeightStride = kBlock * static_cast<int>(sizeof(float) / sizeof(typename Arithmetic<T>::Factor));

// out[r][0 .. Vectors) = out * decay[r] + sum over keys of weight[r][key] * V[key], in order of keys.
template <typename T, int Rows, int Vectors>
static void out_tile(const typename Arithmetic<T>::Factor* weights, const float* decay, const T* const* pages, int key0,
                     int key1, int value_dim, int lanes, float* out, int out_stride) {
  constexpr int kTogether = Arithmetic<T>::kTogether;
  F acc[Rows][Vectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) acc[r][v] = load(out + r * out_stride + v * kWidth) * splat(decay[r]);
  }
  for (int key = key0 / kTogether * kTogether; key < key1; key += kTogether) {
    const T* values = pages[key / kPageTokens] + (key % kPageTokens) * value_dim;
    decltype(load_numbers(values)) value[Vectors];
    for (int v = 0; v < Vectors; ++v) {
      const T* from = values + v * kWidth * kTogether;
      value[v] = lanes == kWidth ? load_numbers(from) : load_numbers(from, lanes);
      // What no row sees may be anything, also what no finite weight makes zero.
      if (kTogether == 2 && (key < key0 || key + 1 >= key1)) value[v] = only(value[v], key >= key0, key + 1 < key1);
    }
    for (int r = 0; r < Rows; ++r) {
      const auto weight = splat_factors<T>(weights + r * kWeightStride<T> + key);
      for (int v = 0; v < Vectors; ++v) acc[r][v] = add_products(weight, value[v], acc[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) store(out + r * out_stride + v * kWidth, acc[r][v]);
  }
}

template <typename T, int Rows>
static void out_rows(const typename Arithmetic<T>::Factor* weights, const float* decay, const T* const* pages, int key0,
                     int key1, int value_dim, float* out, int out_stride) {
  const T* shifted[kBlockPages];
  int d = 0;
  while (d < value_dim) {
    for (int p = 0; p < kBlockPages; ++p) {
      shifted[p] = pages[p] == nullptr ? nullptr : pages[p] + d * Arithmetic<T>::kTogether;
    }
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

// Calls f<Rows>(row) over tiles of at most Max rows, of nearly one size: a tile of few rows waits for its sums.
template <int Rows, typename Call>
static inline void one_tile(int rows, int row, const Call& call) {
  if constexpr (Rows > 0) {
    if (rows == Rows) {
      call.template operator()<Rows>(row);
    } else {
      one_tile<Rows - 1>(rows, row, call);
    }
  }
}
template <int Max, typename Call>
static inline void over_rows(int rows, const Call& call) {
  int row = 0;
  for (int tiles = (rows + Max - 1) / Max; tiles > 0; --tiles) {
    const int size = (rows - row + tiles - 1) / tiles;
    one_tile<Max>(size, row, call);
    row += size;
  }
}

// A page of values that are the first `dim` entries of its keys.
static inline const float* turned(const float* keys, int dim, int, float* to) {
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

static inline const uint16_t* turned(const uint16_t* keys, int dim, int head_dim, uint16_t* to) {
  int d = 0;
  for (; d + 2 <= dim; d += 2) {
    for (int token = 0; token < kPageTokens; token += 2) {
      uint64_t two_by_two;  // dimensions d and d + 1 of two tokens
      memcpy(&two_by_two, keys + d * kPageTokens + token * 2, sizeof two_by_two);
      const uint64_t corners = two_by_two & 0xffff00000000ffffu;
      two_by_two = corners | ((two_by_two & 0xffff0000u) << 16) | ((two_by_two >> 16) & 0xffff0000u);
      memcpy(to + token * dim + d * 2, &two_by_two, sizeof two_by_two);
    }
  }
  for (; d < dim; ++d) {
    for (int token = 0; token < kPageTokens; ++token) {
      to[value_place(KvType::bf16, dim, token, d)] = keys[key_place(KvType::bf16, head_dim, token, d)];
    }
  }
  return to;
}

}  // namespace headrace::HEADRACE_NAMESPACE
