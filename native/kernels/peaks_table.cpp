// Looks up the peak loops of an instruction set.
#include "peaks.hpp"
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(PeaksKernels, peaks)
