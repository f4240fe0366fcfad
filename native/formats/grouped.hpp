// Grouped formats: block types of checkpoints (Q4_0, Q6_K, MXFP4, ...; weights/block_types has their definitions),
// packed without loss. A panel is, per 32 inputs, one group:
//   head    the scales of its 32 outputs, and what comes with them (Scales below)
//   codes   planes of 1, 2, 4 or 8 bits, 128 bytes for each bit. A plane's lines of 64 bytes hold outputs
//           16 h .. 16 h + 15 (h = 0, 1) as [16 outputs][4 inputs], as many steps of four inputs in a byte as fit:
//           8 bits: line 2 s + h is step s. 4: line 2 i + h has step 2 i low, 2 i + 1 high. 2: line 2 j + h has step
//           4 j + f in its bits 2 f and up. 1: line h has step s in bit s.
//           Codes of five and six bits are a plane of 4 bits, then one of 1 or 2; of three: 2, then 1.
// Types whose scales are quantized themselves have before every eighth group their multipliers (half floats), so
// that a panel is still read from its first byte to its last.
//
// A weight is scale * (code - zero) - minimum, in the roundings of the type's definition.
#pragma once
#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#include <type_traits>

#include "panel.hpp"

namespace headrace {

// Packs `rows` <= 32 rows of k inputs as they lie in a checkpoint. Returns -1, or the first row with a weight that is
// NaN or infinite.
int64_t pack_grouped_panel(Format format, const uint8_t* source, int64_t rows, int64_t k, uint8_t* panel);
// Row `row` of a packed weight as float32 [k].
void unpack_grouped_row(const Weight& w, int64_t row, float* out);

namespace {

enum class Scales : int {
  half,            // head: half[32]
  half_minimum,    // head: half[32], half minimum[32]; + minimum
  exponent,        // head: uint8[32]: 2 ** (e - 128)
  single,          // head: float[32]
  single_zero,     // head: float[32], uint8 zero[32]; scale * (code - zero)
  single_halves,   // head: float[2][32], for inputs 0 to 15 and 16 to 31; as two times the scale
  fine_minimum,    // every eighth: half[2][32]; head: uint8 scale[32], minimum[32]
  fine,            // every eighth: half[32]; head: int8[32]
  fine_halves,     // every eighth: half[32]; head: int8[2][32]
  fine_min_halves  // every eighth: half[2][32]; head: uint8[2][32], scale in the low nibble, minimum in the high
};

enum class Codes : int { plain, table, e4m3 };

struct Grouped {
  int64_t block;        // inputs of a block in a checkpoint, and its bytes
  int64_t block_bytes;
  Scales scales;
  int low_bits, high_bits;  // of the planes
  Codes codes;
  int zero;  // 1 << n; 0 where the type has minima
};

constexpr int64_t kFineGroups = 8;
constexpr int8_t kSteps[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // doubled

constexpr bool is_grouped(Format format) { return format >= Format::q4_0; }

inline Grouped grouped(Format format) {
  switch (format) {
    case Format::q4_0:
      return {32, 18, Scales::half, 4, 0, Codes::plain, 8};
    case Format::q4_1:
      return {32, 20, Scales::half_minimum, 4, 0, Codes::plain, 0};
    case Format::q5_0:
      return {32, 22, Scales::half, 4, 1, Codes::plain, 16};
    case Format::q5_1:
      return {32, 24, Scales::half_minimum, 4, 1, Codes::plain, 0};
    case Format::q2_k:
      return {256, 84, Scales::fine_min_halves, 2, 0, Codes::plain, 0};
    case Format::q3_k:
      return {256, 110, Scales::fine_halves, 2, 1, Codes::plain, 4};
    case Format::q4_k:
      return {256, 144, Scales::fine_minimum, 4, 0, Codes::plain, 0};
    case Format::q5_k:
      return {256, 176, Scales::fine_minimum, 4, 1, Codes::plain, 0};
    case Format::q6_k:
      return {256, 210, Scales::fine_halves, 4, 2, Codes::plain, 32};
    case Format::iq4_nl:
      return {32, 18, Scales::half, 4, 0, Codes::table, 128};
    case Format::iq4_xs:
      return {256, 136, Scales::fine, 4, 0, Codes::table, 128};
    case Format::mxfp4:
      return {32, 17, Scales::exponent, 4, 0, Codes::table, 128};
    case Format::u4_g32:
      return {32, 21, Scales::single_zero, 4, 0, Codes::plain, 0};
    case Format::s8_g32:
      return {32, 36, Scales::single, 8, 0, Codes::plain, 128};
    case Format::e4m3_g32:
      return {32, 36, Scales::single, 8, 0, Codes::e4m3, 0};
    case Format::e2m1_g16:
      return {16, 12, Scales::single_halves, 4, 0, Codes::table, 128};
    default:
      return {32, 34, Scales::half, 8, 0, Codes::plain, 128};  // q8_0
  }
}

inline const int8_t* table_of(Format format) {
  return format == Format::mxfp4 || format == Format::e2m1_g16 ? kE2m1 : kSteps;
}
inline bool has_halves(Scales s) {
  return s == Scales::single_halves || s == Scales::fine_halves || s == Scales::fine_min_halves;
}
inline bool has_minima(Scales s) {
  return s == Scales::half_minimum || s == Scales::single_zero || s == Scales::fine_minimum ||
         s == Scales::fine_min_halves;
}
inline int64_t head_bytes(Scales s) {
  constexpr int64_t kBytes[] = {64, 128, 32, 128, 160, 256, 64, 32, 64, 64};
  return kBytes[static_cast<int>(s)];
}
inline int64_t fine_bytes(Scales s) {  // before every eighth group
  constexpr int64_t kBytes[] = {0, 0, 0, 0, 0, 0, 128, 64, 64, 128};
  return kBytes[static_cast<int>(s)];
}
inline int64_t code_bytes(const Grouped& g) { return kGroup * kPanel / 8 * (g.low_bits + g.high_bits); }
inline int64_t group_bytes(const Grouped& g) { return head_bytes(g.scales) + code_bytes(g); }
inline int64_t group_count(int64_t k) { return (k + kGroup - 1) / kGroup; }
// Where the head of group `index` starts in a panel; its multipliers are at group_start - fine_bytes of the group whose
// index is a multiple of eight.
inline int64_t group_start(const Grouped& g, int64_t index) {
  return index * group_bytes(g) + (index / kFineGroups + 1) * fine_bytes(g.scales);
}
inline int64_t grouped_panel_bytes(const Grouped& g, int64_t k) {
  const int64_t groups = group_count(k);
  return groups * group_bytes(g) + (groups + kFineGroups - 1) / kFineGroups * fine_bytes(g.scales);
}

// 2 ** (e - 128); below 2 a subnormal.
inline float power_of(uint8_t e) {
  const uint32_t wide = e;
  return float_of(wide < 2 ? 0x200000u << wide : (wide - 1) << 23);
}
inline void read_halves(const uint8_t* from, float* out) {
#if defined(__F16C__)
  for (int64_t c = 0; c < kPanel; c += 8) {
    _mm256_storeu_ps(out + c, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + c * 2))));
  }
#else
  uint16_t half[kPanel];
  std::memcpy(half, from, sizeof half);
  for (int64_t c = 0; c < kPanel; ++c) out[c] = from_f16(half[c]);
#endif
}

// What bytes, with a sign or without, make of 32 multipliers.
template <class Byte>
inline void multiply_bytes(const float* multipliers, const uint8_t* bytes, float* out) {
#if defined(__AVX2__) && !defined(__AVX512F__)  // GCC 12 widens by way of 16 bits, with twice the instructions
  for (int64_t c = 0; c < kPanel; c += 8) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + c));
    const __m256i wide = std::is_signed_v<Byte> ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight);
    _mm256_storeu_ps(out + c, _mm256_mul_ps(_mm256_loadu_ps(multipliers + c), _mm256_cvtepi32_ps(wide)));
  }
#else
  for (int64_t c = 0; c < kPanel; ++c) out[c] = multipliers[c] * static_cast<float>(static_cast<Byte>(bytes[c]));
#endif
}

// The 32 scales of a group (twice 32 where it has halves), and what is subtracted from its products. Of zeros (u4_g32)
// the minimum is rounded; everything else is as the definitions have it.
struct GroupScales {
  float scale[2][kPanel];
  float minimum[2][kPanel];
};

inline void read_scales(Scales kind, const uint8_t* fine, const uint8_t* head, GroupScales& s) {
  float multiplier[kPanel], second[kPanel];
  switch (kind) {
    case Scales::half:
      return read_halves(head, s.scale[0]);
    case Scales::half_minimum:
      read_halves(head, s.scale[0]);
      read_halves(head + 64, s.minimum[0]);
      for (int c = 0; c < kPanel; ++c) s.minimum[0][c] = -s.minimum[0][c];
      return;
    case Scales::exponent:
      for (int c = 0; c < kPanel; ++c) s.scale[0][c] = power_of(head[c]);
      return;
    case Scales::single:
      std::memcpy(s.scale[0], head, 128);
      return;
    case Scales::single_zero:
      std::memcpy(s.scale[0], head, 128);
      return multiply_bytes<uint8_t>(s.scale[0], head + 128, s.minimum[0]);
    case Scales::single_halves:
      std::memcpy(s.scale, head, 256);
      for (int c = 0; c < 2 * kPanel; ++c) s.scale[c / kPanel][c % kPanel] *= 0.5f;
      return;
    case Scales::fine_minimum:
      read_halves(fine, multiplier);
      read_halves(fine + 64, second);
      multiply_bytes<uint8_t>(multiplier, head, s.scale[0]);
      return multiply_bytes<uint8_t>(second, head + kPanel, s.minimum[0]);
    case Scales::fine:
    case Scales::fine_halves:
      read_halves(fine, multiplier);
      multiply_bytes<int8_t>(multiplier, head, s.scale[0]);
      if (kind == Scales::fine_halves) multiply_bytes<int8_t>(multiplier, head + kPanel, s.scale[1]);
      return;
    case Scales::fine_min_halves:
      read_halves(fine, multiplier);
      read_halves(fine + 64, second);
      for (int half = 0; half < 2; ++half) {
        for (int c = 0; c < kPanel; ++c) {
          const int both = head[half * kPanel + c];
          s.scale[half][c] = multiplier[c] * static_cast<float>(both & 15);
          s.minimum[half][c] = second[c] * static_cast<float>(both >> 4);
        }
      }
      return;
  }
}

// FP8 E4M3FN in the low byte: moved to a float's places the bits encode 2^-120 of the value. The NaN is read as 480;
// packing refuses it.
inline float from_e4m3(uint32_t code) {
  return float_of(((code & 0x80u) << 24) | ((code & 0x7fu) << 20)) * 0x1p120f;
}

}  // namespace
}  // namespace headrace
