// Ranks of a group, as threads: they meet, a lost one ends the waiting, and shares of a program give the bits of the whole.
#include "../executor/executor.hpp"

#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "test.hpp"

using namespace headrace;

constexpr int kWidth = 64, kVocabulary = 70, kMaxTokens = 12;
constexpr int64_t kScratchBytes = 1 << 16, kMemoryBytes = Group::kHeaderBytes + 3 * kMaxTokens * kWidth * 4 + kScratchBytes;

static void on_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

static void what_was_written_before_a_meeting_is_seen_after_it() {
  constexpr int kRanks = 3, kRounds = 300;
  const Buffer memory(Group::kHeaderBytes + kRanks * sizeof(int));
  on_threads(kRanks, [&](int rank) {
    Group group(memory.data(), static_cast<int64_t>(memory.bytes()), rank, kRanks, 1);
    int* counts = reinterpret_cast<int*>(group.arena());
    for (int round = 1; round <= kRounds; ++round) {
      counts[rank] = round;
      CHECK(group.meet());
      for (int other = 0; other < kRanks; ++other) CHECK(counts[other] == round);
      CHECK(group.meet());
    }
  });
}

static void nobody_waits_for_a_lost_rank() {
  const Buffer memory(Group::kHeaderBytes);
  Group group(memory.data(), Group::kHeaderBytes, 0, 2, 1);
  std::thread keeper([&] { reinterpret_cast<std::atomic<uint32_t>*>(memory.data())->store(1); });
  CHECK(!group.meet());
  CHECK(!group.meet());
  keeper.join();
}

// Embeds tokens, and twice multiplies: x W, then that times V, plus x. A rank of two has the rows `first`.. of each matrix.
struct World {
  std::vector<Buffer> buffers;
  Program program;

  World(Format format, int rank, int ranks, Group* group) {
    const int64_t first = rank == 0 ? 0 : 32, width = ranks == 1 ? kWidth : 32;
    const int64_t table = rank == 0 ? 0 : 32, rows = ranks == 1 ? kVocabulary : (rank == 0 ? 32 : kVocabulary - 32);
    add_weight(format, 1, table, rows);
    add_weight(format, 2, first, width);
    add_weight(format, 3, first, width);
    program.max_tokens = program.max_rows = kMaxTokens;
    program.group = group;
    if (ranks == 1) {
      for (int i = 0; i < 3; ++i) add_value(kWidth, false);
      add_steps(0, 0, 1, 1, 2);
      return;
    }
    for (const int64_t columns : {int64_t{kWidth}, width, width, width}) add_value(columns, false);  // own x, its slice, y, z
    for (int i = 0; i < 3; ++i) add_value(kWidth, true);                                             // x, y, z of all
    add_steps(0, 4, 2, 5, 3);
    program.instructions[2].inputs[1] = 1;
    program.exchanges = {{0, 0, 4, 0}, {0, 4, 1, first}, {1, 2, 5, first}, {2, 3, 6, first}};
    program.table_shares = {{0, table, kVocabulary}};
    program.shared_scratch = group->arena() + program.shared_bytes;
    program.shared_scratch_bytes = kScratchBytes;
  }

  void add_steps(int embedded, int x, int y, int whole_y, int z) {
    program.instructions.push_back({"embed", {}, {embedded}, {0}, {}, {}, {}});
    program.instructions.push_back({"fused_linear", {x, -1}, {y}, {1}, {-1, -1}, {0}, {0.0f}});
    program.instructions.push_back({"fused_linear", {whole_y, x}, {z}, {2}, {-1, -1}, {0}, {0.0f}});
    program.arena = buffers.emplace_back(static_cast<size_t>(program.arena_bytes)).data();
  }
  void add_value(int64_t columns, bool shared) {
    int64_t& end = shared ? program.shared_bytes : program.arena_bytes;
    program.values.push_back({false, columns, end, shared});
    end = program.end_of(program.values.back());
  }
  void add_weight(Format format, uint64_t seed, int64_t first, int64_t n) {
    test::Random random(seed);
    std::vector<float> all(static_cast<size_t>(kVocabulary * kWidth));
    for (float& x : all) x = random.normal() / 8;
    const int64_t bytes = static_cast<int64_t>(packed_bytes(format, n, kWidth));
    uint8_t* data = buffers.emplace_back(static_cast<size_t>(bytes)).data();
    CHECK(linear_kernels(active_isa()).pack(format, Format::f32, all.data() + first * kWidth, n, kWidth, 0, (n + kPanel - 1) / kPanel, data) == -1);
    program.weights.push_back({format, n, kWidth, data});
    program.weight_bytes.push_back(bytes);
  }
};

struct Input {
  std::vector<int32_t> tokens;
  Step step;
  Input(int32_t count, int32_t from) {
    for (int32_t i = 0; i < count; ++i) tokens.push_back((from + 23 * i) % kVocabulary);
    step.T = count;
    step.tokens = tokens.data();
  }
};

static void shares_give_the_bits_of_the_whole(Format format, int threads) {
  constexpr int kSteps = 20;
  const Buffer memory(kMemoryBytes);
  std::vector<std::vector<float>> expected;
  World whole(format, 0, 1, nullptr);
  Pool pool(1);
  Executor alone(pool, whole.program, false);
  for (int i = 0; i < kSteps; ++i) {
    const Input input(1 + i * 5 % kMaxTokens, i);
    alone.run(input.step);
    expected.emplace_back(alone.value(2), alone.value(2) + input.step.T * kWidth);
  }
  on_threads(2, [&](int rank) {
    Group group(memory.data(), static_cast<int64_t>(memory.bytes()), rank, 2, threads);
    World world(format, rank, 2, &group);
    Pool own(threads);
    Executor executor(own, world.program, false);
    for (int i = 0; i < kSteps; ++i) {
      const Input input(1 + i * 5 % kMaxTokens, i);
      executor.run(input.step);
      // The first rank reads a result until it asks for the next step.
      if (rank == 0) CHECK(test::same_bits(executor.value(6), expected[static_cast<size_t>(i)].data(), expected[static_cast<size_t>(i)].size()));
      CHECK(group.meet());
    }
  });
}

static void refuses_what_is_no_share() {
  const Buffer memory(kMemoryBytes);
  Pool pool(1);
  const auto refused = [&](auto change) {
    Group group(memory.data(), static_cast<int64_t>(memory.bytes()), 0, 2, 1);
    World world(Format::f32, 0, 2, &group);
    change(world.program);
    try {
      Executor executor(pool, world.program, false);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(!refused([](Program&) {}));
  CHECK(refused([](Program& p) { p.exchanges[2].first = 33; }));
  CHECK(refused([](Program& p) { p.exchanges[1].first = -1; }));
  CHECK(refused([](Program& p) { p.exchanges[0].instruction = 1; }));
  CHECK(refused([](Program& p) { p.exchanges[3].to = 7; }));
  CHECK(refused([](Program& p) { p.exchanges[2].to = 3; }));
  CHECK(refused([](Program& p) { p.exchanges.pop_back(), p.instructions[2].outputs[0] = 6; }));
  CHECK(refused([](Program& p) { p.table_shares[0].first = kVocabulary; }));
  CHECK(refused([](Program& p) { p.shared_bytes -= 4; }));
  CHECK(refused([](Program& p) { p.shared_scratch_bytes = 64; }));
  CHECK(refused([](Program& p) { p.group = nullptr; }));
}

int main() {
  what_was_written_before_a_meeting_is_seen_after_it();
  nobody_waits_for_a_lost_rank();
  for (const Format format : {Format::f32, Format::bf16, Format::int8, Format::int4}) {
    for (const int threads : {1, 3}) shares_give_the_bits_of_the_whole(format, threads);
  }
  refuses_what_is_no_share();
  return test::report();
}
