// Twelve sums side by side hide the latency of every unit that is known (4 to 5 cycles, two per cycle) and
// fit the 16 registers of AVX2. The barrier makes each sum new to the compiler, so that it cannot replace
// a loop by its result.
#include "peaks.hpp"

#include "simd.hpp"
#if defined(HEADRACE_ISA_amx)
#include "matrix_registers.hpp"
#endif

namespace headrace::HEADRACE_NAMESPACE {

inline constexpr int kSums = 12;

#if defined(__x86_64__)
#define HEADRACE_BARRIER(x) asm volatile("" : "+v"(x))
#elif defined(__aarch64__)
#define HEADRACE_BARRIER(x) asm volatile("" : "+w"(x))
#else
#define HEADRACE_BARRIER(x) asm volatile("" : "+m"(x))
#endif

// Sums are variables of their own: an array of them would stay in memory.
#define HEADRACE_EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define HEADRACE_START(i) Vector sum##i = zero;
#define HEADRACE_STEP(i)  \
  sum##i = step(sum##i);  \
  HEADRACE_BARRIER(sum##i);
#define HEADRACE_TOTAL(i)                      \
  memcpy(&lane, &sum##i, sizeof lane);         \
  total += static_cast<float>(lane & 0xFF);

// Runs `step` on every sum in every round, and adds up something of each.
template <typename Vector, typename Step>
static inline float run_rounds(int64_t rounds, Vector zero, Step step) {
  HEADRACE_EACH(HEADRACE_START)
  for (int64_t round = 0; round < rounds; ++round) {
    HEADRACE_EACH(HEADRACE_STEP)
  }
  float total = 0;
  int32_t lane;
  HEADRACE_EACH(HEADRACE_TOTAL)
  return total;
}

static float f32(int64_t rounds) {
  const F a = splat(0.999f), b = splat(1e-3f);
  return run_rounds(rounds, splat(0), [&](F sum) { return fma(sum, a, b); });
}

#if defined(HEADRACE_ISA_avx512)
static float bf16(int64_t rounds) {
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3C00), b = (__m512bh)_mm512_set1_epi16(0x3C00);
  return run_rounds(rounds, _mm512_setzero_ps(), [&](__m512 sum) { return _mm512_dpbf16_ps(sum, a, b); });
}
static float int8(int64_t rounds) {
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-2);
  return run_rounds(rounds, _mm512_setzero_si512(), [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, a, b); });
}
inline constexpr int64_t kBf16 = 64, kInt8 = 128;
#elif defined(HEADRACE_ISA_avx2)
// Pairs of products added in 16 bits, as codes of four bits are; bytes of eight bits have to be widened each time and reach
// five eighths of it.
static float int8(int64_t rounds) {
  const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-2);
  return run_rounds(rounds, _mm256_setzero_si256(), [&](__m256i sum) {
    __m256i left = a;
    HEADRACE_BARRIER(left);
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(left, b));
  });
}
inline constexpr int64_t kInt8 = 64;
#elif defined(HEADRACE_ISA_neon)
static float int8(int64_t rounds) {
  const int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(-2);
  return run_rounds(rounds, vdupq_n_s32(0), [&](int32x4_t sum) { return vdotq_s32(sum, a, b); });
}
inline constexpr int64_t kInt8 = 32;
#else
static float int8(int64_t rounds) {  // four products into each sum, as the portable kernels add them
  const I a = splat_int(3), b = splat_int(-2);
  return run_rounds(rounds, splat_int(0), [&](I sum) { return sum + a * b; });
}
inline constexpr int64_t kInt8 = 2 * kWidth;
#endif
#if !defined(HEADRACE_ISA_avx512)
// Products of float32, which bf16 weights are widened to: the bound, whatever the widening takes.
static float bf16(int64_t rounds) { return f32(rounds); }
inline constexpr int64_t kBf16 = 2 * kWidth;
#endif

#if defined(HEADRACE_ISA_amx)
// Four products of 16 x 64 bytes by 64 x 16 in each round.
template <bool kFloats>
static float matrix(int64_t rounds) {
  const MatrixRegisters registers(kSquare);
  for (int64_t round = 0; round < rounds; ++round) multiply_loaded<kFloats, true, true>();
  int32_t sums[kSquare * kSquare];
  _tile_stored(0, sums, kSquare * sizeof *sums);
  return static_cast<float>(sums[0]);
}
inline constexpr float (*matrix_bf16)(int64_t rounds) = matrix<true>;
inline constexpr float (*matrix_int8)(int64_t rounds) = matrix<false>;
inline constexpr int64_t kMatrixInt8 = 4 * 2 * kSquare * kSquare * kDepth;
#else
inline constexpr float (*matrix_bf16)(int64_t rounds) = nullptr;
inline constexpr float (*matrix_int8)(int64_t rounds) = nullptr;
inline constexpr int64_t kMatrixInt8 = 0;
#endif

}  // namespace headrace::HEADRACE_NAMESPACE

namespace headrace {
extern const PeaksKernels HEADRACE_TABLE(peaks);
const PeaksKernels HEADRACE_TABLE(peaks) = {
    HEADRACE_NAMESPACE::f32,
    HEADRACE_NAMESPACE::bf16,
    HEADRACE_NAMESPACE::int8,
    HEADRACE_NAMESPACE::matrix_bf16,
    HEADRACE_NAMESPACE::matrix_int8,
    HEADRACE_NAMESPACE::kSums * 2 * HEADRACE_NAMESPACE::kWidth,
    HEADRACE_NAMESPACE::kSums * HEADRACE_NAMESPACE::kBf16,
    HEADRACE_NAMESPACE::kSums * HEADRACE_NAMESPACE::kInt8,
    HEADRACE_NAMESPACE::kMatrixInt8 / 2,
    HEADRACE_NAMESPACE::kMatrixInt8,
};
}  // namespace headrace
