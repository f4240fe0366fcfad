// Grouped tiles for AVX-512: integer accumulators in registers, float sums in L1, so that a tile is as tall as int8's.
#pragma once
#include <immintrin.h>

#include "linear_layout.hpp"

namespace headrace {
namespace {

// How a kernel finds the bytes of a step's outputs 16 h to 16 h + 15: where they lie, or in planes of codes.
struct Bytes8 {
  static constexpr bool kPlaneless = true;
  static __m512i at(const uint8_t* group, int step, int h, __m512i) {
    return _mm512_loadu_si512(group + step * 128 + h * 64);
  }
};
template <int kBits>
inline __m512i plane_field(const uint8_t* plane, int step, int h) {
  constexpr int kPer = 8 / kBits;
  const __m512i line = _mm512_loadu_si512(plane + (step / kPer * 2 + h) * 64);
  const __m512i shift = _mm512_set1_epi16(static_cast<short>(step % kPer * kBits));
  return _mm512_and_si512(_mm512_srlv_epi16(line, shift), _mm512_set1_epi8((1 << kBits) - 1));
}
template <int kLow, int kHigh, bool kTable = false>
struct Planes {
  static constexpr bool kPlaneless = false;
  static __m512i at(const uint8_t* planes, int step, int h, __m512i table) {
    __m512i code = plane_field<kLow>(planes, step, h);
    if constexpr (kHigh > 0) {
      const __m512i high = plane_field<kHigh>(planes + kGroup * kPanel / 8 * kLow, step, h);
      code = _mm512_or_si512(code, _mm512_slli_epi16(high, kLow));
    }
    return kTable ? _mm512_shuffle_epi8(table, code) : code;
  }
};

inline __m512i load_table(const uint8_t* table) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}

template <class Reader>
inline void unpack_planes(const uint8_t* planes, const uint8_t* table, uint8_t* out) {
  const __m512i values = load_table(table);
#pragma GCC unroll 8
  for (int step = 0; step < 8; ++step) {
    _mm512_storeu_si512(out + step * 128, Reader::at(planes, step, 0, values));
    _mm512_storeu_si512(out + step * 128 + 64, Reader::at(planes, step, 1, values));
  }
}

inline __m512i broadcast(uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }
inline __m512 broadcast_float(uint32_t word) { return _mm512_castsi512_ps(broadcast(word)); }

// Minus the sum of a row's inputs in a group, or in a half of it: what a minimum is multiplied with.
template <bool kHalves>
inline __m512 sum_of_inputs(const uint32_t* in, int64_t stride, int half) {
  if constexpr (!kHalves) return broadcast_float(in[kInputSum * stride]);
  return _mm512_mul_ps(broadcast_float(in[kInputScale * stride]), _mm512_cvtepi32_ps(broadcast(in[(kInputLow + half) * stride])));
}

// One copy for all kernels; nothing is in their registers where they call it.
HEADRACE_LEAF void scales_of_group(Scales kind, const uint8_t* fine, const uint8_t* head, GroupScales& scales) {
  read_scales(kind, fine, head, scales);
}

template <class Reader, bool kAlone, int kRows, bool kHalves, bool kMinima>
HEADRACE_LEAF void multiply_groups(const GroupTile& t) {
  constexpr int kSteps = kHalves ? 4 : 8;
  const uint32_t* x = t.x;
  const uint32_t* in = t.inputs;
  const uint8_t* w = t.codes;
  const uint8_t* ahead = t.ahead;
  const int64_t ahead_step = t.ahead_stride / 8;
  const __m512i table = load_table(t.table);
  const __m128i shift = _mm_cvtsi32_si128(__builtin_ctz(static_cast<unsigned>(t.zero | 256)));
  GroupScales own;
  for (int64_t g = 0; g < t.groups; ++g, in += kGroupInputs * kRows, w += t.stride) {
    // Alone, a tile reads its weights once, strictly from front to back.
    if constexpr (kAlone) scales_of_group(t.kind, t.fine, w - t.head_bytes, own);
    const GroupScales& s = kAlone ? own : t.scales[g];
#pragma GCC unroll 2
    for (int half = 0; half < (kHalves ? 2 : 1); ++half) {
      __m512i a[kRows], b[kRows];
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const uint32_t codes = in[(kHalves ? kInputLow + half : kInputAll) * kRows + r];
        a[r] = kMinima ? _mm512_setzero_si512() : _mm512_sll_epi32(broadcast(codes), shift);
        b[r] = a[r];
      }
#pragma GCC unroll 8
      for (int step = 0; step < kSteps; ++step, x += kRows, ahead += ahead_step) {
        const __m512i w0 = Reader::at(w, half * kSteps + step, 0, table), w1 = Reader::at(w, half * kSteps + step, 1, table);
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(ahead) + 64, _MM_HINT_T0);
        if (kAlone && kFarBytes > 0) {
          _mm_prefetch(reinterpret_cast<const char*>(ahead) + kFarBytes - kAheadBytes, _MM_HINT_T1);
          _mm_prefetch(reinterpret_cast<const char*>(ahead) + kFarBytes - kAheadBytes + 64, _MM_HINT_T1);
        }
        // Else GCC moves all prefetches of a group to its start, more than the processor has places for.
        if (Reader::kPlaneless) __asm__ volatile("" ::: "memory");
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const __m512i xr = broadcast(x[r]);
          a[r] = _mm512_dpbusd_epi32(a[r], w0, xr);
          b[r] = _mm512_dpbusd_epi32(b[r], w1, xr);
        }
      }
      const __m512 scale0 = _mm512_loadu_ps(s.scale[half]), scale1 = _mm512_loadu_ps(s.scale[half] + 16);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        float* acc = t.acc + r * kPanel;
        const __m512 row = broadcast_float(in[kInputScale * kRows + r]);
        __m512 sum0 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[r]), _mm512_mul_ps(scale0, row), _mm512_loadu_ps(acc));
        __m512 sum1 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b[r]), _mm512_mul_ps(scale1, row), _mm512_loadu_ps(acc + 16));
        if (kMinima) {
          const __m512 codes = sum_of_inputs<kHalves>(in + r, kRows, half);
          sum0 = _mm512_fmadd_ps(_mm512_loadu_ps(s.minimum[half]), codes, sum0);
          sum1 = _mm512_fmadd_ps(_mm512_loadu_ps(s.minimum[half] + 16), codes, sum1);
        }
        _mm512_storeu_ps(acc, sum0);
        _mm512_storeu_ps(acc + 16, sum1);
      }
    }
  }
}

template <int kRows, bool kHalves, bool kMinima>
void tile_group(const GroupTile& t) {
  multiply_groups<Bytes8, false, kRows, kHalves, kMinima>(t);
}

// visit(the reader of a type's codes).
template <class Visit>
inline void with_reader(const Grouped& g, const Visit& visit) {
  if (g.codes == Codes::table) return visit(Planes<4, 0, true>{});
  if (g.low_bits == 8) return visit(Bytes8{});
  if (g.low_bits == 2) return g.high_bits == 0 ? visit(Planes<2, 0>{}) : visit(Planes<2, 1>{});
  if (g.high_bits == 0) return visit(Planes<4, 0>{});
  return g.high_bits == 1 ? visit(Planes<4, 1>{}) : visit(Planes<4, 2>{});
}

inline void unpack_codes(const Grouped& g, const uint8_t* planes, const uint8_t* table, uint8_t* out) {
  with_reader(g, [&](auto reader) { unpack_planes<decltype(reader)>(planes, table, out); });
}

// Kernels for few rows, which take the codes out of their planes in registers.
template <int kRows = kDirectRows>
GroupKernel direct_group(const Grouped& g, int64_t rows) {
  if constexpr (kRows == 0) {
    (void)g, (void)rows;
    return nullptr;
  } else {
    if (rows != kRows) return direct_group<kRows - 1>(g, rows);
    const bool halves = has_halves(g.scales), minima = has_minima(g.scales);
    if (g.low_bits == 8) return multiply_groups<Bytes8, true, kRows, false, false>;
    if (g.codes == Codes::table) {
      return halves ? multiply_groups<Planes<4, 0, true>, true, kRows, true, false>
                    : multiply_groups<Planes<4, 0, true>, true, kRows, false, false>;
    }
    if (g.low_bits == 2) {
      return minima ? multiply_groups<Planes<2, 0>, true, kRows, true, true>
                    : multiply_groups<Planes<2, 1>, true, kRows, true, false>;
    }
    if (g.high_bits == 2) return multiply_groups<Planes<4, 2>, true, kRows, true, false>;
    if (g.high_bits == 1) {
      return minima ? multiply_groups<Planes<4, 1>, true, kRows, false, true>
                    : multiply_groups<Planes<4, 1>, true, kRows, false, false>;
    }
    return minima ? multiply_groups<Planes<4, 0>, true, kRows, false, true>
                  : multiply_groups<Planes<4, 0>, true, kRows, false, false>;
  }
}

}  // namespace
}  // namespace headrace
