// Low-rank adapters (LoRA) beside a product: y += B (scale (A x)), for each row with the matrices of its own adapter.
//
// The first product (shrink) runs with the preparation of rows, for all weights that share an input in one pass; the
// second (add_adapters in linear_epilogue.hpp) with what follows each panel's sums.
//
// Layouts, numbers of `type`, f32 or bf16 (with bf16, rows of x and A x are rounded to bf16 and sums are float32):
//   A in blocks of kLoraBlock rows or what is left of them, each [lora_inputs(k) / 32][rows][32]; B f32 [panels][rank][32], bf16 [panels][rank / 2][32][2].
// The rank is even, inputs are padded with zeros.
//
// Determinism: a number of A x is one chain of sums over its inputs, in lanes that are folded in one order, and a number
// of the second product one chain over the rank, whichever rows come together.
#pragma once
#include "../platform/isa.hpp"
#include "arguments.hpp"

namespace headrace {

inline constexpr int kLoraBlock = 8;
inline constexpr int kLoraStep = 32;  // inputs
constexpr int64_t lora_inputs(int64_t k) { return (k + kLoraStep - 1) / kLoraStep * kLoraStep; }
constexpr int64_t lora_a_bytes(bool f32, int64_t rank, int64_t k) { return rank * lora_inputs(k) * (f32 ? 4 : 2); }
constexpr int64_t lora_b_bytes(bool f32, int64_t rank, int64_t n) {
  return (n + kPanel - 1) / kPanel * kPanel * rank * (f32 ? 4 : 2);
}

// Of the rows whose adapters change the weights of one product.
struct LoraShrinkArgs {
  const float* x = nullptr;           // [rows, k]
  int64_t k = 0;
  const float* norm_weight = nullptr;  // [k] or null, as of the product
  float norm_eps = 0;
  const int32_t* order = nullptr;  // [count] rows that have an adapter, those of one adapter together
  int64_t count = 0;
  int32_t weights = 0;             // of the product
  LoraRows rows;
  uint32_t* hidden = nullptr;      // rows.hidden, to be written
  uint8_t* scratch = nullptr;      // lora_scratch_bytes(k) for each part, 64-byte aligned
};

inline constexpr int kMostLoraRows = 4;  // of one adapter that are multiplied together
constexpr int64_t lora_scratch_bytes(int64_t k) { return kMostLoraRows * lora_inputs(k) * 6; }

struct LoraKernels {
  void (*shrink)(const LoraShrinkArgs& args, int part, int parts);  // split over rows
};

const LoraKernels& lora_kernels(Isa isa);

}  // namespace headrace
