#include "pool.hpp"

#include <stdexcept>
#include <string>

#ifdef __linux__
#include <sched.h>
#endif

namespace headrace {
namespace {

inline void pause_briefly() {
#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

int available_cores() {
#ifdef __linux__
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

// About 50 microseconds: longer than the imbalance of a kernel, shorter than anybody notices. With
// more threads than cores a spinning thread only keeps the one it waits for from running.
constexpr int kSpins = 4000;
constexpr int kSpinsOversubscribed = 16;

}  // namespace

Pool::Pool(int threads) : threads_(threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("a pool has 1 to " + std::to_string(kMaxThreads) + " threads, not " +
                                std::to_string(threads));
  }
  spins_ = threads <= available_cores() ? kSpins : kSpinsOversubscribed;
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int part = 1; part < threads; ++part) workers_.emplace_back([this, part] { work(part); });
}

Pool::~Pool() {
  job_ = nullptr;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::wait_for_change(const std::atomic<uint32_t>& word, uint32_t old) const {
  for (int spin = 0; spin < spins_; ++spin) {
    if (word.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  word.wait(old, std::memory_order_acquire);
}

void Pool::run_job(Job job, void* context) {
  const std::lock_guard<std::mutex> turn(turn_);
  if (threads_ == 1) {
    job(context, 0, 1);
    return;
  }
  job_ = job;
  context_ = context;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  job(context, 0, threads_);
  barrier();
}

void Pool::work(int part) {
  uint32_t seen = 0;
  while (true) {
    wait_for_change(epoch_, seen);
    ++seen;  // the next job starts only after this thread has reached this one's last barrier
    if (job_ == nullptr) return;
    job_(context_, part, threads_);
    barrier();
  }
}

void Pool::barrier() {
  if (threads_ == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(threads_)) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  } else {
    wait_for_change(generation_, generation);
  }
}

}  // namespace headrace
