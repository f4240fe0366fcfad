// Picks the recurrence kernels of an ISA.
#include "recurrence.hpp"
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(RecurrenceKernels, recurrence)
