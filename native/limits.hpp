// What this machine can do at best, measured: the yardstick for every speed that is reported.
#pragma once
#include <cstddef>

#include "pool.hpp"

namespace headrace {

// Bytes per second that all threads of the pool read together from `bytes` of memory, each streaming
// its own part: the median of `repeats` passes. std::invalid_argument unless both are positive.
double read_bandwidth(Pool& pool, size_t bytes, int repeats);

}  // namespace headrace
