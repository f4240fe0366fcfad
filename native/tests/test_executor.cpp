// A small program on the executor: the same bits with any number of threads (under TSan also: no
// barrier is missing), poison, and steps and programs that are refused.
#include "../executor/executor.hpp"

#include <cmath>
#include <stdexcept>
#include <vector>

#include "test.hpp"

using namespace headrace;

constexpr int kColumns = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kVocabulary = 50, kMaxTokens = 40, kPages = 6;

// One decoder block: embed, q k v, attention, output with residual, gated MLP, gather, head.
struct World {
  std::vector<Buffer> buffers;
  std::vector<float> norm, inv_freq;
  Program program;

  explicit World(Format format) {
    test::Random random(3);
    for (int i = 0; i < kColumns; ++i) norm.push_back(random.normal());
    for (int i = 0; i < kHeadDim / 2; ++i) inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / kHeadDim));
    for (const int64_t n : {kVocabulary, kHeads * kHeadDim, kKvHeads * kHeadDim, kKvHeads * kHeadDim, kColumns, 2 * kColumns, 2 * kColumns}) {
      add_weight(format, n, kColumns, random);
    }
    add_weight(format, kColumns, 2 * kColumns, random);
    program.constants = {{norm.data(), kColumns}, {inv_freq.data(), kHeadDim / 2}};
    const int64_t kv_bytes = int64_t{kPages} * kKvHeads * kPageTokens * kHeadDim * 2;
    program.kv = {{KvType::bf16, kKvHeads, kHeadDim, memory(kv_bytes), memory(kv_bytes)}};
    program.kv_bytes = {{kv_bytes, kv_bytes}};
    program.max_tokens = program.max_rows = kMaxTokens;
    for (const int64_t columns : {kColumns, kHeads * kHeadDim, kKvHeads * kHeadDim, kKvHeads * kHeadDim, kHeads * kHeadDim, kColumns, 2 * kColumns, kColumns}) {
      add_value(false, columns);
    }
    add_value(true, kColumns);
    add_value(true, kVocabulary);
    program.arena = memory(program.arena_bytes);
    add("embed", {}, {0}, {0}, {}, {}, {});
    add("fused_linear", {0, -1}, {1, 2, 3}, {1, 2, 3}, {0, -1, -1, -1}, {0}, {1e-5f});
    add("rope_kv_write", {1, 2, 3}, {4}, {}, {1, -1, -1}, {0, kHeads, kHeadDim}, {1e-6f, 1.0f});
    program.values[4].offset = program.values[1].offset;  // in place
    add("attend", {4, -1, -1}, {5}, {}, {-1, -1}, {0, kHeads, 0, kHeadDim, 0, 0}, {0.25f, 0.0f});
    add("fused_linear", {5, 0}, {7}, {4}, {-1, -1}, {0}, {0.0f});
    add("fused_linear", {7, -1}, {6}, {5, 6}, {0, -1, -1}, {1}, {1e-5f});
    program.values.push_back(program.values[7]);  // value 10: the sum, over what it is added to
    add("fused_linear", {6, 7}, {10}, {7}, {-1, -1}, {0}, {0.0f});
    add("gather", {10}, {8}, {}, {}, {}, {});
    add("fused_linear", {8, -1}, {9}, {0}, {0, -1}, {0}, {1e-5f});
  }

  uint8_t* memory(int64_t bytes) { return buffers.emplace_back(static_cast<size_t>(bytes)).data(); }
  void add_weight(Format format, int64_t n, int64_t k, test::Random& random) {
    std::vector<float> source(static_cast<size_t>(n * k));
    for (float& x : source) x = random.normal() / std::sqrt(static_cast<float>(k));
    const int64_t bytes = static_cast<int64_t>(packed_bytes(format, n, k));
    uint8_t* data = memory(bytes);
    CHECK(linear_kernels(active_isa()).pack(format, Format::f32, source.data(), n, k, 0, (n + kPanel - 1) / kPanel, data) == -1);
    program.weights.push_back({format, n, k, data});
    program.weight_bytes.push_back(bytes);
  }
  void add_value(bool of_output_rows, int64_t columns) {
    program.values.push_back({of_output_rows, columns, program.arena_bytes});
    program.arena_bytes = program.end_of(program.values.back());
  }
  void add(const char* name, std::vector<int> inputs, std::vector<int> outputs, std::vector<int> weights,
           std::vector<int> constants, std::vector<int> ints, std::vector<float> floats) {
    program.instructions.push_back({name, std::move(inputs), std::move(outputs), std::move(weights), std::move(constants), std::move(ints), std::move(floats)});
  }
};

// Tokens [begin, end) of one sequence in pages 4, 1, 3.
struct Input {
  std::vector<int32_t> tokens, positions, slots, starts, lengths, table{4, 1, 3}, rows;
  int32_t slot = 0;
  Step step;
  Input(int32_t begin, int32_t end) : starts{0, end - begin}, lengths{end} {
    for (int32_t p = begin; p < end; ++p) {
      tokens.push_back(p * 7 % kVocabulary);
      positions.push_back(p);
      slots.push_back(table[static_cast<size_t>(p / kPageTokens)] * kPageTokens + p % kPageTokens);
      rows.push_back(p - begin);
    }
    step = {end - begin, 1, end - begin, 3, tokens.data(), positions.data(), slots.data(), starts.data(), lengths.data(), table.data(), rows.data(), &slot};
  }
};

static std::vector<float> logits(Format format, int threads, int32_t chunk, bool poison) {
  World world(format);
  Pool pool(threads);
  Executor executor(pool, world.program, poison);
  std::vector<float> result;
  for (int32_t begin = 0; begin < kMaxTokens; begin += chunk) {
    const Input input(begin, begin + chunk);
    executor.run(input.step);
    const float* y = executor.value(9);
    result.insert(result.end(), y, y + chunk * kVocabulary);
    CHECK(std::isnan(executor.value(6)[0]) == poison);  // dead after the second product of the MLP
  }
  return result;
}

static void threads_and_chunks_change_no_bit(Format format) {
  const std::vector<float> expected = logits(format, 1, kMaxTokens, true);
  bool finite = true;
  for (const float x : expected) finite = finite && std::isfinite(x);
  CHECK(finite);
  for (const int threads : {1, 2, 5}) {
    for (const int32_t chunk : {1, 8, kMaxTokens}) {
      const std::vector<float> got = logits(format, threads, chunk, threads == 2);
      CHECK(got.size() == expected.size() && test::same_bits(got.data(), expected.data(), got.size()));
    }
  }
}

template <class F>
static bool refused(F&& f) {
  try {
    f();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

static void refuses_what_is_out_of_bounds() {
  World world(Format::f32);
  Pool pool(1);
  Executor executor(pool, world.program, false);
  const auto wrong = [&](auto change) {
    Input input(0, 20);
    change(input);
    return refused([&] { executor.run(input.step); });
  };
  CHECK(!wrong([](Input&) {}));
  CHECK(wrong([](Input& i) { i.tokens[19] = kVocabulary; }));
  CHECK(wrong([](Input& i) { i.slots[0] = kPages * kPageTokens; }));
  CHECK(wrong([](Input& i) { i.table[1] = kPages; }));
  CHECK(!wrong([](Input& i) { i.table[2] = 99; }));  // beyond the sequence's pages: never followed
  CHECK(wrong([](Input& i) { i.lengths[0] = 49; }));
  CHECK(wrong([](Input& i) { i.positions[3] = 20; }));
  CHECK(wrong([](Input& i) { i.rows[0] = 20; }));
  CHECK(wrong([](Input& i) { i.step.T = kMaxTokens + 1; }));
  const auto wrong_program = [&](auto change) {
    Program program = world.program;
    change(program);
    return refused([&] { Executor other(pool, program, false); });
  };
  CHECK(wrong_program([](Program& p) { p.arena_bytes -= 4; }));
  CHECK(wrong_program([](Program& p) { p.weight_bytes[3] -= 1; }));
  CHECK(wrong_program([](Program& p) { p.values[5].offset = p.values[4].offset + 64; }));
  CHECK(wrong_program([](Program& p) { p.instructions[6].inputs[1] = 6; }));
  CHECK(wrong_program([](Program& p) { p.kv_bytes[0].second -= 2; }));
}

int main() {
  for (const Format format : {Format::f32, Format::bf16, Format::int8, Format::int4}) threads_and_chunks_change_no_bit(format);
  refuses_what_is_out_of_bounds();
  return test::report();
}
