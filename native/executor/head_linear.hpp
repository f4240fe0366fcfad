// A product of each head with a weight of its own (the absorbed matrices of multi-head latent attention).
#pragma once
#include "../kernels/linear.hpp"

namespace headrace {

// Head h of y is head h of x times the outputs [h n / heads, (h + 1) n / heads) of w.
struct HeadLinearArgs {
  const float* x = nullptr;  // [rows, heads * w.k]
  int64_t rows = 0;
  Weight w;
  int32_t heads = 0;
  float* y = nullptr;          // [rows, w.n]
  uint8_t* scratch = nullptr;  // head_linear_scratch_bytes for each part, 64-byte aligned
};

size_t head_linear_scratch_bytes(const LinearKernels& kernels, const Weight& w, int heads, int64_t rows);

// Split over heads, and where there are more parts than heads, over panels of outputs.
void head_linear(const LinearKernels& kernels, const HeadLinearArgs& args, int part, int parts);

}  // namespace headrace
