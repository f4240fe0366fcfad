// Row operations: norms, add, multiplication by a number, soft-cap, activations, gather, means, rotary embedding with head norms and KV write.
//
// Layout: rows are dense, [rows, d] float32. KV pages: see KvLayer in types.hpp.
// Determinism: outputs are independent of each other except inside one norm, whose sum runs over
// fixed lanes: element i always goes to lane i % (4 kWidth), lanes are folded in one order. A
// number's place in a vector or in a tail does not change what is computed for it.
#include "rows.hpp"

#include <math.h>

#include "../formats/kv_page.hpp"
#include "activation.hpp"
#include "kv_codes.hpp"

namespace headrace::HEADRACE_NAMESPACE {

struct Slice {
  int64_t begin, end;
};

// Part `part` of `count` items, cut at multiples of `grain`.
static inline Slice slice(int64_t count, int64_t grain, int part, int parts) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t begin = grains * part / parts * grain;
  const int64_t end = grains * (part + 1) / parts * grain;
  return {begin < count ? begin : count, end < count ? end : count};
}

static inline float sum_of_squares(const float* x, int64_t d) {
  F s0 = {}, s1 = {}, s2 = {}, s3 = {};
  int64_t i = 0;
  for (; i + 4 * kWidth <= d; i += 4 * kWidth) {
    const F a = load(x + i), b = load(x + i + kWidth), c = load(x + i + 2 * kWidth), e = load(x + i + 3 * kWidth);
    s0 = fma(a, a, s0);
    s1 = fma(b, b, s1);
    s2 = fma(c, c, s2);
    s3 = fma(e, e, s3);
  }
  F* const sums[4] = {&s0, &s1, &s2, &s3};
  for (int lane = 0; i < d; i += kWidth, ++lane) {
    const F a = d - i >= kWidth ? load(x + i) : load_partial(x + i, static_cast<int>(d - i));
    *sums[lane] = fma(a, a, *sums[lane]);
  }
  return reduce_add((s0 + s1) + (s2 + s3));
}

static inline float sum(const float* x, int64_t d) {
  F s0 = {}, s1 = {}, s2 = {}, s3 = {};
  int64_t i = 0;
  for (; i + 4 * kWidth <= d; i += 4 * kWidth) {
    s0 += load(x + i);
    s1 += load(x + i + kWidth);
    s2 += load(x + i + 2 * kWidth);
    s3 += load(x + i + 3 * kWidth);
  }
  F* const sums[4] = {&s0, &s1, &s2, &s3};
  for (int lane = 0; i < d; i += kWidth, ++lane) {
    *sums[lane] += d - i >= kWidth ? load(x + i) : load_partial(x + i, static_cast<int>(d - i));
  }
  return reduce_add((s0 + s1) + (s2 + s3));
}

static inline void norm_row(const float* x, const float* w, float eps, int64_t d, float* y) {
  const float inverse = 1.0f / sqrtf(sum_of_squares(x, d) / static_cast<float>(d) + eps);
  int64_t i = 0;
  for (; i + kWidth <= d; i += kWidth) store(y + i, load(x + i) * splat(inverse) * load(w + i));
  for (; i < d; ++i) y[i] = x[i] * inverse * w[i];
}

// y = x / sqrt(mean(x^2) + eps) * w, in groups of as many columns as w has, which consist of ints[0] runs.
static void rms_norm(const RowOpArgs& op, int part, int parts) {
  const int64_t runs = op.ints[0], d = op.constant_size / runs;
  const float *x = op.x[0], *w = op.constants[0];
  const Slice s = slice(op.count() / d, 1, part, parts);
  for (int64_t r = s.begin; r < s.end; ++r) norm_row(x + r * d, w + r % runs * d, op.floats[0], d, op.y + r * d);
}

// y = (x - mean(x)) / sqrt(variance(x) + eps) * w + bias. Centers into y first: the sum of squares then loses nothing
// to a large mean.
static void layer_norm(const RowOpArgs& op, int part, int parts) {
  const float *w = op.constants[0], *bias = op.constants[1], eps = op.floats[0];
  const int64_t d = op.columns;
  const Slice s = slice(op.rows, 1, part, parts);
  for (int64_t r = s.begin; r < s.end; ++r) {
    const float* in = op.x[0] + r * d;
    float* out = op.y + r * d;
    const float mean = sum(in, d) / static_cast<float>(d);
    for (int64_t i = 0; i < d; ++i) out[i] = in[i] - mean;
    norm_row(out, w, eps, d, out);
    if (bias == nullptr) continue;
    for (int64_t i = 0; i < d; ++i) out[i] += bias[i];
  }
}

static void scale(const RowOpArgs& op, int part, int parts) {
  const Slice s = slice(op.count(), 64, part, parts);
  const float *x = op.x[0], by = op.floats[0];
  float* y = op.y;
  for (int64_t i = s.begin; i < s.end; ++i) y[i] = x[i] * by;
}

// y = cap * tanh(x / cap)
static void softcap(const RowOpArgs& op, int part, int parts) {
  const Slice s = slice(op.count(), 64, part, parts);
  const float *x = op.x[0], cap = op.floats[0];
  float* y = op.y;
  const auto capped = [cap](F v) { return splat(cap) * tanh(v / splat(cap)); };
  int64_t i = s.begin;
  for (; i + kWidth <= s.end; i += kWidth) store(y + i, capped(load(x + i)));
  const int rest = static_cast<int>(s.end - i);
  if (rest > 0) store_partial(y + i, capped(load_partial(x + i, rest)), rest);
}

static void add(const RowOpArgs& op, int part, int parts) {
  const Slice s = slice(op.count(), 64, part, parts);
  const float *a = op.x[0], *b = op.x[1];
  float* y = op.y;
  int64_t i = s.begin;
  for (; i + kWidth <= s.end; i += kWidth) store(y + i, load(a + i) + load(b + i));
  for (; i < s.end; ++i) y[i] = a[i] + b[i];
}

// Tails go through a zero-padded vector: the same arithmetic as a full one.
static void act(const RowOpArgs& op, int part, int parts) {
  const Slice s = slice(op.count(), 64, part, parts);
  const Act kind = static_cast<Act>(op.ints[0]);
  const float* x = op.x[0];
  float* y = op.y;
  int64_t i = s.begin;
  for (; i + kWidth <= s.end; i += kWidth) store(y + i, activate(kind, load(x + i)));
  const int rest = static_cast<int>(s.end - i);
  if (rest > 0) store_partial(y + i, activate(kind, load_partial(x + i, rest)), rest);
}

static void gated_act(const RowOpArgs& op, int part, int parts) {
  const Slice s = slice(op.count(), 64, part, parts);
  const Act kind = static_cast<Act>(op.ints[0]);
  const float *gate = op.x[0], *up = op.x[1];
  float* y = op.y;
  int64_t i = s.begin;
  for (; i + kWidth <= s.end; i += kWidth) store(y + i, activate(kind, load(gate + i)) * load(up + i));
  const int rest = static_cast<int>(s.end - i);
  if (rest > 0) store_partial(y + i, activate(kind, load_partial(gate + i, rest)) * load_partial(up + i, rest), rest);
}

static void gather(const RowOpArgs& op, int part, int parts) {
  const Slice s = slice(op.rows, 1, part, parts);
  const int64_t d = op.columns;
  const int32_t* rows = op.step->rows;
  for (int64_t r = s.begin; r < s.end; ++r) memcpy(op.y + r * d, op.x[0] + rows[r] * d, static_cast<size_t>(d) * sizeof(float));
}

// Of rows [begin, end) of x, which are d apart, the first `count` columns.
static void mean_of_rows(const float* x, int64_t begin, int64_t end, int64_t d, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = 0.0f;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t i = 0; i < count; ++i) y[i] += x[t * d + i];
  }
  for (int64_t i = 0; i < count; ++i) y[i] /= static_cast<float>(end - begin);
}

static void max_of_rows(const float* x, int64_t begin, int64_t end, int64_t d, int64_t count, float* y) {
  memcpy(y, x + begin * d, static_cast<size_t>(count) * sizeof(float));
  for (int64_t t = begin + 1; t < end; ++t) {
    for (int64_t i = 0; i < count; ++i) y[i] = x[t * d + i] <= y[i] || y[i] != y[i] ? y[i] : x[t * d + i];
  }
}

// y[r] = the mean or the maximum (ints[0]: 0, 1) of x over its sequence's rows up to step.rows[r]. Columns are
// independent and each takes its rows in their order, so how columns are cut changes nothing. NaN stays the maximum.
static void pool(const RowOpArgs& op, int part, int parts) {
  const Step& step = *op.step;
  const int64_t d = op.columns;
  const Slice s = slice(op.count(), 1, part, parts);
  for (int64_t at = s.begin; at < s.end;) {
    const int64_t r = at / d, first = at % d;
    const int64_t count = s.end - at < d - first ? s.end - at : d - first;
    int b = 0;
    while (step.query_starts[b + 1] <= step.rows[r]) ++b;
    const int64_t begin = step.query_starts[b], end = step.rows[r] + 1;
    float* to = op.y + r * d + first;
    const float* x = op.x[0] + first;
    if (op.ints[0] == 0) {
      mean_of_rows(x, begin, end, d, count, to);
    } else {
      max_of_rows(x, begin, end, d, count, to);
    }
    at += count;
  }
}

static void take_columns(const RowOpArgs& op, int part, int parts) {
  const Slice s = slice(op.count(), 1, part, parts);
  const int64_t d = op.columns;
  const float* x = op.x[0];
  for (int64_t i = s.begin; i < s.end; ++i) op.y[i] = x[i / d * d + op.ints[i % d]];
}

// The angle is the float32 product that the reference takes; its cosine and sine are taken in double,
// so that the reduction by 2 pi is exact enough at any position.
static void rope_table(const RopeTableArgs& args, int part, int parts) {
  const Slice s = slice(args.step->T, 1, part, parts);
  for (int64_t t = s.begin; t < s.end; ++t) {
    const float position = static_cast<float>(args.step->positions[t]);
    for (int32_t i = 0; i < args.half; ++i) {
      const double angle = static_cast<double>(position * args.inv_freq[i]);
      args.cos[t * args.half + i] = static_cast<float>(::cos(angle)) * args.rope_scale;
      args.sin[t * args.half + i] = static_cast<float>(::sin(angle)) * args.rope_scale;
    }
  }
}

// y = rotated x, one head; y may be x.
static inline void rotate_head(const float* x, const float* cos, const float* sin, int32_t half, int32_t head_dim,
                               float* y) {
  int32_t i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    const F a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(y + i, a * c - b * s);
    store(y + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    y[i] = a * cos[i] - b * sin[i];
    y[half + i] = b * cos[i] + a * sin[i];
  }
  if (y != x) memcpy(y + 2 * half, x + 2 * half, static_cast<size_t>(head_dim - 2 * half) * sizeof(float));
}

// A key's or a value's numbers into the page of its KV head; place(d) is where number d lies there.
template <typename Place>
static inline void write_numbers(const KvLayer& kv, uint8_t* pages, int64_t slot, int32_t head, const float* x,
                                 const Place& place) {
  const int64_t base = (slot / kPageTokens * kv.kv_heads + head) * kPageTokens * kv.head_dim;
  if (kv.type == KvType::f32) {
    float* out = reinterpret_cast<float*>(pages) + base;
    for (int32_t d = 0; d < kv.head_dim; ++d) out[place(d)] = x[d];
  } else {
    uint16_t* out = reinterpret_cast<uint16_t*>(pages) + base;
    uint16_t halves[kMaxHeadDim];  // rounded side by side, which vectors can
    for (int32_t d = 0; d < kv.head_dim; ++d) halves[d] = to_bf16(x[d]);
    for (int32_t d = 0; d < kv.head_dim; ++d) out[place(d)] = halves[d];
  }
}
static inline void write_key(const KvLayer& kv, int64_t slot, int32_t head, const float* x) {
  if (is_coded(kv.type)) return write_codes(kv, Part::keys, slot, head, x);
  write_numbers(kv, kv.k, slot, head, x,
                [&](int32_t d) { return key_place(kv.type, kv.head_dim, slot % kPageTokens, d); });
}
static inline void write_value(const KvLayer& kv, int64_t slot, int32_t head, const float* x) {
  if (is_coded(kv.type)) return write_codes(kv, Part::values, slot, head, x);
  write_numbers(kv, kv.v, slot, head, x,
                [&](int32_t d) { return value_place(kv.type, kv.head_dim, slot % kPageTokens, d); });
}

// Item u: token u / heads_per_token, whose heads are those of q, then of k, then of v.
static void rope_kv_write(const RopeKvWriteArgs& args, int part, int parts) {
  const KvLayer& kv = args.kv;
  const int32_t d = kv.head_dim, half = args.rotary_dim / 2;
  const int64_t heads_per_token = args.heads + (args.v == nullptr ? 1 : 2) * static_cast<int64_t>(kv.kv_heads);
  const Slice s = slice(args.step->T * heads_per_token, 1, part, parts);
  float normed[kMaxHeadDim], rotated[kMaxHeadDim];
  for (int64_t u = s.begin; u < s.end; ++u) {
    const int64_t t = u / heads_per_token;
    int32_t head = static_cast<int32_t>(u % heads_per_token);
    const float* cos = args.cos + t * half;
    const float* sin = args.sin + t * half;
    if (head < args.heads) {
      const int64_t at = (t * args.heads + head) * d;
      const float* x = args.q + at;
      if (args.q_norm != nullptr) {
        norm_row(x, args.q_norm, args.norm_eps, d, normed);
        x = normed;
      }
      rotate_head(x, cos, sin, half, d, args.q_out + at);
      continue;
    }
    head -= args.heads;
    const int64_t slot = args.step->slots[t];
    if (head < kv.kv_heads) {
      const float* x = args.k + (t * kv.kv_heads + head) * d;
      if (args.k_norm != nullptr) {
        norm_row(x, args.k_norm, args.norm_eps, d, normed);
        x = normed;
      }
      rotate_head(x, cos, sin, half, d, rotated);
      write_key(kv, slot, head, rotated);
    } else {
      head -= kv.kv_heads;
      write_value(kv, slot, head, args.v + (t * kv.kv_heads + head) * d);
    }
  }
}

// A plain read loop at the memory's speed, where `ahead` suits the machine.
static uint64_t read(const uint8_t* data, size_t bytes, size_t ahead) {
  constexpr size_t kVector = sizeof(I), kBlock = 8 * kVector;
  I sums[8] = {};
  size_t i = 0;
  for (; i + kBlock <= bytes; i += kBlock) {
    for (size_t line = 0; line < kBlock; line += 64) __builtin_prefetch(data + i + line + ahead);
    for (size_t j = 0; j < 8; ++j) {
      I v;
      memcpy(&v, data + i + j * kVector, kVector);
      sums[j] ^= v;
    }
  }
  uint64_t result = 0;
  for (; i < bytes; ++i) result += data[i];
  for (size_t j = 0; j < 8; ++j) {
    for (int lane = 0; lane < kWidth; ++lane) result += static_cast<uint32_t>(sums[j][lane]);
  }
  return result;
}

}  // namespace headrace::HEADRACE_NAMESPACE

namespace headrace {

namespace k = HEADRACE_NAMESPACE;
extern const RowsKernels HEADRACE_TABLE(rows);
const RowsKernels HEADRACE_TABLE(rows) = {
#define HEADRACE_ROW_OP(name, ...) k::name,
#include "../ops.inl"
    k::rope_table, k::rope_kv_write, k::read};

}  // namespace headrace
