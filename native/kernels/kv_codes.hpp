// Keys and values of 8 and 4 bits: from a row's numbers to its codes and scale, and from a page's codes to numbers that
// attention over bf16 reads.
//
// Rows are rotated first: blocks of numbers times the orthonormal Hadamard matrix, so that no dimension dominates (QuaRot,
// Ashkboos et al. 2024). Queries are rotated alike, which leaves scores as they are, and what is summed of values
// is rotated back. 8 bits: whole numbers up to 127. 4 bits: the best 16 levels for a normal distribution (Max 1960), under the
// scale with which the product of the row and what it became is the row's square (EDEN; Vargaftik et al. 2022). What a row
// becomes depends on it alone. bfloat16 holds all levels exactly; scales come in with the scores and the weights.
//
// A row with a number that is not finite has the scale NaN, so its sequence's outputs are NaN. A row whose scale would be
// subnormal is zero.
#pragma once
#include <float.h>
#include <math.h>

#include "../formats/kv_page.hpp"
#include "attention.hpp"
#include "attention_numbers.hpp"

namespace headrace::HEADRACE_NAMESPACE {

template <int kDistance>
static inline void butterflies(float* x, int count) {
  for (int start = 0; start < count; start += 2 * kDistance) {
    for (int i = start; i < start + kDistance; ++i) {
      const float a = x[i], b = x[i + kDistance];
      x[i] = a + b;
      x[i + kDistance] = a - b;
    }
  }
}

// Rotates a row of `dim` numbers, in blocks of the highest power of 2 that divides it, at most 128. Its own inverse.
static inline void mix_dimensions(float* x, int dim) {
  const int most = dim & -dim, block = most < 128 ? most : 128;
  if (block > 1) butterflies<1>(x, dim);
  if (block > 2) butterflies<2>(x, dim);
  if (block > 4) butterflies<4>(x, dim);
  if (block > 8) butterflies<8>(x, dim);
  if (block > 16) butterflies<16>(x, dim);
  if (block > 32) butterflies<32>(x, dim);
  if (block > 64) butterflies<64>(x, dim);
  const float scale = 1.0f / sqrtf(static_cast<float>(block));
  for (int d = 0; d < dim; ++d) x[d] *= scale;
}

constexpr uint16_t kNaN = 0x7fc0;  // in bfloat16

static inline float from_bf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float r;
  memcpy(&r, &bits, sizeof r);
  return r;
}

// The largest magnitude; infinite or NaN where a number is.
static inline float magnitude(const float* x, int dim) {
  uint32_t top = 0;
  for (int d = 0; d < dim; ++d) {
    uint32_t bits;
    memcpy(&bits, x + d, sizeof bits);
    bits &= 0x7fffffffu;
    top = bits > top ? bits : top;
  }
  float r;
  memcpy(&r, &top, sizeof r);
  return r;
}

// Codes of a row, and its scale. The scale's rounding keeps codes below 127.5.
static inline uint16_t encode_bytes(const float* x, int dim, uint8_t* codes) {
  const float top = magnitude(x, dim);
  const uint16_t scale = to_bf16(top / 127.0f);
  if (!(top <= FLT_MAX) || from_bf16(scale) < FLT_MIN) {
    memset(codes, 0, static_cast<size_t>(dim));
    return top <= FLT_MAX ? 0 : kNaN;
  }
  const float inverse = 1.0f / from_bf16(scale), magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  for (int d = 0; d < dim; ++d) {
    const float shifted = x[d] * inverse + magic;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    codes[d] = static_cast<uint8_t>(bits);
  }
  return scale;
}

// Levels of 4 bits in bfloat16, and the numbers between two of them.
alignas(64) constexpr uint16_t kLevels[16] = {0xc02f, 0xc004, 0xbfcf, 0xbfa1, 0xbf71, 0xbf28, 0xbec7, 0xbe03,
                                            0x3e03, 0x3ec7, 0x3f28, 0x3f71, 0x3fa1, 0x3fcf, 0x4004, 0x402f};
constexpr float kBounds[15] = {-2.3984375f, -1.83984375f, -1.4375f, -1.099609375f, -0.798828125f,
                               -0.5224609375f, -0.25830078125f, 0.0f, 0.25830078125f, 0.5224609375f,
                               0.798828125f, 1.099609375f, 1.4375f, 1.83984375f, 2.3984375f};

static inline uint16_t encode_halves(const float* x, int dim, uint8_t* codes) {
  double squares = 0, products = 0;
  for (int d = 0; d < dim; ++d) squares += static_cast<double>(x[d]) * x[d];
  const float size = static_cast<float>(sqrt(squares / dim));
  memset(codes, 0, static_cast<size_t>(dim));
  if (!(size <= FLT_MAX)) return kNaN;
  if (size < FLT_MIN) return 0;
  const float inverse = 1.0f / size;
  for (const float bound : kBounds) {
    for (int d = 0; d < dim; ++d) codes[d] = static_cast<uint8_t>(codes[d] + (x[d] * inverse > bound));
  }
  for (int d = 0; d < dim; ++d) products += static_cast<double>(from_bf16(kLevels[codes[d]])) * x[d];
  return to_bf16(static_cast<float>(squares / products));
}

// A key or a value into the page of its KV head.
static inline void write_codes(const KvLayer& kv, Part part, int64_t slot, int32_t head, const float* x) {
  const int32_t dim = kv.head_dim;
  const int64_t token = slot % kPageTokens;
  uint8_t* page = (part == Part::keys ? kv.k : kv.v) +
                  (slot / kPageTokens * kv.kv_heads + head) * page_bytes(kv.type, part, dim);
  float mixed[kMaxHeadDim];
  memcpy(mixed, x, static_cast<size_t>(dim) * sizeof(float));
  if (part == Part::keys && kv.balance != nullptr) {
    const float* factors = kv.balance + static_cast<int64_t>(head) * dim;
    for (int32_t d = 0; d < dim; ++d) mixed[d] *= factors[d];
  }
  mix_dimensions(mixed, dim);
  uint8_t codes[kMaxHeadDim];
  const bool whole = number_bits(kv.type, part) == 8;
  const uint16_t scale = whole ? encode_bytes(mixed, dim, codes) : encode_halves(mixed, dim, codes);
  const int32_t bytes = whole ? dim : dim / 2;
  for (int32_t d = 0; d < bytes && !whole; ++d) codes[d] = static_cast<uint8_t>(codes[d] | codes[d + bytes] << 4);
  for (int32_t d = 0; d < bytes; ++d) {
    const int64_t place = part == Part::keys ? key_place(KvType::bf16, bytes, token, d) : value_place(KvType::bf16, bytes, token, d);
    page[place] = codes[d];
  }
  memcpy(page + number_bytes(kv.type, part, dim) + token * 2, &scale, sizeof scale);
}

// bfloat16 numbers of bytes that are whole numbers.
static inline void unpack_bytes(const uint8_t* from, int count, uint16_t* to) {
#if defined(HEADRACE_ISA_avx512)
  const auto sixteen = [&](int i) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  };
  for (int i = 0; i < count; i += 32) {
    const __m512bh both = _mm512_cvtne2ps_pbh(sixteen(i + 16), sixteen(i));
    memcpy(to + i, &both, sizeof both);
  }
#else
  typedef int8_t Codes __attribute__((vector_size(kWidth)));
  for (int i = 0; i < count; i += kWidth) {
    Codes codes;
    memcpy(&codes, from + i, sizeof codes);
    const F x = __builtin_convertvector(__builtin_convertvector(codes, I), F);
    const H half = __builtin_convertvector((Bits)x >> 16, H);
    memcpy(to + i, &half, sizeof half);
  }
#endif
}

// bfloat16 numbers of the lower and of the upper halves of bytes.
static inline void unpack_halves(const uint8_t* from, int count, uint16_t* low, uint16_t* high) {
  int i = 0;
#if defined(HEADRACE_ISA_avx512)
  const __m512i levels = _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(kLevels)));
  for (; i + 32 <= count; i += 32) {
    const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
    _mm512_storeu_si512(low + i, _mm512_permutexvar_epi16(bytes, levels));  // the levels are there twice: 5 bits count
    _mm512_storeu_si512(high + i, _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), levels));
  }
#elif defined(HEADRACE_ISA_avx2)
  const __m256i levels = _mm256_load_si256(reinterpret_cast<const __m256i*>(kLevels));
  const __m128i first = _mm256_castsi256_si128(levels), second = _mm256_extracti128_si256(levels, 1);
  const __m128i lower_bytes = _mm_set1_epi16(0xff), four_bits = _mm_set1_epi8(15);
  const __m128i lower = _mm_packus_epi16(_mm_and_si128(first, lower_bytes), _mm_and_si128(second, lower_bytes));
  const __m128i upper = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
  const auto put = [&](uint16_t* to, __m128i codes) {
    const __m128i a = _mm_shuffle_epi8(lower, codes), b = _mm_shuffle_epi8(upper, codes);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi8(a, b));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm_unpackhi_epi8(a, b));
  };
  for (; i + 16 <= count; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    put(low + i, _mm_and_si128(bytes, four_bits));
    put(high + i, _mm_and_si128(_mm_srli_epi16(bytes, 4), four_bits));
  }
#elif defined(HEADRACE_ISA_neon)
  const uint8x16x2_t levels = vld2q_u8(reinterpret_cast<const uint8_t*>(kLevels));  // lower bytes, upper bytes
  const auto put = [&](uint16_t* to, uint8x16_t codes) {
    const uint8x16x2_t both = {{vqtbl1q_u8(levels.val[0], codes), vqtbl1q_u8(levels.val[1], codes)}};
    vst2q_u8(reinterpret_cast<uint8_t*>(to), both);
  };
  for (; i + 16 <= count; i += 16) {
    const uint8x16_t bytes = vld1q_u8(from + i);
    put(low + i, vandq_u8(bytes, vdupq_n_u8(15)));
    put(high + i, vshrq_n_u8(bytes, 4));
  }
#endif
  for (; i < count; ++i) {
    low[i] = kLevels[from[i] & 15];
    high[i] = kLevels[from[i] >> 4];
  }
}

// A page of codes in bf16's order.
static inline void unpack_page(const KvLayer& kv, Part part, const uint8_t* page, uint16_t* to) {
  const int numbers = kPageTokens * kv.head_dim;
  if (number_bits(kv.type, part) == 8) return unpack_bytes(page, numbers, to);
  if (part == Part::keys) return unpack_halves(page, numbers / 2, to, to + numbers / 2);
  for (int pair = 0; pair < kPageTokens / 2; ++pair, page += kv.head_dim, to += 2 * kv.head_dim) {
    unpack_halves(page, kv.head_dim, to, to + kv.head_dim);
  }
}

// The scales of a page.
static inline void unpack_scales(const KvLayer& kv, Part part, const uint8_t* page, float* to) {
  uint16_t scales[kPageTokens];
  memcpy(scales, page + number_bytes(kv.type, part, kv.head_dim), sizeof scales);
  for (int token = 0; token < kPageTokens; token += kWidth) store(to + token, load_bf16(scales + token));
}

}  // namespace headrace::HEADRACE_NAMESPACE
