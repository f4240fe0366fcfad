// Picks the kernels of adapters of an ISA.
#include "lora.hpp"
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(LoraKernels, lora)
