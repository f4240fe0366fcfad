// Looks up the sampling kernels of an instruction set.
#include "sample.hpp"
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(SampleKernels, sample)
