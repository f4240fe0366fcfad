// Grouped tiles for AVX2: a group's sums of codes in registers (linear_codes_avx2.hpp), float sums in L1.
#pragma once
#include <cassert>

#include "linear_codes_avx2.hpp"

namespace headrace {
namespace {

constexpr int kGroupedDirect = 4;  // rows: up to here codes are taken out of their planes in registers, beyond once into L1

inline __m256 broadcast_float(uint32_t word) { return _mm256_castsi256_ps(broadcast(word)); }

// Minus the sum of a row's inputs in a group, or in a half of it: what a minimum is multiplied with.
template <bool kHalves>
inline __m256 sum_of_inputs(const uint32_t* in, int64_t stride, int half) {
  if constexpr (!kHalves) return broadcast_float(in[kInputSum * stride]);
  return _mm256_mul_ps(broadcast_float(in[kInputScale * stride]), _mm256_cvtepi32_ps(broadcast(in[(kInputLow + half) * stride])));
}

// Codes as bytes whose pairs have to be widened before a group's (or half's) end.
template <class Reader, int kSteps>
constexpr bool kSpans = !Reader::kUnrolled && !Reader::kSigned && Reader::kSpan < kSteps;

// Rows that a pass takes of a tile's.
template <class Reader, int kRows, int kSteps>
constexpr int pass_rows() {
  return kSpans<Reader, kSteps> && kRows > 3 ? (kRows + 1) / 2 : kRows;
}

// Vectors that a pass takes: pairs of 16 bits, or words of 32 with the steps' pairs or the weights' magnitudes next to them.
template <class Reader, int kRows, int kSteps>
constexpr int pass_vectors() {
  if (!Reader::kSigned && Reader::kSpan >= kSteps) return kRows <= 2 ? 4 : 2;
  if (Reader::kSigned) return kRows == 1 ? 4 : (kRows <= 4 ? 2 : 1);
  return kRows == 1 ? 4 : (kRows <= 3 ? 2 : 1);
}

// Sums in 32 bits over steps [begin, begin + kSteps), inputs x[kSteps][kStride]; `add_zero(row, sum)` is what the codes' zero
// makes of a sum.
template <class Reader, int kSteps, int kStride, int kRows, int kVectors, class AddZero>
HEADRACE_INLINE void sum_words(const uint8_t* group, int begin, int v0, const uint32_t* x, __m256i table, const AddZero& add_zero,
                      __m256i (&words)[kRows][kVectors]) {
  if constexpr (Reader::kSigned) return sum_steps<Reader, kSteps>(group, begin, v0, x, table, words);
  constexpr int kSpan = Reader::kSpan < kSteps ? Reader::kSpan : kSteps;
  constexpr bool kInAssembly = kSpans<Reader, kSteps> && kRows > 1;
  if constexpr (kInAssembly) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) words[r][0] = words[r][1] = add_zero(r, _mm256_setzero_si256());
  }
#pragma GCC unroll 4
  for (int s = 0; s < kSteps; s += kSpan) {
    if constexpr (kInAssembly) {
      add_span<kSpan, kStride>(group + (begin + s) * 128 + v0 * 32, x + s * kStride, words);
    } else {
      static_assert(kStride == kRows);
      __m256i pairs[kRows][kVectors];
      sum_steps<Reader, kSpan>(group, begin + s, v0, x + s * kRows, table, pairs);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          if (s == 0) {
            words[r][v] = widened(pairs[r][v]);
          } else {
            add_words(words[r][v], widened(pairs[r][v]));
          }
          if (s + kSpan == kSteps) words[r][v] = add_zero(r, words[r][v]);
        }
      }
    }
  }
}

// One copy for all kernels; nothing is in their registers where they call it.
HEADRACE_LEAF void scales_of_group(Scales kind, const uint8_t* fine, const uint8_t* head, GroupScales& scales) {
  read_scales(kind, fine, head, scales);
}

// Scales the sums of one half (or all) of a group and adds them to those of the tile's rows from `first` on.
template <bool kHalves, bool kMinima, int kStride, int kRows, int kVectors>
HEADRACE_INLINE void add_scaled(float* to, const GroupScales& s, const uint32_t* in, int half, int first, int v0,
                       const __m256i (&words)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v0 + v) * kLanes;
    const __m256 scale = _mm256_loadu_ps(s.scale[half] + column);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      float* acc = to + (first + r) * kPanel + column;
      const __m256 row = broadcast_float(in[kInputScale * kStride + first + r]);
      __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(words[r][v]), _mm256_mul_ps(scale, row), _mm256_loadu_ps(acc));
      if constexpr (kMinima) {
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(s.minimum[half] + column), sum_of_inputs<kHalves>(in + first + r, kStride, half), sum);
      }
      _mm256_storeu_ps(acc, sum);
    }
  }
}

// One half (or all) of a group, for kPass of the tile's rows and kVectors vectors.
template <class Reader, bool kHalves, bool kMinima, int kRows, int kFirst, int kPass, int kVectors>
HEADRACE_INLINE void add_pass(float* acc, const GroupScales& s, const uint8_t* group, const uint32_t* x,
                              const uint32_t* in, int half, int v0, __m256i table) {
  constexpr int kSteps = kHalves ? 4 : 8;
  const uint32_t* sums = in + (kHalves ? kInputLow + half : kInputAll) * kRows + kFirst;  // minus the sums of inputs
  const auto add_zero = [&](int r, __m256i words) {
    return kMinima ? words : _mm256_add_epi32(words, _mm256_slli_epi32(broadcast(sums[r]), Reader::kZeroBit));
  };
  __m256i words[kPass][kVectors];
  sum_words<Reader, kSteps, kRows>(group, half * kSteps, v0, x + half * kSteps * kRows + kFirst, table, add_zero, words);
  add_scaled<kHalves, kMinima, kRows>(acc, s, in, half, kFirst, v0, words);
}

template <class Reader, bool kAlone, int kRows, bool kHalves, bool kMinima>
HEADRACE_LEAF void multiply_groups(const GroupTile& tile) {
  const GroupTile t = tile;  // the compiler must assume that stores to the sums change the tile, but not this copy
  assert(kMinima || Reader::kSigned || t.zero == 1 << Reader::kZeroBit);
  constexpr int kSteps = kHalves ? 4 : 8, kPass = pass_rows<Reader, kRows, kSteps>();
  constexpr int kVectors = pass_vectors<Reader, kPass, kSteps>();
  const __m256i table = load_table(t.table);
  const uint8_t* w = t.codes;
  const uint8_t* ahead = t.ahead;
  GroupScales own;
  for (int64_t g = 0; g < t.groups; ++g, w += t.stride, ahead += t.ahead_stride) {
    const uint32_t* x = t.x + g * 8 * kRows;
    const uint32_t* in = t.inputs + g * kGroupInputs * kRows;
    // Alone, a tile reads its weights once, strictly from front to back.
    if constexpr (kAlone) scales_of_group(t.kind, t.fine, w - t.head_bytes, own);
    const GroupScales& s = kAlone ? own : t.scales[g];
    fetch(ahead, t.ahead_stride);
    for (int v0 = 0; v0 < kPanelVectors; v0 += kVectors) {
#pragma GCC unroll 2
      for (int half = 0; half < (kHalves ? 2 : 1); ++half) {
        add_pass<Reader, kHalves, kMinima, kRows, 0, kPass, kVectors>(t.acc, s, w, x, in, half, v0, table);
        if constexpr (kPass < kRows) {
          add_pass<Reader, kHalves, kMinima, kRows, kPass, kRows - kPass, kVectors>(t.acc, s, w, x, in, half, v0, table);
        }
      }
    }
  }
}

template <class Reader>
inline void unpack_planes(const uint8_t* planes, const uint8_t* table, uint8_t* out) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
#pragma GCC unroll 8
  for (int step = 0; step < 8; ++step) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      __m256i* to = reinterpret_cast<__m256i*>(out + step * 128 + v * 32);
      _mm256_storeu_si256(to, Reader::at(planes, step, v, values));
    }
  }
}

// How a type is read in its planes and unpacked, whether it has scales for halves of groups, whether minima.
template <class P, class B, bool kHalves_, bool kMinima_>
struct Kind {
  using InPlanes = P;
  using AsBytes = B;
  static constexpr bool kHalves = kHalves_, kMinima = kMinima_;
};
// visit(Kind of a type).
template <class Visit>
inline void with_kind(const Grouped& g, const Visit& visit) {
  using Table = Planes<4, 0, true>;
  const bool minima = has_minima(g.scales);
  if (g.low_bits == 8) return visit(Kind<SignedBytes, SignedBytes, false, false>{});
  if (g.codes == Codes::table) {
    return has_halves(g.scales) ? visit(Kind<Table, SignedBytes, true, false>{}) : visit(Kind<Table, SignedBytes, false, false>{});
  }
  if (g.low_bits == 2) {
    return minima ? visit(Kind<Planes<2, 0>, ByteCodes<2>, true, true>{}) : visit(Kind<Planes<2, 1>, ByteCodes<3>, true, false>{});
  }
  if (g.high_bits == 2) return visit(Kind<Planes<4, 2>, ByteCodes<6>, true, false>{});
  if (g.high_bits == 1) {
    return minima ? visit(Kind<Planes<4, 1>, ByteCodes<5>, false, true>{}) : visit(Kind<Planes<4, 1>, ByteCodes<5>, false, false>{});
  }
  return minima ? visit(Kind<Planes<4, 0>, ByteCodes<4>, false, true>{}) : visit(Kind<Planes<4, 0>, ByteCodes<4>, false, false>{});
}

inline void unpack_codes(const Grouped& g, const uint8_t* planes, const uint8_t* table, uint8_t* out) {
  with_kind(g, [&](auto kind) { unpack_planes<typename decltype(kind)::InPlanes>(planes, table, out); });
}

template <class Reader, class Kind, bool kAlone, int kRows>
GroupKernel kernel_of_rows(int64_t rows) {
  if constexpr (kRows == 0) {
    (void)rows;
    return nullptr;
  } else {
    return rows == kRows ? multiply_groups<Reader, kAlone, kRows, Kind::kHalves, Kind::kMinima>
                         : kernel_of_rows<Reader, Kind, kAlone, kRows - 1>(rows);
  }
}

// Kernels for few rows, which take the codes out of their planes in registers; null where there are more.
inline GroupKernel direct_group(const Grouped& g, int64_t rows) {
  GroupKernel kernel = nullptr;
  with_kind(g, [&](auto kind) {
    using K = decltype(kind);
    kernel = kernel_of_rows<typename K::InPlanes, K, true, kGroupedDirect>(rows);
  });
  return kernel;
}
// Kernels for codes that lie as bytes.
inline GroupKernel group_kernel(const Grouped& g, int64_t rows) {
  GroupKernel kernel = nullptr;
  with_kind(g, [&](auto kind) {
    using K = decltype(kind);
    kernel = kernel_of_rows<typename K::AsBytes, K, false, kMaxRows>(rows);
  });
  return kernel;
}

}  // namespace
}  // namespace headrace
