// Grouped tiles for AVX-512: integer accumulators in registers, float sums in L1, so that a tile is as tall as int8's.
#pragma once
#include <immintrin.h>

#include "linear_layout.hpp"

namespace headrace {
namespace {

// Bytes below 16 by a table of 16.
inline void lookup(const uint8_t* table, uint8_t* bytes) {
  const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  for (int64_t i = 0; i < kGroup * kStrip; i += 64) {
    _mm512_storeu_si512(bytes + i, _mm512_shuffle_epi8(values, _mm512_loadu_si512(bytes + i)));
  }
}

inline __m512i broadcast(uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }
inline __m512 broadcast_float(uint32_t word) { return _mm512_castsi512_ps(broadcast(word)); }

template <int kRows, bool kHalves, bool kMinima>
HEADRACE_LEAF void tile_group(const GroupTile& t) {
  constexpr int kSteps = kHalves ? 4 : 8;
  const uint32_t* x = t.x;
  const uint32_t* in = t.inputs;
  const uint8_t* w = t.codes;
  const uint8_t* ahead = t.ahead;
  const int64_t rest = t.stride - 1024, ahead_rest = t.ahead_stride - 8 * (t.ahead_stride / 8);
  const __m128i shift = _mm_cvtsi32_si128(__builtin_ctz(static_cast<unsigned>(t.zero | 256)));
  for (int64_t g = 0; g < t.groups; ++g, in += kGroupInputs * kRows, w += rest, ahead += ahead_rest) {
#pragma GCC unroll 1
    for (int half = 0; half < (kHalves ? 2 : 1); ++half) {
      __m512i a[kRows], b[kRows];
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        if (kMinima) {
          a[r] = _mm512_setzero_si512();
        } else if (kHalves) {
          a[r] = _mm512_sll_epi32(broadcast(in[(kInputLow + half) * kRows + r]), shift);
        } else {
          a[r] = _mm512_sll_epi32(broadcast(in[kInputLow * kRows + r] + in[kInputHigh * kRows + r]), shift);
        }
        b[r] = a[r];
      }
#pragma GCC unroll 1
      for (int s = 0; s < kSteps; ++s, w += 128, x += kRows, ahead += t.ahead_stride / 8) {
        const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(ahead) + 64, _MM_HINT_T0);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const __m512i xr = broadcast(x[r]);
          a[r] = _mm512_dpbusd_epi32(a[r], w0, xr);
          b[r] = _mm512_dpbusd_epi32(b[r], w1, xr);
        }
      }
      const GroupScales& s = t.scales[g];
      const __m512 scale0 = _mm512_loadu_ps(s.scale[half]), scale1 = _mm512_loadu_ps(s.scale[half] + 16);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        float* acc = t.acc + r * kStrip;
        const __m512 row = broadcast_float(in[kInputScale * kRows + r]);
        __m512 sum0 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[r]), _mm512_mul_ps(scale0, row), _mm512_loadu_ps(acc));
        __m512 sum1 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b[r]), _mm512_mul_ps(scale1, row), _mm512_loadu_ps(acc + 16));
        if (kMinima) {
          const __m512 codes = kHalves ? _mm512_mul_ps(row, _mm512_cvtepi32_ps(broadcast(in[(kInputLow + half) * kRows + r])))
                                       : broadcast_float(in[kInputSum * kRows + r]);
          sum0 = _mm512_fmadd_ps(_mm512_loadu_ps(s.minimum[half]), codes, sum0);
          sum1 = _mm512_fmadd_ps(_mm512_loadu_ps(s.minimum[half] + 16), codes, sum1);
        }
        _mm512_storeu_ps(acc, sum0);
        _mm512_storeu_ps(acc + 16, sum1);
      }
    }
  }
}

}  // namespace
}  // namespace headrace
