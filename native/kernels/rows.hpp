// What is done to rows outside the products: norms, activations, rotary embedding, KV writes.
#pragma once
#include "../platform/isa.hpp"
#include "arguments.hpp"

namespace headrace {

struct RowsKernels {
#define HEADRACE_ROW_OP(name, ...) void (*name)(const RowOpArgs& op, int part, int parts);
#include "../ops.inl"
  void (*rope_table)(const RopeTableArgs& args, int part, int parts);        // split over tokens
  void (*rope_kv_write)(const RopeKvWriteArgs& args, int part, int parts);  // split over (token, head)
  // Reads every byte in wide loads and returns something that depends on all of them.
  uint64_t (*read)(const uint8_t* data, size_t bytes, size_t ahead);
};

const RowsKernels& rows_kernels(Isa isa);

}  // namespace headrace
