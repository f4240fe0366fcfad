// Layers whose memory of a sequence has a fixed size: causal convolution and selective scan.
#pragma once
#include "../platform/isa.hpp"
#include "arguments.hpp"

namespace headrace {

struct RecurrenceKernels {
  void (*causal_conv)(const CausalConvArgs& args, int part, int parts);        // split over (sequence, channels)
  void (*selective_scan)(const SelectiveScanArgs& args, int part, int parts);  // split over (sequence, head, entries)
};

const RecurrenceKernels& recurrence_kernels(Isa isa);

}  // namespace headrace
