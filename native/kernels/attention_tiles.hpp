// Register tiles of attention: scores of some rows with some pages of keys, outputs of some rows from values.
#pragma once
#include "attention.hpp"
#include "attention_numbers.hpp"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kBlockPages = 8;
constexpr int kBlock = kBlockPages * kPageTokens;  // keys
constexpr int kTileRows = 48;
#if defined(HEADRACE_ISA_amx)
constexpr int kMaxTileRows = 256;  // matrix units wait for keys that many rows do not share
#else
constexpr int kMaxTileRows = kTileRows;
#endif
constexpr int kPageVectors = kPageTokens / kWidth;

// Register tiles: rows x pages for scores, rows x vectors of the head for outputs. A tile of few rows takes more of
// either, up to kSums sums (0: not here): with fewer it waits for each.
#if defined(HEADRACE_ISA_avx512)
constexpr int kScoreRows = 6, kScorePages = 4, kOutRows = 6, kOutVectors = 4, kSums = 0;
#elif defined(HEADRACE_ISA_avx2)
constexpr int kScoreRows = 5, kScorePages = 1, kOutRows = 5, kOutVectors = 2, kSums = 8;
#elif defined(HEADRACE_ISA_neon)
constexpr int kScoreRows = 5, kScorePages = 1, kOutRows = 5, kOutVectors = 4, kSums = 0;
#else
constexpr int kScoreRows = 2, kScorePages = 1, kOutRows = 3, kOutVectors = 4, kSums = 0;
#endif

// Tile kernels are functions of their own: inlined into a caller, compilers spill their sums.
#if defined(__clang__)
#define HEADRACE_TILE __attribute__((noinline))
#else
#define HEADRACE_TILE __attribute__((noipa))
#endif

static inline int smaller(int a, int b) { return a < b ? a : b; }
static constexpr int larger(int a, int b) { return a < b ? b : a; }
constexpr int pages_each(int rows) { return larger(kScorePages, kSums / (rows * kPageVectors)); }
constexpr int vectors_each(int rows) { return larger(kOutVectors, kSums / rows); }

// To the second cache: the first is full of what is being read.
static inline void fetch(const void* at) { __builtin_prefetch(at, 0, 2); }

// What row tiles fetch while they read the pages of a block. Pages are small and lie anywhere, so the processor does not
// foresee the next: while keys are read, the values are fetched, and while values are read, the next keys. Each row
// tile, in turn, fetches its share of every page, as evenly as it reads: bursts of requests stall the tile,
// since memory is slower. Codes have fewer bytes than what is read: `shrunk` is how many times their bits fit in those of T.
template <typename T>
struct Ahead {
  const T* pages[kBlockPages];  // where this turn's share begins
  int turns;

  Ahead(const T* const* read, const T* const* next, int page_numbers, int turn, int of_turns, int shrunk = 1)
      : turns(of_turns * shrunk) {
    for (int p = 0; p < kBlockPages; ++p) pages[p] = next[p] == nullptr ? read[p] : next[p] + turn * share(page_numbers);
  }
  int share(int numbers) const { return (numbers + turns - 1) / turns; }
};

// sums[r][v] += factors(r) * numbers(v). The fewer of either stay in registers; all unrolled, or GCC keeps the sums in
// memory before and after the caller's loop.
template <int Rows, int Vectors, typename Factors, typename Numbers>
static inline void add_to_sums(F (&sums)[Rows][Vectors], const Factors& factors, const Numbers& numbers) {
  if constexpr (Rows < Vectors) {
    decltype(factors(0)) factor[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) factor[r] = factors(r);
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) {
      const auto number = numbers(v);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sums[r][v] = add_products(factor[r], number, sums[r][v]);
    }
  } else {
    decltype(numbers(0)) number[Vectors];
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) number[v] = numbers(v);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const auto factor = factors(r);
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) sums[r][v] = add_products(factor, number[v], sums[r][v]);
    }
  }
}

// scores[r][0 .. 16 Pages) = sum over d of q[r][d] * K[d][key], for Rows rows and Pages pages.
template <typename T, int Rows, int Pages>
HEADRACE_TILE static void score_tile(const typename Arithmetic<T>::Factor* q, int q_stride, const T* const* pages,
                                     const T* const* ahead, int fetch_step, int head_dim, float* scores) {
  constexpr int kTogether = Arithmetic<T>::kTogether, kVectors = Pages * kPageVectors;
  F acc[Rows][kVectors] = {};
  const T *page[Pages], *fetched[Pages];
#pragma GCC unroll 8
  for (int p = 0; p < Pages; ++p) {
    page[p] = pages[p];
    fetched[p] = ahead[p];
  }
  for (int d = 0, ahead_at = 0; d + kTogether <= head_dim; d += kTogether, ahead_at += fetch_step) {
#pragma GCC unroll 8
    for (int p = 0; p < Pages; ++p) fetch(fetched[p] + ahead_at);
    add_to_sums(
        acc, [&](int r) { return splat_factors<T>(q + r * q_stride + d); },
        [&](int v) {
          return load_numbers(page[v / kPageVectors] + d * kPageTokens + v % kPageVectors * kWidth * kTogether);
        });
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) store(scores + r * kBlock + v * kWidth, acc[r][v]);
  }
}

// The product of the last dimension of an odd number of them, which has no other at its side. q is padded with zeros.
template <typename T>
static void add_unpaired_dimension(const typename Arithmetic<T>::Factor* q, const T* const* pages, int page_count,
                               int head_dim, float* scores) {
  const auto factor = splat_factors<T>(q + head_dim - 1);
  for (int v = 0; v < page_count * kPageVectors; ++v) {
    const T* unpaired = pages[v / kPageVectors] + (head_dim - 1) * kPageTokens + v % kPageVectors * kWidth;
    store(scores + v * kWidth, add_products(factor, load_unpaired(unpaired), load(scores + v * kWidth)));
  }
}

// Calls f<count>(), for a count up to Max; not at all for 0.
template <int Max, typename Call>
static inline void with_count(int count, const Call& call) {
  if constexpr (Max > 0) {
    if (count == Max) {
      call.template operator()<Max>();
    } else {
      with_count<Max - 1>(count, call);
    }
  }
}

template <typename T, int Rows>
static void score_rows(const typename Arithmetic<T>::Factor* q, int q_stride, const T* const* pages,
                       const Ahead<T>& ahead, int page_count, int head_dim, float* scores) {
  const int fetch_step = ahead.share(Arithmetic<T>::kTogether * kPageTokens);
  int p = 0;
  const auto score = [&]<int Pages>() {
    const T* const* fetched = ahead.pages + p;
    score_tile<T, Rows, Pages>(q, q_stride, pages + p, fetched, fetch_step, head_dim, scores + p * kPageTokens);
  };
  constexpr int kPages = pages_each(Rows);
  for (; p + kPages <= page_count; p += kPages) score.template operator()<kPages>();
  with_count<kPages - 1>(page_count - p, score);
  if constexpr (Arithmetic<T>::kTogether == 2) {
    for (int r = 0; r < Rows && head_dim % 2 != 0; ++r) {
      add_unpaired_dimension<T>(q + r * q_stride, pages, page_count, head_dim, scores + r * kBlock);
    }
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
template <typename T, int Rows, int Vectors, bool Whole>
HEADRACE_TILE static void out_tile(const typename Arithmetic<T>::Factor* weights, const float* decay,
                                   const T* const* pages, const Ahead<T>& ahead, int key0, int key1, int value_dim,
                                   int at, int lanes, float* out, int out_stride) {
  constexpr int kTogether = Arithmetic<T>::kTogether, kLine = 64 / sizeof(T);
  const int step = kTogether * value_dim, fetch_step = ahead.share(step);
  F acc[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) acc[r][v] = load(out + r * out_stride + v * kWidth) * splat(decay[r]);
  }
  for (int key = key0 / kTogether * kTogether; key < key1;) {
    const int offset = key % kPageTokens * value_dim + at * kTogether;
    const T *values = pages[key / kPageTokens] + offset, *fetched = ahead.pages[key / kPageTokens] + ahead.share(offset);
    const int end = smaller(key1, (key / kPageTokens + 1) * kPageTokens);
    for (; key < end; key += kTogether, values += step, fetched += fetch_step) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        if (v * kWidth * kTogether % kLine == 0) fetch(fetched + v * kWidth * kTogether);
      }
      add_to_sums(
          acc, [&](int r) { return splat_factors<T>(weights + r * kWeightStride<T> + key); },
          [&](int v) {
            const T* from = values + v * kWidth * kTogether;
            return Whole ? load_numbers(from) : load_numbers(from, lanes);
          });
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) store(out + r * out_stride + v * kWidth, acc[r][v]);
  }
}

template <typename T, int Rows>
static void out_rows(const typename Arithmetic<T>::Factor* weights, const float* decay, const T* const* pages,
                     const Ahead<T>& ahead, int key0, int key1, int value_dim, float* out, int out_stride) {
  constexpr int kVectors = vectors_each(Rows);
  int d = 0;
  const auto add = [&]<int Vectors>() {
    out_tile<T, Rows, Vectors, true>(weights, decay, pages, ahead, key0, key1, value_dim, d, kWidth, out + d, out_stride);
    d += Vectors * kWidth;
  };
  while (d + kVectors * kWidth <= value_dim) add.template operator()<kVectors>();
  with_count<kVectors - 1>((value_dim - d) / kWidth, add);
  if (d < value_dim) {
    out_tile<T, Rows, 1, false>(weights, decay, pages, ahead, key0, key1, value_dim, d, value_dim - d, out + d, out_stride);
  }
}

// Calls f<Rows>(row, tile, tiles) over tiles of at most Max rows, of nearly one size: one of few rows would wait for its
// sums, or read what the others have read for little.
template <int Max, typename Call>
static inline void over_rows(int rows, const Call& call) {
  const int tiles = (rows + Max - 1) / Max;
  for (int tile = 0, row = 0; tile < tiles; ++tile) {
    const int size = (rows - row + tiles - tile - 1) / (tiles - tile);
    with_count<Max>(size, [&]<int Rows>() { call.template operator()<Rows>(row, tile, tiles); });
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

// A copy of a page's values in which those of keys outside [key0, key1) are zero; `to` may be where they are.
static inline const uint16_t* visible_values(const uint16_t* values, int dim, int key0, int key1, uint16_t* to) {
  const auto seen = [&](int key, uint32_t bits) { return key >= key0 && key < key1 ? bits : 0u; };
  for (int key = 0; key < kPageTokens; key += 2) {
    const uint32_t mask = seen(key, 0xffffu) | seen(key + 1, 0xffff0000u);  // of two keys' numbers side by side
    for (int i = key * dim; i < (key + 2) * dim; i += 2) {
      uint32_t both;
      memcpy(&both, values + i, sizeof both);
      both &= mask;
      memcpy(to + i, &both, sizeof both);
    }
  }
  return to;
}

}  // namespace headrace::HEADRACE_NAMESPACE
