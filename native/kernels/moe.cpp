// Routing to experts, and the little arithmetic around their products.
//
// Determinism: a row's gates depend on that row alone; sums run over the experts in ascending order. What is
// computed for a number does not depend on its place in a vector or a tail.
#include "moe.hpp"

#include "simd.hpp"

namespace headrace::HEADRACE_NAMESPACE {

// y[i] = f(x[i]); tails go through a zero-padded vector: the same arithmetic as a full one.
template <class Function>
static inline void map(const float* x, int64_t count, float* y, Function f) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, f(load(x + i)));
  const int rest = static_cast<int>(count - i);
  if (rest > 0) store_partial(y + i, f(load_partial(x + i, rest)), rest);
}

// The largest that is not marked, the first of equals; where none compares, the first.
static inline int32_t best_of(const float* values, const bool* marked, int32_t count) {
  int32_t best = -1;
  for (int32_t i = 0; i < count; ++i) {
    if (!marked[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  return best;
}

static inline void mark_best(const float* values, int32_t count, int32_t wanted, bool* marked) {
  for (int32_t i = 0; i < count; ++i) marked[i] = false;
  for (int32_t n = 0; n < wanted; ++n) marked[best_of(values, marked, count)] = true;
}

// Makes everything outside the best groups, by the sum of their two best, the last to be chosen.
static inline void keep_best_groups(const RouteArgs& args, float* choice) {
  const int32_t size = args.experts / args.groups;
  float scores[kMaxExperts];
  bool kept[kMaxExperts];
  for (int32_t g = 0; g < args.groups; ++g) {
    const float* group = choice + g * size;
    float first = group[0], second = size > 1 ? -__builtin_inff() : 0.0f;
    for (int32_t i = 1; i < size; ++i) {
      second = group[i] > first ? first : (group[i] > second ? group[i] : second);
      first = group[i] > first ? group[i] : first;
    }
    scores[g] = first + second;
  }
  mark_best(scores, args.groups, args.top_groups, kept);
  for (int32_t i = 0; i < args.experts; ++i) choice[i] = kept[i / size] ? choice[i] : -__builtin_inff();
}

static inline void route_row(const RouteArgs& args, const float* logits, float* gates) {
  const int32_t count = args.experts;
  float choice[kMaxExperts];
  bool chosen[kMaxExperts];
  if (args.sigmoid) {
    map(logits, count, gates, [](F x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); });
  } else {
    float largest = logits[0];
    for (int32_t i = 1; i < count; ++i) largest = logits[i] > largest ? logits[i] : largest;
    map(logits, count, gates, [largest](F x) { return exp(x - splat(largest)); });
  }
  const float* by = args.sigmoid ? gates : logits;
  for (int32_t i = 0; i < count; ++i) choice[i] = args.bias == nullptr ? by[i] : by[i] + args.bias[i];
  if (args.groups > 1) keep_best_groups(args, choice);
  mark_best(choice, count, args.top_k, chosen);
  float all = 0, those = 0;
  for (int32_t i = 0; i < count; ++i) all += gates[i];
  for (int32_t i = 0; i < count; ++i) those += chosen[i] ? gates[i] : 0.0f;
  const float total = args.normalize ? those + 1e-20f : (args.sigmoid ? 1.0f : all);
  for (int32_t i = 0; i < count; ++i) gates[i] = chosen[i] ? gates[i] / total * args.scale : 0.0f;
}

static void route(const RouteArgs& args, int part, int parts) {
  for (int64_t row = args.rows * part / parts; row < args.rows * (part + 1) / parts; ++row) {
    route_row(args, args.logits + row * args.experts, args.gates + row * args.experts);
  }
}

static inline F clamped(F gate, F up) {
  const F limit = splat(7.0f);
  gate = limit < gate ? limit : gate;
  up = limit < up ? limit : (up < -limit ? -limit : up);
  return (up + splat(1.0f)) * gate / (splat(1.0f) + exp(splat(-1.702f) * gate));
}

static void swiglu_clamped(const float* gate, const float* up, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, clamped(load(gate + i), load(up + i)));
  const int rest = static_cast<int>(count - i);
  if (rest > 0) store_partial(y + i, clamped(load_partial(gate + i, rest), load_partial(up + i, rest)), rest);
}

static void add_scaled(const float* x, float by, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, fma(load(x + i), splat(by), load(y + i)));
  const int rest = static_cast<int>(count - i);
  if (rest > 0) store_partial(y + i, fma(load_partial(x + i, rest), splat(by), load_partial(y + i, rest)), rest);
}

}  // namespace headrace::HEADRACE_NAMESPACE

namespace headrace {

namespace k = HEADRACE_NAMESPACE;
extern const MoeKernels HEADRACE_TABLE(moe);
const MoeKernels HEADRACE_TABLE(moe) = {k::route, k::swiglu_clamped, k::add_scaled};

}  // namespace headrace
