// Picks the kernels of mixtures of experts of an ISA.
#include "moe.hpp"
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(MoeKernels, moe)
