// Keys and values of 8, 4 and 3 bits: from a row's numbers to its codes and scale, and from a page's codes to numbers that
// attention over bf16 reads.
//
// Rows are rotated first: blocks of numbers times the orthonormal Hadamard matrix, so that no dimension dominates (QuaRot,
// Ashkboos et al. 2024). Queries are rotated alike, which leaves scores as they are, and what is summed of values
// is rotated back. 8 bits: whole numbers up to 127. 4 and 3 bits: the best 16 and 8 levels for a normal distribution (Max
// 1960), under the scale with which the product of the row and what it became is the row's square (EDEN; Vargaftik et al.
// 2022). What a row becomes depends on it alone. bfloat16 holds all levels exactly; scales come in with the scores and the weights.
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

// Levels of 4 and of 3 bits in bfloat16, and the numbers between two of them.
alignas(64) constexpr uint16_t kLevels[16] = {0xc02f, 0xc004, 0xbfcf, 0xbfa1, 0xbf71, 0xbf28, 0xbec7, 0xbe03,
                                            0x3e03, 0x3ec7, 0x3f28, 0x3f71, 0x3fa1, 0x3fcf, 0x4004, 0x402f};
constexpr float kBounds[15] = {-2.3984375f, -1.83984375f, -1.4375f, -1.099609375f, -0.798828125f,
                               -0.5224609375f, -0.25830078125f, 0.0f, 0.25830078125f, 0.5224609375f,
                               0.798828125f, 1.099609375f, 1.4375f, 1.83984375f, 2.3984375f};
alignas(64) constexpr uint16_t kFewLevels[16] = {0xc00a, 0xbfac, 0xbf42, 0xbe7b, 0x3e7b, 0x3f42, 0x3fac, 0x400a};
constexpr float kFewBounds[7] = {-1.75f, -1.05078125f, -0.50146484375f, 0.0f, 0.50146484375f, 1.05078125f, 1.75f};

template <int Bounds>
static inline uint16_t encode_levels(const float* x, int dim, const uint16_t* levels, const float (&bounds)[Bounds],
                                     uint8_t* codes) {
  double squares = 0, products = 0;
  for (int d = 0; d < dim; ++d) squares += static_cast<double>(x[d]) * x[d];
  const float size = static_cast<float>(sqrt(squares / dim));
  memset(codes, 0, static_cast<size_t>(dim));
  if (!(size <= FLT_MAX)) return kNaN;
  if (size < FLT_MIN) return 0;
  const float inverse = 1.0f / size;
  for (const float bound : bounds) {
    for (int d = 0; d < dim; ++d) codes[d] = static_cast<uint8_t>(codes[d] + (x[d] * inverse > bound));
  }
  for (int d = 0; d < dim; ++d) products += static_cast<double>(from_bf16(levels[codes[d]])) * x[d];
  return to_bf16(static_cast<float>(squares / products));
}

// Bits [From, From + Width) of a row's codes, 8 / Width of them in a byte, into their places; returns what is behind all rows'.
template <int From, int Width>
static inline uint8_t* write_plane(Part part, int dim, int64_t token, const uint8_t* codes, uint8_t* plane) {
  const int bytes = dim * Width / 8;
  uint8_t row[kMaxHeadDim];
  for (int b = 0; b < bytes; ++b) {
    unsigned byte = 0;
#pragma GCC unroll 8
    for (int i = 0; i < 8 / Width; ++i) byte |= (codes[b + i * bytes] >> From & ((1u << Width) - 1)) << (i * Width);
    row[b] = static_cast<uint8_t>(byte);
  }
  for (int b = 0; b < bytes; ++b) {
    plane[part == Part::keys ? key_place(KvType::bf16, bytes, token, b) : value_place(KvType::bf16, bytes, token, b)] = row[b];
  }
  return plane + int64_t{kPageTokens} * bytes;
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
  const int bits = number_bits(kv.type, part);
  const uint16_t scale = bits == 8   ? encode_bytes(mixed, dim, codes)
                         : bits == 4 ? encode_levels(mixed, dim, kLevels, kBounds, codes)
                                     : encode_levels(mixed, dim, kFewLevels, kFewBounds, codes);
  uint8_t* scales = bits == 8   ? write_plane<0, 8>(part, dim, token, codes, page)
                    : bits == 4 ? write_plane<0, 4>(part, dim, token, codes, page)
                                : write_plane<2, 1>(part, dim, token, codes, write_plane<0, 2>(part, dim, token, codes, page));
  memcpy(scales + token * 2, &scale, sizeof scale);
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

// From planes of 2 count and of count bytes, codes of 3 bits in bytes of two as codes of 4 bits have them: bytes 0, count,
// 2 count and 3 count, or as many from each on as a number of type Bytes has. No bit leaves its byte.
template <typename Bytes>
static inline void join_bytes(const uint8_t* twos, const uint8_t* ones, int count, uint8_t* to) {
  constexpr uint64_t kEach = 0x0101010101010101u;
  constexpr auto kTwos = static_cast<uint32_t>(kEach * 0x33), kOne = static_cast<uint32_t>(kEach * 0x44);
  Bytes low, high, one;
  memcpy(&low, twos, sizeof low);
  memcpy(&high, twos + count, sizeof high);
  memcpy(&one, ones, sizeof one);
  const Bytes joined[4] = {(low & kTwos) | ((one << 2) & kOne), (high & kTwos) | ((one << 1) & kOne),
                           ((low >> 2) & kTwos) | (one & kOne), ((high >> 2) & kTwos) | ((one >> 1) & kOne)};
  for (int i = 0; i < 4; ++i) memcpy(to + i * count, &joined[i], sizeof low);
}

// The same for all i below count, a multiple of 4.
static inline void join_planes(const uint8_t* twos, const uint8_t* ones, int count, uint8_t* to) {
  typedef uint32_t Many __attribute__((vector_size(kWidth * 4)));
  typedef uint32_t Some __attribute__((vector_size(16)));
  int i = 0;
  for (constexpr int kStep = sizeof(Many); i + kStep <= count; i += kStep) join_bytes<Many>(twos + i, ones + i, count, to + i);
  for (; i + 16 <= count; i += 16) join_bytes<Some>(twos + i, ones + i, count, to + i);
  for (; i < count; i += 4) join_bytes<uint32_t>(twos + i, ones + i, count, to + i);
}

// The levels of the lower and of the upper halves of bytes.
static inline void unpack_halves(const uint16_t* table, const uint8_t* from, int count, uint16_t* low, uint16_t* high) {
  int i = 0;
#if defined(HEADRACE_ISA_avx512)
  const __m512i levels = _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(table)));
  for (; i + 32 <= count; i += 32) {
    const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
    _mm512_storeu_si512(low + i, _mm512_permutexvar_epi16(bytes, levels));  // the levels are there twice: 5 bits count
    _mm512_storeu_si512(high + i, _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), levels));
  }
#elif defined(HEADRACE_ISA_avx2)
  const __m256i levels = _mm256_load_si256(reinterpret_cast<const __m256i*>(table));
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
  const uint8x16x2_t levels = vld2q_u8(reinterpret_cast<const uint8_t*>(table));  // lower bytes, upper bytes
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
    low[i] = table[from[i] & 15];
    high[i] = table[from[i] >> 4];
  }
}

// A page of codes in bf16's order.
static inline void unpack_page(const KvLayer& kv, Part part, const uint8_t* page, uint16_t* to) {
  const int numbers = kPageTokens * kv.head_dim, bits = number_bits(kv.type, part);
  if (bits == 8) return unpack_bytes(page, numbers, to);
  const uint16_t* table = bits == 4 ? kLevels : kFewLevels;
  // Keys' bytes run through the page; values' through two tokens, side by side.
  const int runs = part == Part::keys ? 1 : kPageTokens / 2, halves = numbers / 2 / runs;
  const uint8_t* ones = page + numbers / 4;
  for (int run = 0; run < runs; ++run, to += 2 * halves) {
    uint8_t joined[kPageTokens / 2 * kMaxHeadDim];
    if (bits == 3) join_planes(page + run * halves / 2, ones + run * halves / 4, halves / 4, joined);
    unpack_halves(table, bits == 3 ? joined : page + run * halves, halves, to, to + halves);
  }
}

// The scales of a page.
static inline void unpack_scales(const KvLayer& kv, Part part, const uint8_t* page, float* to) {
  uint16_t scales[kPageTokens];
  memcpy(scales, page + number_bytes(kv.type, part, kv.head_dim), sizeof scales);
  for (int token = 0; token < kPageTokens; token += kWidth) store(to + token, load_bf16(scales + token));
}

}  // namespace headrace::HEADRACE_NAMESPACE
