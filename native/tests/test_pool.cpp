// The pool: every part runs once, phases order memory, many short runs, more threads than cores, narrow runs.
#include "../platform/pool.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "test.hpp"

using namespace headrace;

static void every_part_runs_once(int threads) {
  Pool pool(threads);
  CHECK(pool.threads() == threads);
  std::vector<int> counts(static_cast<size_t>(threads), 0);
  const int runs = threads > 8 ? 200 : 2000;
  for (int i = 0; i < runs; ++i) {
    pool.run([&](int part, int parts) {
      if (parts == threads) ++counts[static_cast<size_t>(part)];  // plain ints: run() must order them
    });
  }
  for (const int count : counts) CHECK(count == runs);
}

static void phases_order_memory(int threads) {
  Pool pool(threads);
  std::vector<int> values(static_cast<size_t>(threads), 0);
  std::vector<int> wrong(static_cast<size_t>(threads), 0);
  const int phases = threads > 8 ? 100 : 1000;
  for (int run = 0; run < 3; ++run) {
    pool.run_phases(phases, [&](int phase, int part, int parts) {
      const size_t mine = static_cast<size_t>(part), next = static_cast<size_t>((part + 1) % parts);
      if (phase % 2 == 0) values[mine] = run * phases + phase;
      if (phase % 2 == 1 && values[next] != run * phases + phase - 1) ++wrong[mine];
    });
  }
  for (const int count : wrong) CHECK(count == 0);
}

// A phase does not wait for a thread without work: while one is busy in a part, the others do all other parts.
static void a_late_thread_holds_nobody_up() {
  Pool pool(3);
  for (int i = 0; i < 50; ++i) {
    std::atomic<int> others{0};
    pool.run([&](int part, int) {
      if (part != 1) {
        others.fetch_add(1);
        return;
      }
      while (others.load() < 2) std::this_thread::yield();  // ends only if the other parts go on without it
    });
    CHECK(others.load() == 2);
  }
}

static void callers_take_turns() {
  Pool pool(2);
  int total = 0;
  const auto add_many = [&] {
    for (int i = 0; i < 500; ++i) {
      pool.run([&](int part, int) {
        if (part == 0) ++total;
      });
    }
  };
  std::thread other(add_many);
  add_many();
  other.join();
  CHECK(total == 1000);
}

static void wakes_after_sleep() {
  Pool pool(3);
  std::atomic<int> total{0};
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // long past the spinning: workers sleep
    pool.run([&](int, int) { total.fetch_add(1); });
  }
  CHECK(total.load() == 15);
}

// Whatever the width, every part runs once, phases order memory, and no thread beyond it takes a part.
static void width_limits_threads(int threads, int width) {
  Pool pool(threads);
  pool.set_width(width);
  CHECK(pool.width() == width);
  CHECK(pool.threads() == threads);
  std::mutex lock;
  std::set<std::thread::id> seen;
  std::vector<int> counts(static_cast<size_t>(threads), 0), wrong(static_cast<size_t>(threads), 0);
  const int phases = 200;
  pool.run_phases(phases, [&](int phase, int part, int parts) {
    CHECK(parts == threads);
    if (phase % 2 == 0) {  // reads what another part wrote in the phase before
      if (counts[static_cast<size_t>((part + 1) % parts)] != phase) ++wrong[static_cast<size_t>(part)];
      return;
    }
    counts[static_cast<size_t>(part)] = phase + 1;
    const std::lock_guard<std::mutex> guard(lock);
    seen.insert(std::this_thread::get_id());
  });
  for (const int count : counts) CHECK(count == phases);
  for (const int count : wrong) CHECK(count == 0);
  CHECK(static_cast<int>(seen.size()) <= width);
  if (width == 1) CHECK(seen.count(std::this_thread::get_id()) == 1);
}

static void width_changes_between_runs() {
  Pool pool(4);
  std::vector<int> counts(4, 0);
  for (int run = 0; run < 400; ++run) {
    pool.set_width(run % 6);  // 0 and 5 count as the nearest
    pool.run_phases(3, [&](int, int part, int) { ++counts[static_cast<size_t>(part)]; });
  }
  for (const int count : counts) CHECK(count == 1200);
  pool.set_width(2);  // ends with threads that wait for a width
}

// Threads that a narrow run left asleep compute again.
static void a_wider_pool_wakes_its_threads() {
  Pool pool(3);
  for (int i = 0; i < 5; ++i) {
    pool.set_width(1 + i % 2);
    pool.run([](int, int) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    pool.set_width(3);
    std::atomic<int> inside{0};
    pool.run([&](int, int) {
      ++inside;
      while (inside.load() < 3) std::this_thread::yield();  // ends only if three threads take part
    });
    CHECK(inside.load() == 3);
  }
}

static void refuses_bad_sizes() {
  for (const int threads : {0, -1, Pool::kMaxThreads + 1}) {
    bool refused = false;
    try {
      Pool pool(threads);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

int main() {
  for (const int threads : {1, 2, 3, 16}) {
    every_part_runs_once(threads);
    phases_order_memory(threads);
  }
  a_late_thread_holds_nobody_up();
  callers_take_turns();
  wakes_after_sleep();
  for (const int width : {1, 2, 3, 4}) width_limits_threads(4, width);
  width_changes_between_runs();
  a_wider_pool_wakes_its_threads();
  refuses_bad_sizes();
  return test::report();
}
