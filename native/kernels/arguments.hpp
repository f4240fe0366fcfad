// What the executor hands to kernels, one struct per kind of work.
//
// Every kernel is called by all threads of the pool with (part, parts) and does its slice. Slices
// split outputs, never a reduction, so results do not depend on the thread count.
#pragma once
#include "../ops.hpp"
#include "../types.hpp"

namespace headrace {

inline constexpr int kMaxLinears = 4;  // weights that share one input (Q, K, V; gate, up)

inline constexpr int kMaxLoraRank = 512;

// What one adapter adds to a product with one weight; rank 0: nothing. Layouts: lora.hpp.
struct LoraPair {
  int32_t rank = 0;
  Format type = Format::bf16;  // or f32
  int32_t at = 0;              // its first word in a row of LoraRows::hidden
  float scale = 1;
  const uint8_t* a = nullptr;
  const uint8_t* b = nullptr;
};

// The rows of a product and their adapters.
struct LoraRows {
  const int32_t* adapters = nullptr;  // [rows] slot of the row's adapter, or -1
  const LoraPair* pairs = nullptr;    // [slots][kMaxLinears], of the product's weights
  const uint32_t* hidden = nullptr;   // [rows][stride] words: A x, as float32 or as pairs of bf16
  int64_t stride = 0;
};

// y_i = epilogue(linear(norm(x), w_i) + bias_i). Phase 0 prepares rows of x (norm, then whatever the
// formats need: rounding, rotation, int8), split over rows; phase 1 multiplies, split over panels.
// With act != none there are two weights (gate, up) and one output: act(gate) * up.
struct FusedLinearArgs {
  const float* x = nullptr;     // [T, k]
  const int32_t* row_ids = nullptr;  // [rows] rows of x that are meant, or null: the first ones
  int64_t rows = 0;
  int64_t k = 0;
  const float* norm_weight = nullptr;  // [k] or null: RMS norm before the product
  float norm_eps = 0;
  int32_t count = 0;                        // weights
  Weight w[kMaxLinears];
  const float* bias[kMaxLinears] = {};      // [n_i] or null
  float* y[kMaxLinears] = {};               // [T, n_i], leading dimension n_i
  Act act = Act::none;
  const float* residual = nullptr;  // [T, n_0] added to y[0], or null; may alias y[0]
  const LoraRows* lora = nullptr;   // what adapters add before the activation, or null
  uint8_t* scratch = nullptr;       // linear_scratch_bytes(...), 64-byte aligned, shared by all threads
};

inline FormatSet formats_of(const FusedLinearArgs& args) {
  FormatSet formats = 0;
  for (int32_t i = 0; i < args.count; ++i) formats |= set_of(args.w[i].format);
  return formats;
}

inline constexpr int kMaxTaps = 64;  // of a convolution over time

// y = act(depthwise convolution of x over time), each sequence for itself. The rows before a sequence's
// first are in its state slot, or zeros where all its keys are new (`lengths` equals its rows).
struct CausalConvArgs {
  const float* x = nullptr;  // [T, channels]
  float* y = nullptr;        // [T, channels], not x
  int64_t channels = 0;
  int32_t taps = 0;
  const float* w = nullptr;     // [taps, channels], the newest row's last
  const float* bias = nullptr;  // [channels] or null
  Act act = Act::none;
  float* state = nullptr;  // [slots, taps - 1, channels]
  const Step* step = nullptr;
};

// h = exp(dt A) h + dt x B, y = h C + D x with A = -exp(a_log), dt = softplus(dt + dt_bias) within limits.
struct SelectiveScanArgs {
  const float* x = nullptr;   // [T, heads, head_dim]
  const float* bc = nullptr;  // [T, 2, groups, entries]: B, then C
  const float* dt = nullptr;  // [T, heads]
  float* y = nullptr;         // [T, heads, head_dim], not x
  int64_t heads = 0, head_dim = 0, groups = 0, entries = 0;
  const float* a_log = nullptr;  // [heads], as the next two
  const float* d = nullptr;
  const float* dt_bias = nullptr;
  float smallest_dt = 0, largest_dt = 0;
  float* state = nullptr;  // [slots, heads, entries, head_dim]
  const Step* step = nullptr;
};

// What an op on rows (HEADRACE_ROW_OP in ops.inl) works on.
struct RowOpArgs {
  const float* x[2] = {};          // inputs
  float* y = nullptr;              // [rows, columns]; may be an input where ops.inl says so
  int64_t rows = 0, columns = 0;
  const float* constants[2] = {};  // null where absent
  int64_t constant_size = 0;       // of the first
  const int* ints = nullptr;
  const float* floats = nullptr;
  const Step* step = nullptr;

  int64_t count() const { return rows * columns; }
};

struct AttendArgs {
  const float* q = nullptr;      // [T, heads * head_dim]
  float* y = nullptr;            // [T, heads * value_dim]
  const float* sinks = nullptr;  // [heads] or null: one more score of each head, without a value
  int32_t heads = 0;
  int32_t value_dim = 0;  // kv.head_dim; at most that where kv has no v
  float scale = 0;
  int32_t window = 0;   // 0: none; otherwise a query at position p sees no key before p-window+1
  int32_t ahead = 0;    // it sees keys up to p+ahead, as far as the sequence has them
  float softcap = 0;    // 0: none
  // Relative attention: what each query, each key and each head add to a score, by the bucket of query position -
  // key position. Null where there is none; bias_k needs all keys of a sequence in the step.
  const float* bias_q = nullptr;       // [T, heads * buckets]
  const float* bias_k = nullptr;       // [T, heads * buckets]
  const float* bias = nullptr;         // [buckets, heads]
  const int32_t* bucket_of = nullptr;  // [2 * reach + 1] or null: of -reach .. reach; what is farther is as far
  int32_t buckets = 0, reach = 0;
  KvLayer kv;
  const Step* step = nullptr;
  uint8_t* scratch = nullptr;
};

// cos and sin of every token's angles, once per step for all layers that share inv_freq.
struct RopeTableArgs {
  const float* inv_freq = nullptr;  // [half]
  int32_t half = 0;                 // rotary_dim / 2
  float rope_scale = 1;             // multiplies cos and sin (yarn attention factor)
  float* cos = nullptr;             // [T, half]
  float* sin = nullptr;
  const Step* step = nullptr;
};

// Optional head norms of q and k, rotary embedding of both, then k and v into their slots. heads may be 0, and
// so may kv.kv_heads; v is null where kv has no v.
struct RopeKvWriteArgs {
  const float* q = nullptr;  // [T, heads * head_dim]
  const float* k = nullptr;  // [T, kv_heads * head_dim]
  const float* v = nullptr;
  float* q_out = nullptr;    // may alias q
  int32_t heads = 0;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float norm_eps = 0;
  const float* cos = nullptr;  // [T, rotary_dim / 2], of RopeTableArgs
  const float* sin = nullptr;
  int32_t rotary_dim = 0;      // <= head_dim; half-split ("neox") pairs
  KvLayer kv;
  const Step* step = nullptr;
};

}  // namespace headrace
