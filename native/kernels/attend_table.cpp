// Picks the attention kernels of an ISA.
#include "attend.hpp"
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(AttendKernels, attend)
