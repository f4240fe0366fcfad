// Attention over paged keys and values.
#pragma once
#include "../platform/isa.hpp"
#include "arguments.hpp"

namespace headrace {

inline constexpr int kMaxHeadDim = 1024;

struct AttentionKernels {
  // Bytes of AttendArgs::scratch (64-byte aligned) for `parts` threads and `heads` query heads over
  // `kv_heads` of `head_dim`.
  size_t (*scratch_bytes)(int parts, int32_t heads, int32_t kv_heads, int32_t head_dim);
  void (*attend)(const AttendArgs& args, int part, int parts);  // split over (sequence, query tile, KV head, its query heads)
};

const AttentionKernels& attention_kernels(Isa isa);

}  // namespace headrace
