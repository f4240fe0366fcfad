#include "moe.hpp"

#include <algorithm>

namespace headrace {
namespace {

// The panels of a stacked weight that hold rows [first, first + count), as a weight of their own.
struct View {
  Weight weight;
  int64_t first_row;  // of the weight, in the stack
  int64_t skipped;    // columns before those that are used
};

View view_of(const Weight& stack, int64_t first, int64_t count) {
  const int64_t panel = first / kPanel;
  const int64_t end = std::min((first + count + kPanel - 1) / kPanel * kPanel, stack.n);
  View view{stack, panel * kPanel, first - panel * kPanel};
  view.weight.n = end - view.first_row;
  view.weight.data += static_cast<int64_t>(packed_bytes(stack.format, kPanel, stack.k)) * panel;
  return view;
}

// Columns of the widest view of `count` rows.
int64_t widest(int64_t count) { return (count + 2 * (kPanel - 1)) / kPanel * kPanel; }

void add_product(FusedLinearArgs& args, const View& view, const float* bias, float* y) {
  args.w[args.count] = view.weight;
  args.bias[args.count] = bias == nullptr ? nullptr : bias + view.first_row;
  args.y[args.count] = y;
  ++args.count;
}

}  // namespace

// A pair is a row and an expert that it was sent to; pairs are sorted by expert, then by row.
struct Moe::Scratch {
  int32_t* starts;      // [experts + 1] first pair of each expert
  int32_t* row_of;      // [pairs]
  int32_t* expert_of;   // [pairs]
  int32_t* pairs_of;    // [rows][top_k] in ascending order of experts
  int32_t* counts_of;   // [rows]
  uint8_t* prepared;    // of each expert's rows, for the products: first x, then h
  int64_t outer_bytes;  // of one prepared row of x
  int64_t inner_bytes;  // of h
  float* wide;          // [2][pairs][widest(inner)] gate and up, then [pairs][widest(outer)]
  float* h;             // [pairs][inner]
  size_t total;
};

Moe::Scratch Moe::scratch_of(uint8_t* base, const MoeShape& shape) const {
  Scratch s{};
  const int64_t pairs = shape.rows * shape.top_k;
  const auto take = [&](int64_t bytes) {
    uint8_t* at = base == nullptr ? nullptr : base + s.total;
    s.total += static_cast<size_t>((bytes + 63) / 64 * 64);
    return at;
  };
  const auto ints = [&](int64_t count) { return reinterpret_cast<int32_t*>(take(count * 4)); };
  s.starts = ints(shape.experts + 1);
  s.row_of = ints(pairs);
  s.expert_of = ints(pairs);
  s.pairs_of = ints(pairs);
  s.counts_of = ints(shape.rows);
  // Many rows take no more than as many single ones.
  s.outer_bytes = static_cast<int64_t>(linear_.scratch_bytes(1, shape.outer, shape.formats));
  s.inner_bytes = static_cast<int64_t>(linear_.scratch_bytes(1, shape.inner, shape.formats));
  s.prepared = take(pairs * std::max(s.outer_bytes, s.inner_bytes));
  s.wide = reinterpret_cast<float*>(take(pairs * std::max(2 * widest(shape.inner), widest(shape.outer)) * 4));
  s.h = reinterpret_cast<float*>(take(pairs * shape.inner * 4));
  return s;
}

size_t Moe::scratch_bytes(const MoeShape& shape) const { return scratch_of(nullptr, shape).total; }

void Moe::run(const MoeArgs& args, int phase, int part, int parts) const {
  const Scratch scratch = scratch_of(args.scratch, args.shape);
  switch (phase) {
    case 0:
      if (part == 0) sort(args, scratch);
      return;
    case 1:
    case 2:
      return inward(args, scratch, phase == 1, part, parts);
    case 3:
      return activate(args, scratch, part, parts);
    case 4:
    case 5:
      return outward(args, scratch, phase == 4, part, parts);
    default:
      return combine(args, scratch, part, parts);
  }
}

void Moe::sort(const MoeArgs& args, const Scratch& s) const {
  const int32_t experts = args.shape.experts, top_k = args.shape.top_k;
  std::fill(s.starts, s.starts + experts + 1, 0);
  // First every row's experts in ascending order; at most top_k, whatever the gates hold.
  for (int64_t row = 0; row < args.rows; ++row) {
    int32_t count = 0;
    for (int32_t e = 0; e < experts && count < top_k; ++e) {
      if (args.gates[row * experts + e] == 0) continue;
      s.pairs_of[row * top_k + count++] = e;
      ++s.starts[e + 1];
    }
    s.counts_of[row] = count;
  }
  for (int32_t e = 0; e < experts; ++e) s.starts[e + 1] += s.starts[e];
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int32_t i = 0; i < s.counts_of[row]; ++i) {
      int32_t& pair = s.pairs_of[row * top_k + i];
      const int32_t e = pair;
      pair = s.starts[e]++;
      s.row_of[pair] = static_cast<int32_t>(row);
      s.expert_of[pair] = e;
    }
  }
  for (int32_t e = experts; e > 0; --e) s.starts[e] = s.starts[e - 1];  // they had moved to their ends
  s.starts[0] = 0;
}

void Moe::inward(const MoeArgs& args, const Scratch& s, bool prepare, int part, int parts) const {
  const int64_t inner = args.shape.inner, width = widest(inner);
  float* second = s.wide + args.shape.rows * args.shape.top_k * width;
  int turn = part;  // a share of another size of each expert's work
  for (int32_t e = 0; e < args.shape.experts; ++e) {
    const int64_t first = s.starts[e];
    FusedLinearArgs linear;
    linear.rows = s.starts[e + 1] - first;
    if (linear.rows == 0) continue;
    linear.x = args.x;
    linear.row_ids = s.row_of + first;
    linear.k = args.shape.outer;
    add_product(linear, view_of(args.gate, e * inner, inner), args.gate_bias, s.wide + first * width);
    add_product(linear, view_of(args.up, e * inner, inner), args.up_bias, second + first * width);
    // Of one row alone there is one prepared form for all experts.
    linear.scratch = s.prepared + (args.rows == 1 ? 0 : first) * s.outer_bytes;
    if (!prepare || args.rows > 1 || first == 0) (prepare ? linear_.prepare : linear_.product)(linear, turn, parts);
    turn = (turn + 1) % parts;
  }
}

void Moe::activate(const MoeArgs& args, const Scratch& s, int part, int parts) const {
  const int64_t inner = args.shape.inner, width = widest(inner), pairs = s.starts[args.shape.experts];
  const float* second = s.wide + args.shape.rows * args.shape.top_k * width;
  const int kind = static_cast<int>(args.act);
  for (int64_t pair = pairs * part / parts; pair < pairs * (part + 1) / parts; ++pair) {
    const int32_t e = s.expert_of[pair];
    const View view = view_of(args.gate, e * inner, inner);
    const int64_t at = s.starts[e] * width + (pair - s.starts[e]) * view.weight.n + view.skipped;
    const float *gate = s.wide + at, *up = second + at;
    float* h = s.h + pair * inner;
    if (args.act == Act::swiglu_clamped) {
      moe_.swiglu_clamped(gate, up, inner, h);
    } else {
      rows_.gated_act({.x = {gate, up}, .y = h, .rows = 1, .columns = inner, .ints = &kind}, 0, 1);
    }
  }
}

void Moe::outward(const MoeArgs& args, const Scratch& s, bool prepare, int part, int parts) const {
  const int64_t outer = args.shape.outer, inner = args.shape.inner;
  int turn = part;
  for (int32_t e = 0; e < args.shape.experts; ++e) {
    const int64_t first = s.starts[e];
    FusedLinearArgs linear;
    linear.rows = s.starts[e + 1] - first;
    if (linear.rows == 0) continue;
    linear.x = s.h + first * inner;
    linear.k = inner;
    add_product(linear, view_of(args.down, e * outer, outer), args.down_bias, s.wide + first * widest(outer));
    linear.scratch = s.prepared + first * s.inner_bytes;
    (prepare ? linear_.prepare : linear_.product)(linear, turn, parts);
    turn = (turn + 1) % parts;
  }
}

void Moe::combine(const MoeArgs& args, const Scratch& s, int part, int parts) const {
  const int64_t outer = args.shape.outer, blocks = (outer + 63) / 64, total = args.rows * blocks;
  const int32_t top_k = args.shape.top_k;
  for (int64_t item = total * part / parts; item < total * (part + 1) / parts;) {
    const int64_t row = item / blocks, begin = item % blocks * 64;
    const int64_t stop = std::min(total * (part + 1) / parts, (row + 1) * blocks);
    const int64_t end = std::min((stop - row * blocks) * 64, outer);
    float* y = args.y + row * outer;
    std::fill(y + begin, y + end, 0.0f);
    for (int32_t i = 0; i < s.counts_of[row]; ++i) {
      const int32_t pair = s.pairs_of[row * top_k + i], e = s.expert_of[pair];
      const View view = view_of(args.down, e * outer, outer);
      const float* made = s.wide + s.starts[e] * widest(outer) + (pair - s.starts[e]) * view.weight.n + view.skipped;
      moe_.add_scaled(made + begin, args.gates[row * args.shape.experts + e], end - begin, y + begin);
    }
    item = stop;
  }
}

}  // namespace headrace
