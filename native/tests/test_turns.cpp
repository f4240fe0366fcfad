// Turns of several threads: one computes at a time. Processes and deaths: tests/native/test_turns.py.
#include "../turns/turns.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "test.hpp"

#ifdef __linux__

using headrace::TurnAsk;
using headrace::Turns;

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

void spin(int microseconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
  while (std::chrono::steady_clock::now() < until) {
  }
}

void one_at_a_time() {
  Turns turns(-1);
  std::atomic<int> inside{0}, worst{0}, rounds{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const int slot = turns.join(1.0 + thread);
      for (int round = 0; round < 200; ++round) {
        turns.begin(slot, TurnAsk{thread % 3, kNever, 0});
        worst = std::max(worst.load(), ++inside);
        spin(20);
        --inside;
        ++rounds;
        turns.end(slot, round % 7 != 0);
      }
      turns.leave(slot);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(worst == 1);
  CHECK(rounds == 800);
  CHECK(turns.members().empty());
}

}  // namespace

#endif

int main() {
#ifdef __linux__
  one_at_a_time();
#endif
  return headrace::test::report();
}
