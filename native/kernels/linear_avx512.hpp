// Tile kernels for AVX-512 with VNNI, BF16 and VBMI.
//
// A tile is up to 12 rows by 32 columns: 24 accumulators, 2 registers of weights, broadcasts. They are
// leaves that the compiler must not inline and start from memory, else GCC 12 spills accumulators.
#pragma once
#include <immintrin.h>

#include "linear_layout.hpp"

namespace headrace {
namespace {

constexpr int kMaxRows = 12;
constexpr int kDirectRows = 10;  // int4: up to here unpacked in registers, beyond once into L1
constexpr int32_t kWeightZero = 128;  // vpdpbusd multiplies by the stored byte, weight + 128

inline void prefetch_step(const Prefetch& ahead, int64_t step) {
  const char* at = reinterpret_cast<const char*>(ahead.base + step * ahead.stride);
  _mm_prefetch(at, _MM_HINT_T0);
  _mm_prefetch(at + ahead.second, _MM_HINT_T0);
  if (ahead.far != 0) {
    _mm_prefetch(at + ahead.far, _MM_HINT_T1);
    _mm_prefetch(at + ahead.far + ahead.second, _MM_HINT_T1);
  }
}

template <int kRows>
HEADRACE_LEAF void tile_f32(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  float* acc = static_cast<float*>(sums);
  __m512 a[kRows], b[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    a[r] = _mm512_loadu_ps(acc + r * 32);
    b[r] = _mm512_loadu_ps(acc + r * 32 + 16);
  }
  for (int64_t s = 0; s < steps; ++s, w += 128, x += kRows) {
    const __m512 w0 = _mm512_loadu_ps(w), w1 = _mm512_loadu_ps(w + 64);
    prefetch_step(ahead, s);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 xr = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x[r])));
      a[r] = _mm512_fmadd_ps(w0, xr, a[r]);
      b[r] = _mm512_fmadd_ps(w1, xr, b[r]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(acc + r * 32, a[r]);
    _mm512_storeu_ps(acc + r * 32 + 16, b[r]);
  }
}

template <int kRows>
HEADRACE_LEAF void tile_f16(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  float* acc = static_cast<float*>(sums);
  __m512 a[kRows], b[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    a[r] = _mm512_loadu_ps(acc + r * 32);
    b[r] = _mm512_loadu_ps(acc + r * 32 + 16);
  }
  for (int64_t s = 0; s < steps; ++s, w += 64, x += kRows) {
    const __m512 w0 = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
    const __m512 w1 = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32)));
    prefetch_step(ahead, s);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 xr = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x[r])));
      a[r] = _mm512_fmadd_ps(w0, xr, a[r]);
      b[r] = _mm512_fmadd_ps(w1, xr, b[r]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(acc + r * 32, a[r]);
    _mm512_storeu_ps(acc + r * 32 + 16, b[r]);
  }
}

template <int kRows>
HEADRACE_LEAF void tile_bf16(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  float* acc = static_cast<float*>(sums);
  __m512 a[kRows], b[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    a[r] = _mm512_loadu_ps(acc + r * 32);
    b[r] = _mm512_loadu_ps(acc + r * 32 + 16);
  }
  for (int64_t s = 0; s < steps; ++s, w += 128, x += kRows) {
    const __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = (__m512bh)_mm512_loadu_si512(w + 64);
    prefetch_step(ahead, s);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512bh xr = (__m512bh)_mm512_set1_epi32(static_cast<int>(x[r]));
      a[r] = _mm512_dpbf16_ps(a[r], w0, xr);
      b[r] = _mm512_dpbf16_ps(b[r], w1, xr);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(acc + r * 32, a[r]);
    _mm512_storeu_ps(acc + r * 32 + 16, b[r]);
  }
}

template <int kRows>
HEADRACE_LEAF void tile_int8(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  int32_t* acc = static_cast<int32_t*>(sums);
  __m512i a[kRows], b[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    a[r] = _mm512_loadu_si512(acc + r * 32);
    b[r] = _mm512_loadu_si512(acc + r * 32 + 16);
  }
  for (int64_t s = 0; s < steps; ++s, w += 128, x += kRows) {
    const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
    prefetch_step(ahead, s);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i xr = _mm512_set1_epi32(static_cast<int>(x[r]));
      a[r] = _mm512_dpbusd_epi32(a[r], w0, xr);
      b[r] = _mm512_dpbusd_epi32(b[r], w1, xr);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_si512(acc + r * 32, a[r]);
    _mm512_storeu_si512(acc + r * 32 + 16, b[r]);
  }
}

// One group's metadata spread over 16 columns: multipliers to both 16-bit halves, offsets to all four bytes.
struct GroupMeta {
  __m512i multiplier[2], offset[2];
};
inline GroupMeta group_meta(const uint8_t* group) {
  const __m512i line = _mm512_loadu_si512(group);
  const __m512i each = _mm512_set_epi32(0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b, 0x0a0a0a0a,
                                        0x09090909, 0x08080808, 0x07070707, 0x06060606, 0x05050505, 0x04040404,
                                        0x03030303, 0x02020202, 0x01010101, 0x00000000);
  const __m512i next = _mm512_add_epi8(each, _mm512_set1_epi8(16));
  constexpr __mmask64 kEven = 0x5555555555555555ull;
  GroupMeta meta;
  meta.multiplier[0] = _mm512_maskz_permutexvar_epi8(kEven, each, line);
  meta.multiplier[1] = _mm512_maskz_permutexvar_epi8(kEven, next, line);
  meta.offset[0] = _mm512_permutexvar_epi8(_mm512_add_epi8(each, _mm512_set1_epi8(32)), line);
  meta.offset[1] = _mm512_permutexvar_epi8(_mm512_add_epi8(each, _mm512_set1_epi8(48)), line);
  return meta;
}
// Two codes at once: their products with the multiplier fit a byte each, so one 16-bit product holds both.
inline __m512i weights_of(__m512i codes, const GroupMeta& meta, int half) {
  const __m512i nibbles = _mm512_and_si512(codes, _mm512_set1_epi8(15));
  return _mm512_add_epi8(_mm512_mullo_epi16(nibbles, meta.multiplier[half]), meta.offset[half]);
}

// int4 unpacked in registers; `steps` is a multiple of 8.
template <int kRows>
HEADRACE_LEAF void direct_int4(const uint8_t* group, const uint32_t* x, int64_t steps, void* sums, Prefetch) {
  int32_t* acc = static_cast<int32_t*>(sums);
  __m512i a[kRows], b[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    a[r] = _mm512_loadu_si512(acc + r * 32);
    b[r] = _mm512_loadu_si512(acc + r * 32 + 16);
  }
  for (int64_t s = 0; s < steps; s += 8, group += kGroupBytes) {
    const GroupMeta meta = group_meta(group);
    fetch_ahead(group);
#pragma GCC unroll 1
    for (int pair = 0; pair < 4; ++pair, x += 2 * kRows) {
      const uint8_t* lines = group + 64 + pair * 128;
      fetch_ahead(lines);
      fetch_ahead(lines + 64);
      const __m512i codes0 = _mm512_loadu_si512(lines), codes1 = _mm512_loadu_si512(lines + 64);
      const __m512i low0 = weights_of(codes0, meta, 0), low1 = weights_of(codes1, meta, 1);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const __m512i xr = _mm512_set1_epi32(static_cast<int>(x[r]));
        a[r] = _mm512_dpbusd_epi32(a[r], low0, xr);
        b[r] = _mm512_dpbusd_epi32(b[r], low1, xr);
      }
      const __m512i high0 = weights_of(_mm512_srli_epi16(codes0, 4), meta, 0);
      const __m512i high1 = weights_of(_mm512_srli_epi16(codes1, 4), meta, 1);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const __m512i xr = _mm512_set1_epi32(static_cast<int>(x[kRows + r]));
        a[r] = _mm512_dpbusd_epi32(a[r], high0, xr);
        b[r] = _mm512_dpbusd_epi32(b[r], high1, xr);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_si512(acc + r * 32, a[r]);
    _mm512_storeu_si512(acc + r * 32 + 16, b[r]);
  }
}

inline void unpack_groups(const uint8_t* from, int64_t groups, uint8_t* out, bool ahead = false) {
  for (int64_t g = 0; g < groups; ++g, from += kGroupBytes) {
    const GroupMeta meta = group_meta(from);
    for (int64_t line = 0; ahead && line < kGroupBytes; line += 64) fetch_ahead(from + line);
    for (int pair = 0; pair < 4; ++pair, out += 256) {
      const __m512i codes0 = _mm512_loadu_si512(from + 64 + pair * 128);
      const __m512i codes1 = _mm512_loadu_si512(from + 128 + pair * 128);
      _mm512_storeu_si512(out, weights_of(codes0, meta, 0));
      _mm512_storeu_si512(out + 64, weights_of(codes1, meta, 1));
      _mm512_storeu_si512(out + 128, weights_of(_mm512_srli_epi16(codes0, 4), meta, 0));
      _mm512_storeu_si512(out + 192, weights_of(_mm512_srli_epi16(codes1, 4), meta, 1));
    }
  }
}

// Rounds a row as linear_prepare.hpp says, which handles NaN and infinities.
#define HEADRACE_OWN_ROUNDING 1
inline uint32_t largest_magnitude(const float* x, int64_t count) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i a = _mm512_setzero_si512(), b = a;
  for (int64_t i = 0; i < count; i += 32) {
    a = _mm512_max_epu32(a, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    b = _mm512_max_epu32(b, _mm512_and_si512(_mm512_loadu_si512(x + i + 16), magnitude));
  }
  return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}

inline int32_t round_all(const float* x, int64_t count, float factor, int8_t* out) {
  const __m512 by = _mm512_set1_ps(factor);
  __m512i a = _mm512_setzero_si512(), b = a;
  for (int64_t i = 0; i < count; i += 32) {
    const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), by));  // ties to even
    const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i + 16), by));
    a = _mm512_add_epi32(a, low);
    b = _mm512_add_epi32(b, high);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtepi32_epi8(low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i + 16), _mm512_cvtepi32_epi8(high));
  }
  return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
}

inline void round_group(const float* x, float factor, int8_t* out, int32_t* low, int32_t* high) {
  const __m512 by = _mm512_set1_ps(factor);
  const __m128i first = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), by)));
  const __m128i second = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), by)));
  const __m256i codes = _mm256_set_m128i(second, first);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), codes);
  __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
  *low = _mm256_extract_epi32(sums, 0);
  *high = _mm256_extract_epi32(sums, 4);
}

// a + b in the lanes whose bit is clear, a - b in the others, where a is the lower of each pair. The product with
// one or minus one is exact, so this rounds once, like the sum.
inline __m512 butterfly(__m512 x, __m512 partner, int negative) {
  const __m512 ones = _mm512_set1_ps(1.0f);
  const __m512 sign = _mm512_mask_blend_ps(static_cast<__mmask16>(negative), ones, _mm512_set1_ps(-1.0f));
  return _mm512_fmadd_ps(x, sign, partner);
}

// Rotates one block of 16 * kVectors values in registers, in the order of butterflies that panel.hpp defines.
template <int kVectors>
void rotate_block(const float* from, float* to) {
  constexpr int kAheadFloats = 1024;
  __m512 v[kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(from + kAheadFloats + 16 * i), _MM_HINT_T0);
    __m512 x = _mm512_loadu_ps(from + 16 * i);
    x = butterfly(x, _mm512_permute_ps(x, 0xb1), 0xaaaa);
    x = butterfly(x, _mm512_permute_ps(x, 0x4e), 0xcccc);
    x = butterfly(x, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
    v[i] = butterfly(x, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
  }
#pragma GCC unroll 3
  for (int distance = 1; distance < kVectors; distance *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      if (i & distance) continue;
      const __m512 a = v[i], b = v[i + distance];
      v[i] = _mm512_add_ps(a, b);
      v[i + distance] = _mm512_sub_ps(a, b);
    }
  }
  const __m512 scale = _mm512_set1_ps(rotation_scale(16 * kVectors));
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) _mm512_storeu_ps(to + 16 * i, _mm512_mul_ps(v[i], scale));
}

// Rotates a whole row of `count` values, a multiple of `block`, to `to`, which may be where they are.
inline void rotate_row(const float* from, float* to, int64_t count, int64_t block) {
  for (int64_t start = 0; start < count; start += block) {
    if (block == 128) {
      rotate_block<8>(from + start, to + start);
    } else if (block == 64) {
      rotate_block<4>(from + start, to + start);
    } else {
      rotate_block<2>(from + start, to + start);
    }
  }
}

}  // namespace
}  // namespace headrace
