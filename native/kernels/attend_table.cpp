// Picks the attention kernels of an ISA.
#include "attend.hpp"
#define HEADRACE_TABLE_AMX
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(AttendKernels, attend)
