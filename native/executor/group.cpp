#include "group.hpp"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#endif

namespace headrace {
namespace {

// About 50 microseconds, as a pool's threads spin.
constexpr int kSpins = 4000, kSpinsOversubscribed = 16;
constexpr int kLookMs = 20;  // so often who sleeps looks whether a rank is lost

inline void pause_briefly() {
#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Sleeps while the word is `old`, at most kLookMs.
void sleep_on(std::atomic<uint32_t>& word, uint32_t old) {
#ifdef __linux__
  const timespec limit{0, kLookMs * 1000000L};
  syscall(SYS_futex, &word, FUTEX_WAIT, old, &limit, nullptr, 0);
#else
  (void)word, (void)old;
  std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

void wake_all(std::atomic<uint32_t>& word) {
#ifdef __linux__
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

}  // namespace

Group::Group(uint8_t* memory, int64_t bytes, int rank, int ranks, int threads)
    : memory_(memory), rank_(rank), ranks_(ranks) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) {
    throw std::invalid_argument("there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  if (bytes < kHeaderBytes || reinterpret_cast<uintptr_t>(memory) % kLine != 0) {
    throw std::invalid_argument("a group's memory has a header of " + std::to_string(kHeaderBytes) + " bytes");
  }
  const bool oversubscribed = std::thread::hardware_concurrency() < static_cast<unsigned>(ranks * threads);
  spins_ = oversubscribed ? kSpinsOversubscribed : kSpins;
}

bool Group::meet() {
  const uint32_t mine = ++meetings_;
  Word& word = meetings_of(rank_);
  word.store(mine);
  if (sleepers().load() > 0) wake_all(word);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_ && !wait_for(rank, mine)) return false;
  }
  return lost().load() == 0;
}

bool Group::wait_for(int rank, uint32_t meetings) const {
  Word& word = meetings_of(rank);
  const auto has_come = [&](uint32_t seen) { return static_cast<int32_t>(seen - meetings) >= 0; };
  for (int spin = 0; spin < spins_; ++spin) {
    if (has_come(word.load(std::memory_order_acquire))) return true;
    pause_briefly();
  }
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    sleepers().fetch_add(1);
    const uint32_t seen = word.load();
    if (!has_come(seen) && lost().load() == 0) sleep_on(word, seen);
    sleepers().fetch_sub(1);
    if (has_come(word.load())) return true;
    if (lost().load() != 0) return false;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (waited.count() > kLongestWaitS) {
      lost().store(static_cast<uint32_t>(rank + 1));
      return false;
    }
  }
}

}  // namespace headrace
