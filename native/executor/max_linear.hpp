// A product of which only the largest outputs over each sequence's rows are kept (the head of SPLADE): the product
// itself, rows times the vocabulary, is in memory a block at a time.
#pragma once
#include "../kernels/linear.hpp"

namespace headrace {

// y[r] = the maximum of x w^T + bias over the rows of the step's output row r's sequence, up to that row. NaN stays.
struct MaxLinearArgs {
  const float* x = nullptr;  // [T, w.k]
  Weight w;
  const float* bias = nullptr;  // [w.n] or null
  float* y = nullptr;           // [R, w.n]
  const Step* step = nullptr;
  uint8_t* scratch = nullptr;  // max_linear_scratch_bytes for each part, 64-byte aligned
};

size_t max_linear_scratch_bytes(const LinearKernels& kernels, const Weight& w, int64_t rows);

// Split over panels of outputs. The bits are those of a product of all rows, and of a maximum in their order.
void max_linear(const LinearKernels& kernels, const MaxLinearArgs& args, int64_t rows, int part, int parts);

}  // namespace headrace
