// Routing and mixtures of experts: the same bits whatever the threads and the company (under TSan also: no
// barrier is missing), routing against a plain double computation, and instructions that are refused.
#include "../executor/moe.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "../executor/executor.hpp"
#include "test.hpp"

using namespace headrace;

constexpr int kExperts = 6, kTopK = 2, kOuter = 40, kInner = 52, kTokens = 24;

// embed, router, route, moe, gather: rows are picked by token.
struct World {
  std::vector<Buffer> buffers;
  std::vector<float> bias;
  Program program;

  explicit World(Format format) {
    test::Random random(5);
    for (int i = 0; i < kExperts * kInner; ++i) bias.push_back(random.normal());
    add_weight(Format::f32, kTokens, kOuter, random);
    add_weight(Format::f32, kExperts, kOuter, random);
    add_weight(format, kExperts * kInner, kOuter, random);
    add_weight(format, kExperts * kInner, kOuter, random);
    add_weight(format, kExperts * kOuter, kInner, random);
    program.constants = {{bias.data(), kExperts * kInner}, {bias.data(), kExperts * kOuter}, {bias.data(), kExperts}};
    program.max_tokens = program.max_rows = kTokens;
    for (const int64_t columns : {kOuter, kExperts, kExperts, kOuter, kOuter}) {
      program.values.push_back({program.values.size() == 4, columns, program.arena_bytes});
      program.arena_bytes = program.end_of(program.values.back());
    }
    program.arena = memory(program.arena_bytes);
    program.instructions = {
        {"embed", {}, {0}, {0}, {}, {}, {}},
        {"fused_linear", {0, -1}, {1}, {1}, {-1, -1}, {0}, {0.0f}},
        {"route", {1}, {2}, {}, {-1}, {0, kTopK, 1, 1, 1}, {1.0f}},
        {"moe", {0, 2}, {3}, {2, 3, 4}, {0, -1, 1}, {1, kTopK}, {}},
        {"gather", {3}, {4}, {}, {}, {}, {}},
    };
  }

  uint8_t* memory(int64_t bytes) { return buffers.emplace_back(static_cast<size_t>(bytes)).data(); }
  void add_weight(Format format, int64_t n, int64_t k, test::Random& random) {
    std::vector<float> source(static_cast<size_t>(n * k));
    for (float& x : source) x = 2 * random.normal() / std::sqrt(static_cast<float>(k));
    const int64_t bytes = static_cast<int64_t>(packed_bytes(format, n, k));
    uint8_t* data = memory(bytes);
    CHECK(linear_kernels(active_isa()).pack(format, Format::f32, source.data(), n, k, 0, (n + kPanel - 1) / kPanel, data) == -1);
    program.weights.push_back({format, n, k, data});
    program.weight_bytes.push_back(bytes);
  }
};

static std::vector<float> outputs(World& world, int threads, const std::vector<int32_t>& tokens) {
  Pool pool(threads);
  Executor executor(pool, world.program, true);
  std::vector<int32_t> rows;
  for (size_t i = 0; i < tokens.size(); ++i) rows.push_back(static_cast<int32_t>(i));
  Step step;
  step.T = step.R = static_cast<int32_t>(tokens.size());
  step.tokens = tokens.data();
  step.positions = step.slots = tokens.data();
  step.rows = rows.data();
  executor.run(step);
  const float* y = executor.value(4);
  return {y, y + tokens.size() * kOuter};
}

static void company_and_threads_change_no_bit(Format format) {
  World world(format);
  test::Random random(9);
  std::vector<std::vector<float>> alone;
  for (int32_t token = 0; token < kTokens; ++token) alone.push_back(outputs(world, 1, {token}));
  for (const int threads : {1, 2, 5}) {
    for (const int count : {1, 2, 7, kTokens}) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < count; ++i) tokens.push_back(random.below(kTokens));
      const std::vector<float> got = outputs(world, threads, tokens);
      for (size_t i = 0; i < tokens.size(); ++i) {
        CHECK(test::same_bits(got.data() + i * kOuter, alone[static_cast<size_t>(tokens[i])].data(), kOuter));
      }
    }
  }
}

static void routes_like_a_plain_computation(Isa isa) {
  constexpr int experts = 37, top_k = 5;
  test::Random random(2);
  std::vector<float> logits(experts * 8), gates(experts * 8);
  for (float& x : logits) x = 3 * random.normal();
  RouteArgs args;
  args.logits = logits.data();
  args.gates = gates.data();
  args.rows = 8;
  args.experts = experts;
  args.top_k = top_k;
  args.normalize = true;
  moe_kernels(isa).route(args, 0, 1);
  for (int row = 0; row < 8; ++row) {
    const float* from = logits.data() + row * experts;
    std::vector<int> order;
    for (int i = 0; i < experts; ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return from[a] > from[b]; });
    double sum = 0;
    for (int i = 0; i < top_k; ++i) sum += std::exp(static_cast<double>(from[order[static_cast<size_t>(i)]]));
    for (int i = 0; i < experts; ++i) {
      const int e = order[static_cast<size_t>(i)];
      CHECK_NEAR(gates[static_cast<size_t>(row * experts + e)], i < top_k ? std::exp(static_cast<double>(from[e])) / sum : 0.0, 1e-6);
    }
  }
}

// Whatever the logits are, never more than top_k gates: the pairs of a row have a fixed place.
static void strange_logits_choose_no_more(Isa isa) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const bool sigmoid : {false, true}) {
    for (const std::vector<float>& logits : {std::vector<float>{nan, nan, nan, nan}, {inf, inf, -inf, nan}, {-inf, -inf, -inf, -inf}, {nan, 1, 2, 3}}) {
      float gates[4];
      RouteArgs args;
      args.logits = logits.data();
      args.gates = gates;
      args.rows = 1;
      args.experts = 4;
      args.top_k = 2;
      args.groups = args.top_groups = 2;
      args.sigmoid = sigmoid;
      moe_kernels(isa).route(args, 0, 1);
      CHECK(std::count(gates, gates + 4, 0.0f) >= 2);
    }
  }
}

static void clamps_as_defined(Isa isa) {
  const float gate[] = {-30, -2, 0, 3, 9, 1, 1}, up[] = {1, 2, 3, -9, 9, 0, -1};
  float y[7];
  moe_kernels(isa).swiglu_clamped(gate, up, 7, y);
  for (int i = 0; i < 7; ++i) {
    const double g = std::min(static_cast<double>(gate[i]), 7.0), u = std::clamp(static_cast<double>(up[i]), -7.0, 7.0);
    CHECK_NEAR(y[i], (u + 1) * g / (1 + std::exp(-1.702 * g)), 1e-5);
  }
}

static bool refused(const Program& program) {
  try {
    Pool pool(1);
    Executor executor(pool, program, false);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

static void refuses_what_is_out_of_bounds() {
  const World world(Format::int8);
  CHECK(!refused(world.program));
  const auto wrong = [&](auto change) {
    Program program = world.program;
    change(program.instructions[2], program.instructions[3], program);
    return refused(program);
  };
  using I = Instruction;
  for (const int bad : {-1, 0, kExperts + 1, std::numeric_limits<int>::max()}) {
    CHECK(wrong([bad](I& route, I&, Program&) { route.ints[1] = bad; }));
    CHECK(wrong([bad](I&, I& moe, Program&) { moe.ints[1] = bad; }));
    CHECK(wrong([bad](I& route, I& moe, Program&) { route.ints[1] = moe.ints[1] = bad; }));
  }
  CHECK(wrong([](I& route, I&, Program&) { route.ints[1] = 3; }));  // more than the moe has places for
  CHECK(wrong([](I& route, I&, Program&) { route.ints[0] = 2; }));
  for (const int groups : {-1, 0, 4, 7}) CHECK(wrong([groups](I& route, I&, Program&) { route.ints[2] = groups; }));
  for (const int groups : {-1, 0, 2}) CHECK(wrong([groups](I& route, I&, Program&) { route.ints[3] = groups; }));
  CHECK(wrong([](I& route, I&, Program&) { route.constants[0] = 0; }));
  CHECK(!wrong([](I& route, I&, Program&) { route.constants[0] = 2; }));
  CHECK(wrong([](I& route, I&, Program&) { route.outputs[0] = 3; }));
  CHECK(wrong([](I& route, I&, Program&) { route.outputs[0] = 1; }));
  CHECK(wrong([](I& route, I&, Program&) { route.ints.pop_back(); }));
  for (const int act : {-1, 0, static_cast<int>(Act::swiglu_clamped) + 1}) CHECK(wrong([act](I&, I& moe, Program&) { moe.ints[0] = act; }));
  for (size_t i = 0; i < 3; ++i) {
    for (const int id : {-1, 0, 1, 5}) CHECK(wrong([i, id](I&, I& moe, Program&) { moe.weights[i] = id; }));
    for (const int id : {-2, 2, 3}) CHECK(wrong([i, id](I&, I& moe, Program&) { moe.constants[i] = id; }));
  }
  CHECK(wrong([](I&, I& moe, Program&) { std::swap(moe.weights[1], moe.weights[2]); }));
  CHECK(wrong([](I&, I& moe, Program&) { std::swap(moe.inputs[0], moe.inputs[1]); }));
  CHECK(wrong([](I&, I& moe, Program&) { moe.inputs[1] = 1; }));   // logits are no gates
  CHECK(wrong([](I&, I& moe, Program&) { moe.outputs[0] = 0; }));  // over x
  CHECK(wrong([](I&, I&, Program& p) { p.weights[2].n -= 1; }));
  CHECK(wrong([](I&, I&, Program& p) { p.weights[4].k += 1; }));
  CHECK(wrong([](I&, I&, Program& p) { p.weight_bytes[4] -= 1; }));
  CHECK(wrong([](I&, I&, Program& p) { p.values[2].columns = kExperts - 1; }));
  CHECK(wrong([](I&, I&, Program& p) { p.values[2].of_output_rows = true; }));
}

int main() {
  for (const Format format : {Format::f32, Format::f16, Format::bf16, Format::int8, Format::int4}) company_and_threads_change_no_bit(format);
  test::for_each_isa([](Isa isa) {
    routes_like_a_plain_computation(isa);
    strange_logits_choose_no_more(isa);
    clamps_as_defined(isa);
  });
  refuses_what_is_out_of_bounds();
  return test::report();
}
