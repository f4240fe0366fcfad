// Where a number of a key or a value lies in the page of its KV head.
//
// f32: keys are transposed, [head_dim][kPageTokens], so that one vector holds one dimension of several keys;
// values are [kPageTokens][head_dim].
// bf16: numbers that are multiplied and added together lie side by side, as vdpbf16ps needs them: pairs of a
// key's dimensions, [head_dim / 2][kPageTokens][2] (the last of an odd head_dim alone, [kPageTokens]), and
// pairs of values, [kPageTokens / 2][head_dim][2].
// Coded (8, 4 or 3 bits): a row is rotated by the Hadamard matrix and is its codes times one scale. 8 bits: bytes in
// bf16's order. 4 bits: a byte has dimension d below head_dim / 2 and, above it, d + head_dim / 2; bytes in bf16's
// order of half as many dimensions. 3 bits: first the lower two of each, four dimensions in a byte (d, d + head_dim / 4, ..
// from the lowest bits on), in bf16's order of a quarter of the dimensions; then the highest, eight dimensions in a byte, in
// that of an eighth. Then the rows' scales, kPageTokens numbers of bf16. No two rows share a byte: threads write rows.
// head_dim is a multiple of 4, of 16 where codes have 3 bits.
#pragma once
#include "../types.hpp"

namespace headrace {

enum class Part { keys, values };

inline constexpr bool is_coded(KvType type) { return type != KvType::f32 && type != KvType::bf16; }

// Bits of a number, or of its code.
inline constexpr int number_bits(KvType type, Part part) {
  switch (type) {
    case KvType::f32: return 32;
    case KvType::bf16: return 16;
    case KvType::int8: return 8;
    case KvType::k8v4: return part == Part::keys ? 8 : 4;
    case KvType::int4: return 4;
    case KvType::int3: return 3;
    case KvType::k4v3: return part == Part::keys ? 4 : 3;
    case KvType::k3v4: return part == Part::keys ? 3 : 4;
  }
  return 0;
}

// What the head_dim of codes is a multiple of.
inline constexpr int32_t dims_multiple(KvType type) {
  return number_bits(type, Part::keys) == 3 || number_bits(type, Part::values) == 3 ? 16 : 4;
}

// Bytes of a page's numbers, behind which its scales are.
inline constexpr int64_t number_bytes(KvType type, Part part, int32_t head_dim) {
  return int64_t{kPageTokens} * head_dim * number_bits(type, part) / 8;
}
inline constexpr int64_t page_bytes(KvType type, Part part, int32_t head_dim) {
  return number_bytes(type, part, head_dim) + (is_coded(type) ? kPageTokens * int64_t{2} : 0);
}

inline int64_t key_place(KvType type, int32_t head_dim, int64_t token, int32_t d) {
  const bool alone = type == KvType::f32 || (d == head_dim - 1 && d % 2 == 0);
  return alone ? d * int64_t{kPageTokens} + token : (d / 2 * int64_t{kPageTokens} + token) * 2 + d % 2;
}

inline int64_t value_place(KvType type, int32_t head_dim, int64_t token, int32_t d) {
  return type == KvType::f32 ? token * head_dim + d : (token / 2 * head_dim + d) * 2 + token % 2;
}

}  // namespace headrace
