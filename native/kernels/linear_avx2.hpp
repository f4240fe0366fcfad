// Tile kernels for AVX2 with FMA and F16C.
//
// Up to two rows take the 32 columns of a panel in one pass, three and four rows 16 columns at a time: eight accumulators
// either way; five and six rows take 16, in two halves where a step needs more registers. Products of bytes: linear_codes_avx2.hpp.
#pragma once
#include <immintrin.h>

#include "linear_codes_avx2.hpp"
#include "linear_layout.hpp"

namespace headrace {
namespace {

constexpr int kMaxRows = 6;

inline void prefetch_step(const Prefetch& ahead, int64_t step) {
  const char* at = reinterpret_cast<const char*>(ahead.base + step * ahead.stride);
  _mm_prefetch(at, _MM_HINT_T0);
  _mm_prefetch(at + ahead.second, _MM_HINT_T0);
}

// In place, as sums of codes are (linear_codes_avx2.hpp).
inline void add_product(__m256& acc, __m256 w, __m256 x) { __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x)); }

// A step adds its products of 8 columns with a row's word of inputs.
struct StepF32 {
  using Vector = __m256;
  static constexpr int kBytes = 32;
  static constexpr bool kTall = true;  // six rows of two vectors and what else a step needs fit 16 registers
  static Vector load(const void* at) { return _mm256_loadu_ps(static_cast<const float*>(at)); }
  static void store(void* at, Vector v) { _mm256_storeu_ps(static_cast<float*>(at), v); }
  static constexpr int kWords = 1;  // of a row's inputs
  using Input = __m256;
  static Input input(const uint32_t* x, int) { return _mm256_castsi256_ps(broadcast(*x)); }
  using Lane = __m256;
  static Lane weights(const uint8_t* w) { return load(w); }
  static void add(Vector& acc, Lane w, Input x) { add_product(acc, w, x); }
};

struct StepF16 : StepF32 {
  static constexpr int kBytes = 16;
  static Lane weights(const uint8_t* w) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w))); }
};

// Two inputs, whose words lie behind one another: those of all rows of the first, then of the second.
struct StepBf16 : StepF32 {
  static constexpr bool kTall = false;
  static constexpr int kWords = 2;
  struct Input {
    __m256 even, odd;
  };
  static Input input(const uint32_t* x, int rows) { return {StepF32::input(x, rows), StepF32::input(x + rows, rows)}; }
  struct Lane {
    __m256 even, odd;
  };
  static Lane weights(const uint8_t* w) {
    const __m256i both = load_vector(w);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  static void add(Vector& acc, const Lane& w, const Input& x) {
    add_product(acc, w.even, x.even);
    add_product(acc, w.odd, x.odd);
  }
};

struct StepInt8 {
  using Vector = __m256i;
  static constexpr int kBytes = 32;
  static constexpr bool kTall = false;
  static Vector load(const void* at) { return load_vector(at); }
  static void store(void* at, Vector v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }
  static constexpr int kWords = 1;
  using Input = __m256i;
  static Input input(const uint32_t* x, int) { return broadcast(*x); }
  struct Lane {
    __m256i weights, sizes;
  };
  static Lane weights(const uint8_t* w) {
    const __m256i bytes = SignedBytes::at(w, 0, 0, _mm256_setzero_si256());
    return {bytes, _mm256_abs_epi8(bytes)};
  }
  static void add(Vector& acc, const Lane& w, Input x) { add_words(acc, signed_products(w.weights, w.sizes, x)); }
};

// Rows [kFirst, kFirst + kMine) of a tile of kRows, kCount vectors.
template <class Step, int kRows, int kFirst, int kMine, int kCount>
inline void pass(const uint8_t* w, const uint32_t* x, int64_t steps, uint8_t* acc, const Prefetch& ahead) {
  typename Step::Vector sum[kMine][kCount];
  acc += kFirst * 128;
  x += kFirst;
#pragma GCC unroll 6
  for (int r = 0; r < kMine; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) sum[r][v] = Step::load(acc + r * 128 + v * 32);
  }
  for (int64_t s = 0; s < steps; ++s, w += 4 * Step::kBytes, x += Step::kWords * kRows) {
    prefetch_step(ahead, s);
    typename Step::Lane weights[kCount];
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) weights[v] = Step::weights(w + v * Step::kBytes);
#pragma GCC unroll 6
    for (int r = 0; r < kMine; ++r) {
      const typename Step::Input in = Step::input(x + r, kRows);
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) Step::add(sum[r][v], weights[v], in);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kMine; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) Step::store(acc + r * 128 + v * 32, sum[r][v]);
  }
}

template <class Step, int kRows>
HEADRACE_LEAF void tile(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  constexpr int kCount = kRows <= 2 ? 4 : 2, kMine = kRows <= 4 || Step::kTall ? kRows : 3;
  for (int v = 0; v < 4; v += kCount) {
    uint8_t* acc = static_cast<uint8_t*>(sums) + v * 32;
    pass<Step, kRows, 0, kMine, kCount>(w + v * Step::kBytes, x, steps, acc, ahead);
    if constexpr (kMine < kRows) {
      pass<Step, kRows, kMine, kRows - kMine, kCount>(w + v * Step::kBytes, x, steps, acc, ahead);
    }
  }
}

// bf16 weights of `steps` steps as float [2 * steps][32]: many rows gain by tiles that widen nothing.
inline void widen_bf16(const uint8_t* w, int64_t steps, uint8_t* out) {
  for (int64_t s = 0; s < steps; ++s, w += 128, out += 256) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      const StepBf16::Lane lane = StepBf16::weights(w + v * 32);
      StepF32::store(out + v * 32, lane.even);
      StepF32::store(out + 128 + v * 32, lane.odd);
    }
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

}  // namespace
}  // namespace headrace

#include "linear_rows_avx2.hpp"
