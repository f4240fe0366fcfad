// The arithmetic of attention by the type of keys and values. f32: everything in float32. bf16: queries and
// softmax weights are rounded to bfloat16 too, as GPU kernels do (FlashAttention, Dao 2022), and products of
// two numbers side by side are added to float32 sums: vdpbf16ps where there is one.
#pragma once
#include <math.h>

#include "../formats/kv_page.hpp"
#include "simd.hpp"

namespace headrace::HEADRACE_NAMESPACE {

typedef uint32_t Bits __attribute__((vector_size(kWidth * 4)));  // of floats; sums of them may wrap

#if defined(HEADRACE_ISA_avx512)
using HalfFactor = uint16_t;  // what a bf16 number is multiplied with
#else
using HalfFactor = float;  // a float that bfloat16 holds exactly, but for subnormal ones
#endif

template <typename T>
struct Arithmetic;

// e^x of scores whose unit is 1.
template <>
struct Arithmetic<float> {
  using Factor = float;
  static constexpr float kUnit = 1.0f;
  static constexpr int kTogether = 1;  // numbers that one product takes
  static inline F exp(F x) { return HEADRACE_NAMESPACE::exp(x); }
};

// The same of scores that were multiplied by log2(e); relative error below 3e-6, a weight keeps 8 bits. What
// is less than 2^-126 is 0 or subnormal. 1 and 0 are exact, NaN stays NaN.
template <>
struct Arithmetic<uint16_t> {
  using Factor = HalfFactor;
  static constexpr float kUnit = 1.44269504088896341f;
  static constexpr int kTogether = 2;
#if defined(HEADRACE_ISA_avx512)
  static inline F exp(F x) {
    constexpr int kFromBelow = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    const F f = (F)_mm512_reduce_ps((__m512)x, kFromBelow);  // x - floor(x), 0 for infinities
    F p = fma(splat(0.013426686637103558f), f, splat(0.0522424690425396f));
    p = fma(p, f, splat(0.2412802129983902f));
    p = fma(p, f, splat(0.6930448412895203f));
    p = fma(p, f, splat(1.0f));
    return (F)_mm512_scalef_ps((__m512)p, (__m512)x);  // p 2^floor(x)
  }
#else
  static inline F exp(F x) {
    const F low = max(x, splat(-127.0f));  // NaN stays
    const F magic = splat(12582912.0f + 127.0f);  // 1.5 * 2^23: adding it rounds to an integer, here with a float's bias
    const F shifted = low + magic;
    const F f = low - (shifted - magic);
    F p = fma(splat(0.009582852944731712f), f, splat(0.055906426161527634f));
    p = fma(p, f, splat(0.24024099111557007f));
    p = fma(p, f, splat(0.6931241750717163f));
    p = fma(p, f, splat(1.0f));
    return p * (F)((Bits)shifted << 23);  // 2^-127 is 0 here
  }
#endif
};

// Numbers as factors; `to_factors` takes whole vectors.
static inline void to_factor(float* to, float x) { *to = x; }
static inline void to_factors(float* to, F x) { store(to, x); }
#if defined(HEADRACE_ISA_avx512)
static inline void to_factor(uint16_t* to, float x) { *to = to_bf16(x); }
static inline void to_factors(uint16_t* to, F x) {
  const __m256bh half = _mm512_cvtneps_pbh((__m512)x);
  memcpy(to, &half, sizeof half);
}
#endif

// Rounds to bfloat16 where a factor's type does not: the upper part of Veltkamp's splitting (Dekker 1971) has as many
// bits as bfloat16. Subnormal numbers keep more, and numbers of nearly 2^112 and above become NaN.
template <typename T>
static inline F rounded(F x) {
  if constexpr (sizeof(T) == sizeof(typename Arithmetic<T>::Factor)) return x;
  const F spread = x * splat(65537.0f);
  return spread - (spread - x);
}

// kWidth numbers of keys or values, or kWidth pairs of them.
struct Single {
  F number;
};
#if defined(HEADRACE_ISA_avx512)
struct Pair {
  __m512i numbers;
};
static inline Pair load_numbers(const uint16_t* p) { return {_mm512_loadu_si512(p)}; }
static inline Pair load_numbers(const uint16_t* p, int lanes) {
  return {_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << lanes) - 1), p)};
}
// kWidth numbers, the first of pairs whose other one is 0.
static inline Pair load_unpaired(const uint16_t* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline Pair splat_pair(const uint16_t* p) {
  int32_t both;
  memcpy(&both, p, sizeof both);
  return {_mm512_set1_epi32(both)};
}
static inline F add_products(Pair a, Pair b, F sum) {
  return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a.numbers, (__m512bh)b.numbers);
}
#else
struct Pair {
  F first, second;
};
static inline Pair load_numbers(const uint16_t* p) {
  I both;
  memcpy(&both, p, sizeof both);
  return {(F)(both << 16), (F)(both & splat_int(static_cast<int32_t>(0xffff0000u)))};
}
static inline Pair load_numbers(const uint16_t* p, int lanes) {
  uint16_t padded[2 * kWidth] = {};
  memcpy(padded, p, static_cast<size_t>(lanes) * 2 * sizeof(uint16_t));
  return load_numbers(padded);
}
static inline Pair load_unpaired(const uint16_t* p) { return {load_bf16(p), F{}}; }
static inline Pair splat_pair(const float* p) { return {splat(p[0]), splat(p[1])}; }
static inline F add_products(Pair a, Pair b, F sum) { return fma(a.second, b.second, fma(a.first, b.first, sum)); }
#endif
static inline Single load_numbers(const float* p) { return {load(p)}; }
static inline Single load_numbers(const float* p, int lanes) { return {load_partial(p, lanes)}; }
static inline F add_products(Single a, Single b, F sum) { return fma(a.number, b.number, sum); }

// One factor, or two side by side, in all lanes.
template <typename T>
static inline auto splat_factors(const typename Arithmetic<T>::Factor* p) {
  if constexpr (Arithmetic<T>::kTogether == 1) {
    return Single{splat(*p)};
  } else {
    return splat_pair(p);
  }
}

}  // namespace headrace::HEADRACE_NAMESPACE
