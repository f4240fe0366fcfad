// The facts that the executor hands to kernels: one step's inputs, packed weights, KV memory.
// Everything here is a plain view: no struct owns memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace {

// A weight format is data, not a type: a kernel looks at Weight::format.
enum class Format : int32_t {
  f32 = 0, f16, bf16, int8, int4,
  // Grouped ones (formats/grouped.hpp): block types of checkpoints, kept without loss.
  q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4,
  u4_g32, s8_g32, e4m3_g32, e2m1_g16
};
inline constexpr int kFormatCount = 22;
using FormatSet = uint32_t;  // a bit for each
static_assert(kFormatCount <= 32);
constexpr FormatSet set_of(Format format) { return FormatSet{1} << static_cast<int32_t>(format); }
// k8v4: keys as in int8, values as in int4; k4v3 and k3v4 likewise.
enum class KvType : int32_t { f32 = 0, bf16, int8, k8v4, int4, int3, k4v3, k3v4 };

// Output columns are packed in panels of this many columns, in every format and on every ISA, so a
// packed file moves between machines.
inline constexpr int kPanel = 32;
// Tokens in a KV page (kept equal to headrace.kv.pages.PAGE_TOKENS by a test).
inline constexpr int kPageTokens = 16;

// A packed weight of shape [n, k]: n outputs, k inputs. Layout: native/formats/<format>.hpp.
struct Weight {
  Format format = Format::f32;
  int64_t n = 0;
  int64_t k = 0;
  const uint8_t* data = nullptr;  // 64-byte aligned
};

// What varies from step to step. One ragged program serves prefill, chunks of it, decode and
// verification, mixed. T tokens of B sequences; R rows need logits.
struct Step {
  int32_t T = 0, B = 0, R = 0;
  int32_t max_pages = 0;                  // columns of block_tables
  const int32_t* tokens = nullptr;        // [T]
  const int32_t* positions = nullptr;     // [T] absolute position in its sequence
  const int32_t* slots = nullptr;         // [T] page * kPageTokens + offset in page
  const int32_t* query_starts = nullptr;  // [B + 1] rows of sequence b: query_starts[b] .. query_starts[b+1]
  const int32_t* lengths = nullptr;       // [B] keys of sequence b after this step's are written
  const int32_t* block_tables = nullptr;  // [B, max_pages] page ids
  const int32_t* rows = nullptr;          // [R] indices into T
  const int32_t* state_slots = nullptr;   // [B] where the sequence's recurrent states are, no two in one
  const int32_t* token_types = nullptr;   // [T] which text of a pair
  const int32_t* adapters = nullptr;      // [B] slot of the sequence's adapter, or -1; null: none has one
};

// KV memory of one layer: k and v are [pages][kv_heads] pages of kPageTokens * head_dim numbers of `type`, as
// formats/kv_page.hpp says. Without v the values are the first entries of the keys (multi-head latent attention).
struct KvLayer {
  KvType type = KvType::f32;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  uint8_t* k = nullptr;
  uint8_t* v = nullptr;
  // [2][kv_heads, head_dim] or null: what keys are multiplied by before they become codes, and queries in
  // return. Scores stay as they are.
  const float* balance = nullptr;
};

}  // namespace headrace
