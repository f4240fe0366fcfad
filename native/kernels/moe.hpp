// What a mixture of experts does outside its products: routing, gpt-oss's activation, the sum of the experts.
#pragma once
#include "../platform/isa.hpp"
#include "arguments.hpp"

namespace headrace {

inline constexpr int kMaxExperts = 4096;

// See src/headrace/ops/route.py.
struct RouteArgs {
  const float* logits = nullptr;  // [rows, experts]
  const float* bias = nullptr;    // [experts] or null
  float* gates = nullptr;         // [rows, experts], not over the logits
  int64_t rows = 0;
  int32_t experts = 0;  // at most kMaxExperts
  int32_t top_k = 0;
  int32_t groups = 1;
  int32_t top_groups = 1;
  bool sigmoid = false;
  bool normalize = false;
  float scale = 1;
};

struct MoeKernels {
  void (*route)(const RouteArgs& args, int part, int parts);  // split over rows
  // y = (clip(up, -7, 7) + 1) * g * sigmoid(1.702 g) with g = min(gate, 7); y may be gate.
  void (*swiglu_clamped)(const float* gate, const float* up, int64_t count, float* y);
  void (*add_scaled)(const float* x, float by, int64_t count, float* y);  // y += x * by
};

const MoeKernels& moe_kernels(Isa isa);

}  // namespace headrace
