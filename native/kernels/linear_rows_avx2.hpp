// Rotating and rounding rows for AVX2, in the order and with the roundings of linear_plain.hpp and linear_prepare.hpp.
#pragma once
#include <immintrin.h>

#include "linear_layout.hpp"

namespace headrace {
namespace {

#define HEADRACE_OWN_ROUNDING 1
inline uint32_t largest_magnitude(const float* x, int64_t count) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest[4] = {};
  for (int64_t i = 0; i < count; i += 32) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i + v * 8));
      largest[v] = _mm256_max_epu32(largest[v], _mm256_and_si256(bits, magnitude));
    }
  }
  const __m256i all = _mm256_max_epu32(_mm256_max_epu32(largest[0], largest[1]), _mm256_max_epu32(largest[2], largest[3]));
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1))));
}

inline __m256i round_eight(const float* x, __m256 factor) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor)); }

// 32 rounded numbers as bytes, in their order.
inline __m256i round_bytes(const float* x, __m256 factor) {
  const __m256i low = _mm256_packs_epi32(round_eight(x, factor), round_eight(x + 8, factor));
  const __m256i high = _mm256_packs_epi32(round_eight(x + 16, factor), round_eight(x + 24, factor));
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Sums of four neighboring bytes each.
inline __m256i sum_fours(__m256i bytes) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
}
inline int32_t sum_of(__m128i four) {
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

inline int32_t round_all(const float* x, int64_t count, float factor, int8_t* out) {
  const __m256 by = _mm256_set1_ps(factor);
  __m256i sums = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 32) {
    const __m256i bytes = round_bytes(x + i, by);
    sums = _mm256_add_epi32(sums, sum_fours(bytes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), bytes);
  }
  return sum_of(_mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
}

inline void round_group(const float* x, float factor, int8_t* out, int32_t* low, int32_t* high) {
  const __m256i bytes = round_bytes(x, _mm256_set1_ps(factor));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
  const __m256i sums = sum_fours(bytes);
  *low = sum_of(_mm256_castsi256_si128(sums));
  *high = sum_of(_mm256_extracti128_si256(sums, 1));
}

// Sums of the rounded inputs of two groups at a time in the halves of words `stride` apart, as int4 needs them; a single
// last group is paired with zero.
inline void sum_pairs(const int8_t* row, int64_t groups, int64_t stride, uint32_t* out) {
  const auto sum = [&](int64_t group) {
    const __m256i fours = sum_fours(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + group * kGroup)));
    return sum_of(_mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1)));
  };
  for (int64_t g = 0; g < groups; g += 2, out += stride) {
    const uint32_t first = static_cast<uint32_t>(sum(g)), second = g + 1 < groups ? static_cast<uint32_t>(sum(g + 1)) : 0;
    *out = (first & 0xffffu) | second << 16;
  }
}

// a + b in the lower lane of each pair, a - b in the upper, where `partner` has the pair's other value. The product with one
// or minus one is exact, so this rounds once, like the sum.
inline __m256 butterfly(__m256 x, __m256 partner, __m256 signs) { return _mm256_fmadd_ps(x, signs, partner); }

// 8 * kVectors values in registers, all butterflies but the scale.
template <int kVectors>
inline void rotate_eights(const float* from, float* to, __m256 scale) {
  const __m256 one = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1), two = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
  const __m256 four = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
  __m256 v[kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    __m256 x = _mm256_loadu_ps(from + 8 * i);
    x = butterfly(x, _mm256_permute_ps(x, 0xb1), one);
    x = butterfly(x, _mm256_permute_ps(x, 0x4e), two);
    v[i] = butterfly(x, _mm256_permute2f128_ps(x, x, 1), four);
  }
#pragma GCC unroll 3
  for (int distance = 1; distance < kVectors; distance *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      if (i & distance) continue;
      const __m256 a = v[i], b = v[i + distance];
      v[i] = _mm256_add_ps(a, b);
      v[i + distance] = _mm256_sub_ps(a, b);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) _mm256_storeu_ps(to + 8 * i, _mm256_mul_ps(v[i], scale));
}

// Rotates a whole row of `count` values, a multiple of `block`, to `to`, which may be where they are.
inline void rotate_row(const float* from, float* to, int64_t count, int64_t block) {
  const __m256 scale = _mm256_set1_ps(rotation_scale(block));
  for (int64_t start = 0; start < count; start += block) {
    if (block == 32) {
      rotate_eights<4>(from + start, to + start, scale);
    } else if (block == 64) {
      rotate_eights<8>(from + start, to + start, scale);
    } else {  // 128, of which half fits the registers
      float* at = to + start;
      rotate_eights<8>(from + start, at, _mm256_set1_ps(1.0f));
      rotate_eights<8>(from + start + 64, at + 64, _mm256_set1_ps(1.0f));
      for (int i = 0; i < 64; i += 8) {
        const __m256 a = _mm256_loadu_ps(at + i), b = _mm256_loadu_ps(at + 64 + i);
        _mm256_storeu_ps(at + i, _mm256_mul_ps(_mm256_add_ps(a, b), scale));
        _mm256_storeu_ps(at + 64 + i, _mm256_mul_ps(_mm256_sub_ps(a, b), scale));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
