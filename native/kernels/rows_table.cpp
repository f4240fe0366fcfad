// Picks the row kernels of an ISA.
#include "rows.hpp"
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(RowsKernels, rows)
