// Where a number of a key or a value lies in the page of its KV head.
//
// f32: keys are transposed, [head_dim][kPageTokens], so that one vector holds one dimension of several keys;
// values are [kPageTokens][head_dim].
// bf16: numbers that are multiplied and added together lie side by side, as vdpbf16ps needs them: pairs of a
// key's dimensions, [head_dim / 2][kPageTokens][2] (the last of an odd head_dim alone, [kPageTokens]), and
// pairs of values, [kPageTokens / 2][head_dim][2].
#pragma once
#include "../types.hpp"

namespace headrace {

inline int64_t key_place(KvType type, int32_t head_dim, int64_t token, int32_t d) {
  const bool alone = type == KvType::f32 || (d == head_dim - 1 && d % 2 == 0);
  return alone ? d * int64_t{kPageTokens} + token : (d / 2 * int64_t{kPageTokens} + token) * 2 + d % 2;
}

inline int64_t value_place(KvType type, int32_t head_dim, int64_t token, int32_t d) {
  return type == KvType::f32 ? token * head_dim + d : (token / 2 * head_dim + d) * 2 + token % 2;
}

}  // namespace headrace
