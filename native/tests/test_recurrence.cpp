// Convolution and scan against naive double references, and bit-identity across chunks, batches, slots and parts.
#include "../kernels/recurrence.hpp"

#include <cmath>
#include <functional>
#include <vector>

#include "test.hpp"

using namespace headrace;
using Floats = std::vector<float>;

constexpr int kTokens = 23, kSlots = 4;

static Floats random_floats(test::Random& random, int64_t count, float scale = 1) {
  Floats values(static_cast<size_t>(count));
  for (float& x : values) x = scale * random.normal();
  return values;
}

// Rows [begin, end) of one of two sequences, whose state is in `slot`.
struct Chunk {
  int sequence, begin, end, slot;
};

// The inputs of a step of chunks: `rows[sequence]` cut and put one below the other.
struct Input {
  std::vector<int32_t> starts{0}, lengths, slots;
  Step step;
  explicit Input(const std::vector<Chunk>& chunks) {
    for (const Chunk& chunk : chunks) {
      starts.push_back(starts.back() + chunk.end - chunk.begin);
      lengths.push_back(chunk.end);
      slots.push_back(chunk.slot);
    }
    step.T = starts.back();
    step.B = static_cast<int32_t>(chunks.size());
    step.query_starts = starts.data();
    step.lengths = lengths.data();
    step.state_slots = slots.data();
  }
};

static Floats cut(const std::vector<Floats>& sequences, const std::vector<Chunk>& chunks, int64_t columns) {
  Floats rows;
  for (const Chunk& c : chunks) {
    const Floats& all = sequences[static_cast<size_t>(c.sequence)];
    rows.insert(rows.end(), all.begin() + c.begin * columns, all.begin() + c.end * columns);
  }
  return rows;
}

// Runs both sequences in several ways that must give the same bits, and returns what they give.
// `run` computes a step: (chunks, state, parts) to rows of `columns`.
using Run = std::function<Floats(const std::vector<Chunk>&, Floats&, int)>;
static std::vector<Floats> same_in_all_ways(const Run& run, int64_t columns, int64_t state_width) {
  const auto fresh = [&] { return Floats(static_cast<size_t>(kSlots * state_width), NAN); };  // never read as it is
  std::vector<Floats> whole;
  for (int s = 0; s < 2; ++s) {
    Floats state = fresh();
    whole.push_back(run({{s, 0, kTokens, s}}, state, 1));
  }
  for (const int parts : {1, 2, 7}) {
    for (const int chunk : {1, 2, 5, kTokens}) {
      Floats state = fresh();
      for (int begin = 0; begin < kTokens; begin += chunk) {
        const int end = begin + chunk < kTokens ? begin + chunk : kTokens;
        const Floats y = run({{1, begin, end, 3}, {0, begin, end, 1}}, state, parts);
        const size_t count = static_cast<size_t>((end - begin) * columns), at = static_cast<size_t>(begin * columns);
        CHECK(test::same_bits(y.data(), whole[1].data() + at, count));
        CHECK(test::same_bits(y.data() + count, whole[0].data() + at, count));
      }
      CHECK(std::isnan(state[0]) && std::isnan(state[static_cast<size_t>(3 * state_width - 1)]));  // slots without a sequence
    }
  }
  return whole;
}

static void convolution_is_right(Isa isa, int64_t channels, int32_t taps, bool biased) {
  test::Random random(static_cast<uint64_t>(channels + taps));
  const std::vector<Floats> x = {random_floats(random, kTokens * channels), random_floats(random, kTokens * channels)};
  const Floats w = random_floats(random, taps * channels), bias = random_floats(random, channels);
  const auto run = [&](const std::vector<Chunk>& chunks, Floats& state, int parts) {
    const Input input(chunks);
    const Floats rows = cut(x, chunks, channels);
    Floats y(rows.size(), NAN);
    CausalConvArgs args;
    args.x = rows.data();
    args.y = y.data();
    args.channels = channels;
    args.taps = taps;
    args.w = w.data();
    args.bias = biased ? bias.data() : nullptr;
    args.act = Act::silu;
    args.state = state.data();
    args.step = &input.step;
    for (int part = 0; part < parts; ++part) recurrence_kernels(isa).causal_conv(args, part, parts);
    return y;
  };
  const std::vector<Floats> got = same_in_all_ways(run, channels, (taps - 1) * channels);
  for (size_t s = 0; s < 2; ++s) {
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = biased ? bias[static_cast<size_t>(c)] : 0;
        for (int64_t k = 0; k < taps; ++k) {
          const int64_t from = t - taps + 1 + k;
          if (from >= 0) sum += double{w[static_cast<size_t>(k * channels + c)]} * x[s][static_cast<size_t>(from * channels + c)];
        }
        CHECK_NEAR(got[s][static_cast<size_t>(t * channels + c)], sum / (1 + std::exp(-sum)), 2e-5);
      }
    }
  }
}

struct ScanShape {
  int64_t heads, head_dim, groups, entries;
  float smallest_dt, largest_dt;
};

struct ScanWeights {
  Floats a_log, d, dt_bias;
};

// The recurrence in double, one number at a time.
static void check_scan(const ScanShape& shape, const Floats& x, const Floats& bc, const Floats& dt, const ScanWeights& w,
                       const Floats& got) {
  const int64_t inner = shape.heads * shape.head_dim, pairs = 2 * shape.groups * shape.entries;
  for (int64_t i = 0; i < inner; ++i) {
    const int64_t head = i / shape.head_dim, group = head / (shape.heads / shape.groups);
    const size_t h = static_cast<size_t>(head);
    std::vector<double> state(static_cast<size_t>(shape.entries), 0.0);
    for (int64_t t = 0; t < kTokens; ++t) {
      const double raw = double{dt[static_cast<size_t>(t * shape.heads + head)]} + w.dt_bias[h];
      const double step = std::fmin(std::fmax(std::log1p(std::exp(raw)), double{shape.smallest_dt}), double{shape.largest_dt});
      const double in = x[static_cast<size_t>(t * inner + i)];
      double y = w.d[h] * in;
      for (int64_t n = 0; n < shape.entries; ++n) {
        const size_t b = static_cast<size_t>(t * pairs + group * shape.entries + n);
        double& now = state[static_cast<size_t>(n)];
        now = std::exp(-step * std::exp(double{w.a_log[h]})) * now + step * bc[b] * in;
        y += now * bc[b + static_cast<size_t>(shape.groups * shape.entries)];
      }
      CHECK_NEAR(got[static_cast<size_t>(t * inner + i)], y, 1e-4);
    }
  }
}

static void scan_is_right(Isa isa, const ScanShape& shape) {
  test::Random random(static_cast<uint64_t>(shape.head_dim));
  const int64_t inner = shape.heads * shape.head_dim, pairs = 2 * shape.groups * shape.entries;
  std::vector<Floats> x, bc, dt;
  for (int s = 0; s < 2; ++s) {
    x.push_back(random_floats(random, kTokens * inner));
    bc.push_back(random_floats(random, kTokens * pairs));
    dt.push_back(random_floats(random, kTokens * shape.heads, 3));
  }
  const ScanWeights w = {random_floats(random, shape.heads), random_floats(random, shape.heads), random_floats(random, shape.heads)};
  const auto run = [&](const std::vector<Chunk>& chunks, Floats& state, int parts) {
    const Input input(chunks);
    const Floats xs = cut(x, chunks, inner), bcs = cut(bc, chunks, pairs), dts = cut(dt, chunks, shape.heads);
    Floats y(xs.size(), NAN);
    SelectiveScanArgs args;
    args.x = xs.data();
    args.bc = bcs.data();
    args.dt = dts.data();
    args.y = y.data();
    args.heads = shape.heads;
    args.head_dim = shape.head_dim;
    args.groups = shape.groups;
    args.entries = shape.entries;
    args.a_log = w.a_log.data();
    args.d = w.d.data();
    args.dt_bias = w.dt_bias.data();
    args.smallest_dt = shape.smallest_dt;
    args.largest_dt = shape.largest_dt;
    args.state = state.data();
    args.step = &input.step;
    for (int part = 0; part < parts; ++part) recurrence_kernels(isa).selective_scan(args, part, parts);
    return y;
  };
  const std::vector<Floats> got = same_in_all_ways(run, inner, inner * shape.entries);
  for (size_t s = 0; s < 2; ++s) check_scan(shape, x[s], bc[s], dt[s], w, got[s]);
}

int main() {
  test::for_each_isa([](Isa isa) {
    for (const int64_t channels : {1, 16, 37}) {
      for (const int32_t taps : {2, 4, 7}) convolution_is_right(isa, channels, taps, channels != 16);
    }
    for (const ScanShape& shape : {ScanShape{2, 3, 1, 5, 0, INFINITY}, ScanShape{4, 16, 2, 8, 0.1f, 1.5f},
                                   ScanShape{2, 64, 1, 16, 0, INFINITY}, ScanShape{2, 75, 2, 3, 0, 0.5f}}) {
      scan_is_right(isa, shape);
    }
  });
  return test::report();
}
