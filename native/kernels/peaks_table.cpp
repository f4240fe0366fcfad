// Looks up the peak loops of an instruction set.
#include "peaks.hpp"
#define HEADRACE_TABLE_AMX
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(PeaksKernels, peaks)
