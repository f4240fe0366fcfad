// Loops of multiplications that stay in registers: what the arithmetic units can do at most.
#pragma once
#include <cstdint>

#include "../platform/isa.hpp"

namespace headrace {

// Each runs `rounds` rounds and returns something that depends on all of them. The counts are
// operations (a multiplication and an addition are two) of one round.
struct PeaksKernels {
  float (*f32)(int64_t rounds);
  float (*bf16)(int64_t rounds);  // pairs of bfloat16 into float32 sums; products of float32 where there is no such instruction
  float (*int8)(int64_t rounds);  // unsigned times signed bytes into int32 sums, or 16-bit ones where that is faster
  float (*matrix_bf16)(int64_t rounds);  // the same two on matrix units; null where there are none
  float (*matrix_int8)(int64_t rounds);
  int64_t f32_operations;
  int64_t bf16_operations;
  int64_t int8_operations;
  int64_t matrix_bf16_operations;
  int64_t matrix_int8_operations;
};

const PeaksKernels& peaks_kernels(Isa isa);

}  // namespace headrace
