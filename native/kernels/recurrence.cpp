// Causal convolution and selective scan (definitions: ops/causal_conv.py, ops/selective_scan.py).
//
// Layout: rows are dense, [T, columns] float32. A convolution's state is [taps - 1][channels] per slot,
// oldest row first; a scan's is [heads][N][P] per slot, so that a vector holds one entry of N for kWidth
// of the head's P outputs and no sum ever runs across lanes.
// Determinism: tokens of a sequence follow each other in one thread, every lane's sum runs over the taps
// or over N in order, and what a lane computes depends neither on its place in a vector nor on the chunk.
#include "recurrence.hpp"

#include <math.h>

#include "activation.hpp"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kMaxBlock = 4;  // vectors that a scan keeps in flight: enough to hide the latency of a sum

// Part `part` of `count` items.
struct Slice {
  int64_t begin, end;
  Slice(int64_t count, int part, int parts) : begin(count * part / parts), end(count * (part + 1) / parts) {}
};

static inline F load_lanes(const float* p, int lanes) { return lanes >= kWidth ? load(p) : load_partial(p, lanes); }
static inline void store_lanes(float* p, F v, int lanes) {
  if (lanes >= kWidth) {
    store(p, v);
  } else {
    store_partial(p, v, lanes);
  }
}

// Up to kWidth channels of one sequence. `past` holds the rows before the current one, oldest first.
static inline void convolve(const CausalConvArgs& args, int32_t b, int64_t channel, int lanes) {
  const Step& step = *args.step;
  const int64_t first = step.query_starts[b], end = step.query_starts[b + 1];
  const int32_t taps = args.taps;
  float* state = args.state + args.channels * (taps - 1) * step.state_slots[b] + channel;
  F past[kMaxTaps] = {};
  if (step.lengths[b] != end - first) {
    for (int32_t k = 0; k + 1 < taps; ++k) past[k] = load_lanes(state + k * args.channels, lanes);
  }
  const F bias = args.bias == nullptr ? F{} : load_lanes(args.bias + channel, lanes);
  for (int64_t t = first; t < end; ++t) {
    past[taps - 1] = load_lanes(args.x + t * args.channels + channel, lanes);
    F sum = bias;
    for (int32_t k = 0; k < taps; ++k) {
      sum = fma(load_lanes(args.w + k * args.channels + channel, lanes), past[k], sum);
    }
    store_lanes(args.y + t * args.channels + channel, activate(args.act, sum), lanes);
    for (int32_t k = 0; k + 1 < taps; ++k) past[k] = past[k + 1];
  }
  for (int32_t k = 0; k + 1 < taps; ++k) store_lanes(state + k * args.channels, past[k], lanes);
}

static void causal_conv(const CausalConvArgs& args, int part, int parts) {
  const int64_t vectors = (args.channels + kWidth - 1) / kWidth;
  const Slice s(args.step->B * vectors, part, parts);
  for (int64_t item = s.begin; item < s.end; ++item) {
    const int64_t channel = item % vectors * kWidth, rest = args.channels - channel;
    convolve(args, static_cast<int32_t>(item / vectors), channel, rest < kWidth ? static_cast<int>(rest) : kWidth);
  }
}

// log(1 + e^x) without overflow, held within the limits.
static inline float time_step(const SelectiveScanArgs& args, float x) {
  const float softplus = (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
  const float low = softplus < args.smallest_dt ? args.smallest_dt : softplus;
  return low > args.largest_dt ? args.largest_dt : low;
}

// `Block` vectors of one head's outputs from entry `p` on, for all rows of a sequence; `lanes` < kWidth
// only where Block is 1.
template <int Block>
static inline void scan_block(const SelectiveScanArgs& args, int32_t b, int32_t head, int64_t p, int lanes) {
  const Step& step = *args.step;
  const int64_t first = step.query_starts[b], end = step.query_starts[b + 1];
  const int64_t width = args.head_dim, entries = args.entries, columns = args.heads * width;
  float* state = args.state + (step.state_slots[b] * args.heads + head) * entries * width + p;
  if (step.lengths[b] == end - first) {
    for (int64_t n = 0; n < entries; ++n) {
      for (int v = 0; v < Block; ++v) store_lanes(state + n * width + v * kWidth, F{}, lanes);
    }
  }
  const float a = -expf(args.a_log[head]);
  const int64_t group = head / (args.heads / args.groups);
  for (int64_t t = first; t < end; ++t) {
    const float dt = time_step(args, args.dt[t * args.heads + head] + args.dt_bias[head]);
    const F decay = splat(expf(dt * a));
    const float* bs = args.bc + t * 2 * args.groups * entries + group * entries;
    const float* cs = bs + args.groups * entries;
    const int64_t at = t * columns + head * width + p;
    F x[Block], y[Block] = {};
    for (int v = 0; v < Block; ++v) x[v] = load_lanes(args.x + at + v * kWidth, lanes);
    for (int64_t n = 0; n < entries; ++n) {
      const F into = splat(dt * bs[n]), out = splat(cs[n]);
      for (int v = 0; v < Block; ++v) {
        float* h = state + n * width + v * kWidth;
        const F next = fma(into, x[v], decay * load_lanes(h, lanes));
        store_lanes(h, next, lanes);
        y[v] = fma(next, out, y[v]);
      }
    }
    for (int v = 0; v < Block; ++v) {
      store_lanes(args.y + at + v * kWidth, fma(splat(args.d[head]), x[v], y[v]), lanes);
    }
  }
}

static void selective_scan(const SelectiveScanArgs& args, int part, int parts) {
  constexpr int64_t kBlock = kMaxBlock * kWidth;
  const int64_t blocks = (args.head_dim + kBlock - 1) / kBlock, per_sequence = args.heads * blocks;
  const Slice s(args.step->B * per_sequence, part, parts);
  for (int64_t item = s.begin; item < s.end; ++item) {
    const int32_t b = static_cast<int32_t>(item / per_sequence);
    const int32_t head = static_cast<int32_t>(item % per_sequence / blocks);
    int64_t p = item % blocks * kBlock;
    const int64_t end = p + kBlock < args.head_dim ? p + kBlock : args.head_dim;
    if (end - p == kBlock) {
      scan_block<kMaxBlock>(args, b, head, p, kWidth);
      continue;
    }
    for (; p < end; p += kWidth) {
      scan_block<1>(args, b, head, p, end - p < kWidth ? static_cast<int>(end - p) : kWidth);
    }
  }
}

}  // namespace headrace::HEADRACE_NAMESPACE

namespace headrace {

namespace k = HEADRACE_NAMESPACE;
extern const RecurrenceKernels HEADRACE_TABLE(recurrence);
const RecurrenceKernels HEADRACE_TABLE(recurrence) = {k::causal_conv, k::selective_scan};

}  // namespace headrace
