// One float vector type per ISA (F, kWidth lanes) with the few operations that kernels need. Included
// only by files that are compiled once per ISA; everything is static inside the ISA's namespace.
//
// F and I are compiler vectors: + - * / < and ?: work on them lane by lane.
#pragma once
#include <stdint.h>
#include <string.h>

#include <utility>

#include "../platform/isa.hpp"

#if defined(HEADRACE_ISA_avx2) || defined(HEADRACE_ISA_avx512)
#include <immintrin.h>
#elif defined(HEADRACE_ISA_neon)
#include <arm_neon.h>
#endif

namespace headrace::HEADRACE_NAMESPACE {

#if defined(HEADRACE_ISA_avx512)
inline constexpr int kWidth = 16;
#elif defined(HEADRACE_ISA_avx2)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif
typedef float F __attribute__((vector_size(kWidth * 4)));
typedef int32_t I __attribute__((vector_size(kWidth * 4)));
typedef uint16_t H __attribute__((vector_size(kWidth * 2)));

static inline F load(const float* p) {
  F r;
  memcpy(&r, p, sizeof r);
  return r;
}
static inline void store(float* p, F v) { memcpy(p, &v, sizeof v); }

// The first `count` < kWidth lanes; the others are zero.
static inline F load_partial(const float* p, int count) {
  F r = {};
  memcpy(&r, p, static_cast<size_t>(count) * sizeof(float));
  return r;
}
static inline void store_partial(float* p, F v, int count) { memcpy(p, &v, static_cast<size_t>(count) * sizeof(float)); }

static inline F splat(float x) { return x - F{}; }  // x - 0 keeps -0
static inline I splat_int(int32_t x) { return x - I{}; }

static inline F fma(F a, F b, F c) {  // a * b + c; one rounding where the ISA has it, two in portable
#if defined(HEADRACE_ISA_avx512)
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(HEADRACE_ISA_avx2)
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(HEADRACE_ISA_neon)
  return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

static inline F max(F a, F b) { return a < b ? b : a; }
static inline F abs(F x) { return (F)((I)x & splat_int(0x7fffffff)); }

// bfloat16 is the upper half of a float32.
static inline F load_bf16(const uint16_t* p) {
  H half;
  memcpy(&half, p, sizeof half);
  return (F)(__builtin_convertvector(half, I) << 16);
}
static inline F load_bf16_partial(const uint16_t* p, int count) {
  uint16_t padded[kWidth] = {};
  memcpy(padded, p, static_cast<size_t>(count) * sizeof(uint16_t));
  return load_bf16(padded);
}

static inline uint16_t to_bf16(float x) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Lane i becomes lane (i + Half) % kWidth.
template <int Half>
static inline F rotate(F v) {
#if defined(HEADRACE_ISA_avx512)
  return __builtin_shufflevector(v, v, Half, (1 + Half) % 16, (2 + Half) % 16, (3 + Half) % 16, (4 + Half) % 16,
                                 (5 + Half) % 16, (6 + Half) % 16, (7 + Half) % 16, (8 + Half) % 16, (9 + Half) % 16,
                                 (10 + Half) % 16, (11 + Half) % 16, (12 + Half) % 16, (13 + Half) % 16,
                                 (14 + Half) % 16, (15 + Half) % 16);
#elif defined(HEADRACE_ISA_avx2)
  return __builtin_shufflevector(v, v, Half, (1 + Half) % 8, (2 + Half) % 8, (3 + Half) % 8, (4 + Half) % 8,
                                 (5 + Half) % 8, (6 + Half) % 8, (7 + Half) % 8);
#else
  return __builtin_shufflevector(v, v, Half, (1 + Half) % 4, (2 + Half) % 4, (3 + Half) % 4);
#endif
}

// Sum and maximum of the lanes, halves folded onto each other: one fixed order.
template <int Half = kWidth / 2>
static inline float reduce_add(F v) {
  if constexpr (Half == 0) {
    return v[0];
  } else {
    return reduce_add<Half / 2>(v + rotate<Half>(v));
  }
}
template <int Half = kWidth / 2>
static inline float reduce_max(F v) {
  if constexpr (Half == 0) {
    return v[0];
  } else {
    return reduce_max<Half / 2>(max(v, rotate<Half>(v)));
  }
}

// Of each 2 Half lanes, the lower (Upper: the upper) half of a and of b.
template <int Half, bool Upper, int... Lane>
static inline F halves(F a, F b, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(a, b, ((Lane / Half % 2 * kWidth) + Lane / (2 * Half) * 2 * Half + Lane % Half + Upper * Half)...);
}

// Lane i is what `fold` (a sum, a maximum) makes of the lanes of rows[i], in the order of reduce_add. Overwrites rows.
template <int Half = kWidth / 2, typename Fold>
static inline F fold_rows(F* rows, const Fold& fold) {
  constexpr auto lanes = std::make_integer_sequence<int, kWidth>();
#pragma GCC unroll 8
  for (int i = 0; i < Half; ++i) {
    rows[i] = fold(halves<Half, false>(rows[i], rows[i + Half], lanes), halves<Half, true>(rows[i], rows[i + Half], lanes));
  }
  if constexpr (Half == 1) {
    return rows[0];
  } else {
    return fold_rows<Half / 2>(rows, fold);
  }
}

// e^x, relative error below 2^-22.5 for results in the normal range (tested); exp(0) = 1 and
// exp(-inf) = 0 exactly, overflow gives inf, NaN stays NaN. x = n ln 2 + r, |r| <= ln 2 / 2;
// e^r by a polynomial fitted to minimal relative error.
static inline F exp(F x) {
  x = x < splat(-104.0f) ? splat(-104.0f) : x;  // e^-104 rounds to 0
  x = splat(89.0f) < x ? splat(89.0f) : x;      // e^89 overflows
  const F magic = splat(12582912.0f);           // 1.5 * 2^23: adding it rounds to an integer
  const F shifted = fma(x, splat(1.44269504088896341f), magic);
  const F n = shifted - magic;
  F r = fma(n, splat(-0.693359375f), x);  // the upper part of ln 2 has few bits: exact for every n
  r = fma(n, splat(2.12194440054690583e-4f), r);
  F q = fma(splat(1.3814535923302174e-3f), r, splat(8.36874544620514e-3f));
  q = fma(q, r, splat(4.166839271783829e-2f));
  q = fma(q, r, splat(1.666652113199234e-1f));
  q = fma(q, r, splat(4.999999403953552e-1f));
  const F power = fma(q, r * r, r) + splat(1.0f);
  const I exponent = (I)shifted - (I)magic;
  const I half = exponent >> 1;  // 2^n in two factors: n reaches -150 and 129
  const F first = (F)((half + 127) << 23);
  const F second = (F)((exponent - half + 127) << 23);
  return power * first * second;
}

// Absolute error below 2e-7 (tested), relative error alike near 0.
static inline F tanh(F x) {
  const F size = abs(x);
  const F z = x * x;
  F p = fma(splat(-5.717028398066759e-3f), z, splat(2.0650571212172508e-2f));
  p = fma(p, z, splat(-5.374349281191826e-2f));
  p = fma(p, z, splat(1.3331490755081177e-1f));
  p = fma(p, z, splat(-3.333328366279602e-1f));
  const F near = fma(x * z, p, x);
  const F far = splat(1.0f) - splat(2.0f) / (exp(size + size) + splat(1.0f));
  const I sign = (I)x & splat_int(static_cast<int32_t>(0x80000000u));
  return size < splat(0.625f) ? near : (F)((I)far | sign);
}

}  // namespace headrace::HEADRACE_NAMESPACE
