// Picks the attention kernels of an ISA.
#include "attention.hpp"
#define HEADRACE_TABLE_AMX
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(AttentionKernels, attention)
