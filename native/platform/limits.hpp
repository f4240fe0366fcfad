// What this machine can do at best, measured: the yardstick for every speed that is reported.
#pragma once
#include <cstddef>
#include <cstdint>

#include "pool.hpp"

namespace headrace {

// Bytes per second that all threads of the pool read together from `bytes` of memory, each streaming
// its own part: the median of `repeats` passes, fetching as far ahead as is best. std::invalid_argument unless both are positive.
double read_bandwidth(Pool& pool, size_t bytes, int repeats);

// Operations per second (a multiplication and an addition are two) that all threads of the pool do
// together in float32, in bfloat16 or in int8, as fast as the active ISA can, the latter two also on its matrix units (0: it
// has none): the best of `repeats`.
struct Peaks {
  double f32 = 0, bf16 = 0, int8 = 0, matrix_bf16 = 0, matrix_int8 = 0;
};
Peaks compute_peaks(Pool& pool, int64_t rounds, int repeats);

}  // namespace headrace
