// Tile kernels for AVX2 with FMA and F16C.
//
// Up to two rows take the 32 columns of a strip in one pass, three and four rows 16 columns at a time:
// eight accumulators either way. int8 goes through 16-bit products (vpmaddubsw would saturate): the
// weights' even and odd bytes as 16-bit numbers, times the inputs' even and odd bytes, sign-extended.
#pragma once
#include <immintrin.h>

#include "linear_layout.hpp"

namespace headrace {
namespace {

constexpr int kMaxRows = 4;
constexpr int32_t kWeightZero = 128;
template <int kRows>
constexpr int kVectors = kRows <= 2 ? 4 : 2;  // of 8 columns in a pass

inline void prefetch_step(const Prefetch& ahead, int64_t step) {
  const char* at = reinterpret_cast<const char*>(ahead.base + step * ahead.stride);
  _mm_prefetch(at, _MM_HINT_T0);
  _mm_prefetch(at + ahead.second, _MM_HINT_T0);
}

// kStep adds one step's products of 8 columns at `w` to `acc`, for the inputs in the word x.
struct StepF32 {
  using Vector = __m256;
  static constexpr int kBytes = 32;
  static Vector load(const void* at) { return _mm256_loadu_ps(static_cast<const float*>(at)); }
  static void store(void* at, Vector v) { _mm256_storeu_ps(static_cast<float*>(at), v); }
  struct Input {
    __m256 x;
  };
  static Input input(uint32_t word) { return {_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(word)))}; }
  using Lane = __m256;
  static Lane weights(const uint8_t* w) { return load(w); }
  static Vector add(Vector acc, Lane w, Input x) { return _mm256_fmadd_ps(w, x.x, acc); }
};

struct StepF16 : StepF32 {
  static constexpr int kBytes = 16;
  static Lane weights(const uint8_t* w) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w))); }
};

struct StepBf16 : StepF32 {
  struct Input {
    __m256 even, odd;
  };
  static Input input(uint32_t word) {
    return {_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(word << 16))),
            _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(word & 0xffff0000u)))};
  }
  struct Lane {
    __m256 even, odd;
  };
  static Lane weights(const uint8_t* w) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  static Vector add(Vector acc, Lane w, Input x) {
    return _mm256_fmadd_ps(w.odd, x.odd, _mm256_fmadd_ps(w.even, x.even, acc));
  }
};

struct StepInt8 {
  using Vector = __m256i;
  static constexpr int kBytes = 32;
  static Vector load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
  static void store(void* at, Vector v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }
  struct Input {
    __m256i even, odd;
  };
  static Input input(uint32_t word) {
    const __m256i x = _mm256_set1_epi32(static_cast<int>(word));
    return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
  }
  struct Lane {
    __m256i even, odd;
  };
  static Lane weights(const uint8_t* w) {
    const __m256i bytes = load(w);
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16(bytes, 8)};
  }
  static Vector add(Vector acc, Lane w, Input x) {
    const __m256i products = _mm256_add_epi32(_mm256_madd_epi16(w.even, x.even), _mm256_madd_epi16(w.odd, x.odd));
    return _mm256_add_epi32(acc, products);
  }
};

template <class Step, int kRows, int kCount>
inline void pass(const uint8_t* w, const uint32_t* x, int64_t steps, uint8_t* acc, const Prefetch& ahead) {
  typename Step::Vector sum[kRows][kCount];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) sum[r][v] = Step::load(acc + r * 128 + v * 32);
  }
  for (int64_t s = 0; s < steps; ++s, w += 4 * Step::kBytes, x += kRows) {
    prefetch_step(ahead, s);
    typename Step::Input in[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) in[r] = Step::input(x[r]);
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) {
      const typename Step::Lane weights = Step::weights(w + v * Step::kBytes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][v] = Step::add(sum[r][v], weights, in[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) Step::store(acc + r * 128 + v * 32, sum[r][v]);
  }
}

template <class Step, int kRows>
HEADRACE_LEAF void tile(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  constexpr int kCount = kRows <= 2 ? 4 : 2;
  for (int v = 0; v < 4; v += kCount) {
    pass<Step, kRows, kCount>(w + v * Step::kBytes, x, steps, static_cast<uint8_t*>(sums) + v * 32, ahead);
  }
}

template <int kRows>
void tile_f32(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  tile<StepF32, kRows>(w, x, steps, sums, ahead);
}
template <int kRows>
void tile_f16(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  tile<StepF16, kRows>(w, x, steps, sums, ahead);
}
template <int kRows>
void tile_bf16(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  tile<StepBf16, kRows>(w, x, steps, sums, ahead);
}
template <int kRows>
void tile_int8(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  tile<StepInt8, kRows>(w, x, steps, sums, ahead);
}

// One group's metadata spread over 8 columns: multipliers to both 16-bit halves, offsets to all four bytes.
struct GroupMeta {
  __m256i multiplier, offset;
};
inline GroupMeta group_meta(const uint8_t* group, int column) {
  const __m128i m = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(group + column));
  const __m128i o = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(group + kStrip + column));
  return {_mm256_mullo_epi32(_mm256_cvtepu8_epi32(m), _mm256_set1_epi32(0x00010001)),
          _mm256_mullo_epi32(_mm256_cvtepu8_epi32(o), _mm256_set1_epi32(0x01010101))};
}
// Two codes at once: their products with the multiplier fit a byte each, so one 16-bit product holds both.
inline __m256i weights_of(__m256i codes, const GroupMeta& meta) {
  const __m256i nibbles = _mm256_and_si256(codes, _mm256_set1_epi8(15));
  return _mm256_add_epi8(_mm256_mullo_epi16(nibbles, meta.multiplier), meta.offset);
}

// `groups` groups of 576 bytes into [8 groups][32][4] bytes.
inline void unpack_groups(const uint8_t* from, int64_t groups, uint8_t* out) {
  for (int64_t g = 0; g < groups; ++g, from += kGroupBytes, out += kGroup * kStrip) {
    for (int column = 0; column < kStrip; column += 8) {
      const GroupMeta meta = group_meta(from, column);
      const uint8_t* codes = from + 64 + column * 4;
      for (int pair = 0; pair < 4; ++pair) {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + pair * 128));
        uint8_t* to = out + pair * 256 + column * 4;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), weights_of(both, meta));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 128), weights_of(_mm256_srli_epi16(both, 4), meta));
      }
    }
  }
}

// Bytes below 16 by a table of 16.
inline void lookup(const uint8_t* table, uint8_t* bytes) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  for (int64_t i = 0; i < kGroup * kStrip; i += 32) {
    __m256i* at = reinterpret_cast<__m256i*>(bytes + i);
    _mm256_storeu_si256(at, _mm256_shuffle_epi8(values, _mm256_loadu_si256(at)));
  }
}

}  // namespace
}  // namespace headrace

#include "linear_plain.hpp"
