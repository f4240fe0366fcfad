// Sums of codes for AVX2, which has no product of bytes that adds up in 32 bits.
//
// vpmaddubsw multiplies unsigned bytes with signed ones and adds pairs to 16 bits, saturating. A code of b bits makes a pair
// at most 2 * (2^b - 1) * 127, so that the pairs of several steps fit 16 bits together: of eight steps with four bits, of four
// with five, of two with six. Only then are they widened: little more than two instructions for 32 products instead of three. Bytes
// with a sign go through their magnitude and the inputs with their sign (2 * 128 * 127 still fits), a step at a time.
#pragma once
#include <immintrin.h>

#include "linear_layout.hpp"

namespace headrace {
namespace {

#define HEADRACE_INLINE inline __attribute__((always_inline))  // what works on a leaf's registers

constexpr int kLanes = 8;  // outputs of a vector, four inputs each
constexpr int kPanelVectors = kPanel / kLanes;
constexpr int32_t kWeightZero = 0;  // kernels take 128 off the stored bytes

inline __m256i load_vector(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
inline __m256i broadcast(uint32_t word) { return _mm256_set1_epi32(static_cast<int>(word)); }

// Sums stay in place: where the compiler is free to choose, GCC 12 hands them from register to register and onto the stack.
inline void add_words(__m256i& sum, __m256i words) { __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(words)); }
inline void add_products(__m256i& sum, __m256i codes, __m256i inputs) {
  __m256i pairs;
  __asm__("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(pairs) : "x"(inputs), "x"(codes));
}

inline __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// Weights with signs times inputs; `sizes` are the weights' magnitudes.
inline __m256i signed_products(__m256i weights, __m256i sizes, __m256i inputs) {
  return widened(_mm256_maddubs_epi16(sizes, _mm256_sign_epi8(inputs, weights)));
}

// How a kernel finds the codes of a step's outputs 8 v to 8 v + 7: as bytes where they were unpacked to, or in planes.
template <int kBits>
struct ByteCodes {
  static constexpr bool kSigned = false, kUnrolled = false;
  static constexpr int kSpan = kBits <= 4 ? 8 : (kBits == 5 ? 4 : 2);  // steps whose pairs fit 16 bits together
  static constexpr int kZeroBit = kBits - 1;  // of types without minima: the zero is in the middle
  static __m256i at(const uint8_t* group, int step, int v, __m256i) { return load_vector(group + step * 128 + v * 32); }
};
// Bytes 128 too high.
struct SignedBytes {
  static constexpr bool kSigned = true, kUnrolled = false;
  static constexpr int kSpan = 1, kZeroBit = 0;
  static __m256i at(const uint8_t* group, int step, int v, __m256i) {
    return _mm256_xor_si256(load_vector(group + step * 128 + v * 32), _mm256_set1_epi8(-128));
  }
};
// A plane's bits of a step, from bit kAt of each byte on.
template <int kBits, int kAt = 0>
inline __m256i plane_field(const uint8_t* plane, int step, int v) {
  constexpr int kPer = 8 / kBits;
  const __m256i line = load_vector(plane + step / kPer * 128 + v * 32);
  const int right = step % kPer * kBits - kAt;
  const __m256i moved = right < 0 ? _mm256_slli_epi16(line, -right) : _mm256_srli_epi16(line, right);
  return _mm256_and_si256(moved, _mm256_set1_epi8(((1 << kBits) - 1) << kAt));
}
template <int kLow, int kHigh, bool kTable = false>
struct Planes {
  static constexpr bool kSigned = kTable, kUnrolled = true;  // shifts by constants
  static constexpr int kSpan = kTable ? 1 : ByteCodes<kLow + kHigh>::kSpan, kZeroBit = ByteCodes<kLow + kHigh>::kZeroBit;
  static __m256i at(const uint8_t* planes, int step, int v, __m256i table) {
    __m256i code = plane_field<kLow>(planes, step, v);
    if constexpr (kHigh > 0) {
      code = _mm256_or_si256(code, plane_field<kHigh, kLow>(planes + kGroup * kPanel / 8 * kLow, step, v));
    }
    return kTable ? _mm256_shuffle_epi8(table, code) : code;
  }
};
// A table of bytes 128 too high, as the numbers that they encode.
inline __m256i load_table(const uint8_t* table) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_broadcastsi128_si256(_mm_xor_si128(bytes, _mm_set1_epi8(-128)));
}

// A step's products with the inputs x[kRows] for kVectors vectors from `v0` on, added to the sums if it is not the first: pairs
// of 16 bits, or words of 32 where the codes have signs.
template <class Reader, bool kFirst, int kRows, int kVectors>
HEADRACE_INLINE void add_step(const uint8_t* group, int step, int v0, const uint32_t* x, __m256i table,
                     __m256i (&sums)[kRows][kVectors]) {
  __m256i codes[kVectors], sizes[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    codes[v] = Reader::at(group, step, v0 + v, table);
    if constexpr (Reader::kSigned) sizes[v] = _mm256_abs_epi8(codes[v]);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    const __m256i in = broadcast(x[r]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kFirst) {
        sums[r][v] = Reader::kSigned ? signed_products(codes[v], sizes[v], in) : _mm256_maddubs_epi16(codes[v], in);
      } else if constexpr (Reader::kSigned) {
        add_words(sums[r][v], signed_products(codes[v], sizes[v], in));
      } else {
        add_products(sums[r][v], codes[v], in);
      }
    }
  }
}

template <int kRows, int kVectors>
HEADRACE_INLINE void clear(__m256i (&sums)[kRows][kVectors]) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_setzero_si256();
  }
}

// Steps of codes as bytes, for two vectors: twelve sums of six rows, the codes, a row's inputs and their products are all 16
// registers, which no compiler at hand manages.
#define HEADRACE_ROW(r)                                \
  "vpbroadcastd 4*" #r "(%[x]), %[in]\n\t"             \
  "vpmaddubsw %[in], %[codes0], %[pairs]\n\t"          \
  "vpaddw %[pairs], %[a" #r "], %[a" #r "]\n\t"        \
  "vpmaddubsw %[in], %[codes1], %[in]\n\t"             \
  "vpaddw %[in], %[b" #r "], %[b" #r "]\n\t"
#define HEADRACE_CLEAR(r) "vpxor %[a" #r "], %[a" #r "], %[a" #r "]\n\tvpxor %[b" #r "], %[b" #r "], %[b" #r "]\n\t"
#define HEADRACE_SUMS(r) [a##r] "=&x"(sums[r][0]), [b##r] "=&x"(sums[r][1]),
#define HEADRACE_STEPS(rows, EACH)                                                                              \
  __asm__ volatile(EACH(HEADRACE_CLEAR)                                                                         \
                   "1:\n\t"                                                                                     \
                   "vmovdqu (%[w]), %[codes0]\n\t"                                                              \
                   "vmovdqu 32(%[w]), %[codes1]\n\t"                                                            \
                   EACH(HEADRACE_ROW)                                                                           \
                   "add $128, %[w]\n\t"                                                                         \
                   "add $4*" #rows ", %[x]\n\t"                                                                 \
                   "dec %[steps]\n\t"                                                                           \
                   "jnz 1b"                                                                                     \
                   : EACH(HEADRACE_SUMS) [codes0] "=&x"(codes0), [codes1] "=&x"(codes1),       \
                     [in] "=&x"(in), [pairs] "=&x"(pairs), [w] "+r"(w), [x] "+r"(x), [steps] "+r"(steps)        \
                   :                                                                                            \
                   : "memory", "cc")
#define HEADRACE_TWO(DO) DO(0) DO(1)
#define HEADRACE_THREE(DO) HEADRACE_TWO(DO) DO(2)
#define HEADRACE_FOUR(DO) HEADRACE_THREE(DO) DO(3)
#define HEADRACE_FIVE(DO) HEADRACE_FOUR(DO) DO(4)
#define HEADRACE_SIX(DO) HEADRACE_FIVE(DO) DO(5)
template <int kRows>
HEADRACE_INLINE void sum_bytes(const uint8_t* w, const uint32_t* x, int64_t steps, __m256i (&sums)[kRows][2]) {
  __m256i codes0, codes1, in, pairs;
  if constexpr (kRows == 6) {
    HEADRACE_STEPS(6, HEADRACE_SIX);
  } else if constexpr (kRows == 5) {
    HEADRACE_STEPS(5, HEADRACE_FIVE);
  } else if constexpr (kRows == 4) {
    HEADRACE_STEPS(4, HEADRACE_FOUR);
  } else {
    static_assert(kRows == 3);
    HEADRACE_STEPS(3, HEADRACE_THREE);
  }
}

// A span of steps of codes as bytes for two vectors and up to three rows, widened and added to words of 32 bits: those, the
// pairs of 16, the codes, a row's inputs and their products are all 16 registers again. x[kSpan][kStride]. With three rows it has
// 29 of the 30 operands that GCC allows: what is read and written counts twice.
#define HEADRACE_FIRST(r)                              \
  "vpbroadcastd 4*" #r "(%[x]), %[in]\n\t"             \
  "vpmaddubsw %[in], %[codes0], %[p" #r "]\n\t"        \
  "vpmaddubsw %[in], %[codes1], %[q" #r "]\n\t"
#define HEADRACE_NEXT(r)                               \
  "vpbroadcastd 4*" #r "(%[x]), %[in]\n\t"             \
  "vpmaddubsw %[in], %[codes0], %[product]\n\t"        \
  "vpaddw %[product], %[p" #r "], %[p" #r "]\n\t"      \
  "vpmaddubsw %[in], %[codes1], %[in]\n\t"             \
  "vpaddw %[in], %[q" #r "], %[q" #r "]\n\t"
#define HEADRACE_WIDEN(r)                              \
  "vpmaddwd %[ones], %[p" #r "], %[p" #r "]\n\t"       \
  "vpaddd %[p" #r "], %[a" #r "], %[a" #r "]\n\t"      \
  "vpmaddwd %[ones], %[q" #r "], %[q" #r "]\n\t"       \
  "vpaddd %[q" #r "], %[b" #r "], %[b" #r "]\n\t"
#define HEADRACE_WORDS(r) \
  [a##r] "+x"(words[r][0]), [b##r] "+x"(words[r][1]), [p##r] "=&x"(p##r), [q##r] "=&x"(q##r),
#define HEADRACE_CODES "vmovdqu (%[w]), %[codes0]\n\tvmovdqu 32(%[w]), %[codes1]\n\t"
#define HEADRACE_SPAN(EACH)                                                                                  \
  __asm__(HEADRACE_CODES EACH(HEADRACE_FIRST)                                                                \
          ".rept %c[rest]\n\tadd $128, %[w]\n\tadd $4*%c[stride], %[x]\n\t"                                \
          HEADRACE_CODES EACH(HEADRACE_NEXT)                                                                 \
          ".endr\n\t" EACH(HEADRACE_WIDEN)                                                                   \
          : EACH(HEADRACE_WORDS) [codes0] "=&x"(codes0), [codes1] "=&x"(codes1), [in] "=&x"(in),             \
            [product] "=&x"(product), [w] "+&r"(w), [x] "+&r"(x)                                             \
          : [ones] "m"(kOnes), [stride] "i"(kStride), [rest] "i"(kSpan - 1)                                  \
          : "memory", "cc")
alignas(32) constexpr int16_t kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
template <int kSpan, int kStride, int kRows>
HEADRACE_INLINE void add_span(const uint8_t* w, const uint32_t* x, __m256i (&words)[kRows][2]) {
  __m256i p0, q0, p1, q1, p2, q2, codes0, codes1, in, product;  // no array: GCC 12 would keep one in memory
  if constexpr (kRows == 3) {
    HEADRACE_SPAN(HEADRACE_THREE);
  } else {
    static_assert(kRows == 2);
    (void)p2, (void)q2;
    HEADRACE_SPAN(HEADRACE_TWO);
  }
}

// The sums of steps [begin, begin + kSteps) with x[kSteps][kRows]: pairs of 16 bits, or words of 32 where codes have signs.
template <class Reader, int kSteps, int kRows, int kVectors>
HEADRACE_INLINE void sum_steps(const uint8_t* group, int begin, int v0, const uint32_t* x, __m256i table,
                               __m256i (&sums)[kRows][kVectors]) {
  if constexpr (!Reader::kUnrolled && !Reader::kSigned && kVectors == 2 && kRows >= 3) {
    return sum_bytes(group + begin * 128 + v0 * 32, x, kSteps, sums);
  }
  if constexpr (Reader::kUnrolled) {
    add_step<Reader, true>(group, begin, v0, x, table, sums);
#pragma GCC unroll 8
    for (int s = 1; s < kSteps; ++s) add_step<Reader, false>(group, begin + s, v0, x + s * kRows, table, sums);
  } else {
    clear(sums);
#pragma GCC unroll 1
    for (int s = 0; s < kSteps; ++s) add_step<Reader, false>(group, begin + s, v0, x + s * kRows, table, sums);
  }
}

// Prefetches `bytes` bytes.
HEADRACE_INLINE void fetch(const uint8_t* at, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(reinterpret_cast<const char*>(at + line), _MM_HINT_T0);
}

}  // namespace
}  // namespace headrace
