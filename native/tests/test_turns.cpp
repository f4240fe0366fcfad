// Turns of several threads: they compute on disjoint parts of the cores. Processes and deaths: tests/native/test_turns.py.
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

// Of loops that ask for all cores, one computes at a time; of others, no more than there are cores.
void cores_are_disjoint(int cores, bool whole) {
  Turns turns(-1, cores);
  CHECK(turns.cores() == cores);
  std::atomic<int> inside{0}, worst{0}, together{0}, members{0}, rounds{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const int slot = turns.join(1.0 + thread);
      for (int round = 0; round < 200; ++round) {
        turns.begin(slot, TurnAsk{thread % 3, kNever, 0, whole});
        const int held = turns.held(slot);
        CHECK(held >= 1 && held <= cores);
        worst = std::max(worst.load(), inside += held);
        together = std::max(together.load(), ++members);
        spin(20);
        --members;
        inside -= held;
        ++rounds;
        turns.end(slot, round % 7 != 0);
      }
      turns.leave(slot);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(worst <= cores);
  CHECK(rounds == 800);
  if (whole) CHECK(together == 1);
  CHECK(turns.members().empty());
}

// Who is alone has all cores that it can use; who comes meanwhile takes its part when the first asks again.
void parts_follow_who_wants_them() {
  Turns turns(-1, 4);
  const int first = turns.join(1.0);
  const TurnAsk ask{1, kNever, 0, false};
  CHECK(turns.begin(first, ask) == 0.0);
  CHECK(turns.held(first) == 4);
  std::atomic<int> second_held{0};
  std::atomic<bool> done{false};
  std::thread other([&] {
    const int second = turns.join(1.0, 3);
    turns.begin(second, ask);
    second_held = turns.held(second);
    while (!done.load()) std::this_thread::yield();
    turns.end(second, false);
    turns.leave(second);
  });
  while (!turns.contended(0.0)) std::this_thread::yield();
  turns.end(first, true);
  while (second_held.load() == 0) std::this_thread::yield();
  CHECK(second_held == 2);
  CHECK(turns.begin(first, ask) == 0.0);
  CHECK(turns.held(first) == 2);
  CHECK(!turns.contended(0.0));
  done = true;
  other.join();
  turns.end(first, true);
  CHECK(turns.try_begin(first, ask));
  CHECK(turns.held(first) == 4);
  turns.leave(first);
}

// Who wants all cores is not overtaken by those that want a part, as long as it is the first.
void the_whole_comes_in_its_turn() {
  Turns turns(-1, 2);
  const int small = turns.join(1.0);
  turns.begin(small, TurnAsk{2, kNever, 0, false});
  std::atomic<bool> had{false};
  std::thread large([&] {
    const int slot = turns.join(1.0);
    turns.begin(slot, TurnAsk{0, kNever, 0, true});
    CHECK(turns.held(slot) == 2);
    had = true;
    turns.end(slot, false);
    turns.leave(slot);
  });
  while (!turns.contended(0.0)) std::this_thread::yield();
  std::thread late([&] {
    const int slot = turns.join(1.0);
    CHECK(!turns.try_begin(slot, TurnAsk{2, kNever, 0, false}) || had.load());
    turns.leave(slot);
  });
  late.join();
  turns.end(small, false);
  large.join();
  CHECK(had.load());
  turns.leave(small);
}

// Who is behind waits for all of its part, rounded up; who is not takes what is free.
void who_is_behind_waits_for_its_part() {
  Turns turns(-1, 2);
  const int large = turns.join(2.0), small = turns.join(1.0);  // 4/3 and 2/3 of the cores
  const TurnAsk ask{1, kNever, 0, false};
  CHECK(turns.try_begin(small, ask));
  spin(60000);
  turns.end(small, true);
  CHECK(turns.try_begin(large, ask));
  CHECK(turns.held(large) == 2);
  turns.end(large, true);
  CHECK(turns.try_begin(small, ask));
  CHECK(!turns.try_begin(large, ask));
  turns.end(small, true);
  CHECK(turns.try_begin(large, ask));
  CHECK(turns.held(large) == 2);
  spin(150000);  // now it is ahead
  turns.end(large, true);
  CHECK(turns.try_begin(small, ask));
  CHECK(turns.try_begin(large, ask) == (turns.held(small) == 1));
  turns.leave(small);
  turns.leave(large);
}

}  // namespace

#endif

int main() {
#ifdef __linux__
  for (const int cores : {1, 2, 3, 8}) {
    cores_are_disjoint(cores, true);
    cores_are_disjoint(cores, false);
  }
  parts_follow_who_wants_them();
  the_whole_comes_in_its_turn();
  who_is_behind_waits_for_its_part();
#endif
  return headrace::test::report();
}
