#include "pool.hpp"

#include <algorithm>
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

Pool::Pool(int threads) : width_(threads), threads_(threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("a pool has 1 to " + std::to_string(kMaxThreads) + " threads, not " +
                                std::to_string(threads));
  }
  claims_ = std::make_unique<Claim[]>(static_cast<size_t>(threads));
  spins_ = threads <= available_cores() ? kSpins : kSpinsOversubscribed;
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

Pool::~Pool() {
  stopping_.store(true, std::memory_order_relaxed);
  width_.store(kMaxThreads + 1, std::memory_order_release);
  width_.notify_all();
  phase_.fetch_add(2, std::memory_order_release);  // stays even: no work
  phase_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::set_width(int width) {
  const std::lock_guard<std::mutex> turn(turn_);
  const int wanted = std::clamp(width, 1, threads_);
  const int before = width_.load(std::memory_order_relaxed);
  if (wanted == before) return;
  width_.store(wanted, std::memory_order_release);
  if (wanted > before) width_.notify_all();
}

void Pool::run_job(Job job, void* context, int phases) {
  const std::lock_guard<std::mutex> turn(turn_);
  if (phases < 1) return;
  if (width() == 1) {
    for (int phase = 0; phase < phases; ++phase) {
      for (int part = 0; part < threads_; ++part) job(context, phase, part, threads_);
    }
    return;
  }
  job_ = job;
  context_ = context;
  first_ = phase_.load(std::memory_order_relaxed) + 1;
  last_ = first_ + 2 * (static_cast<uint32_t>(phases) - 1);
  phase_.store(first_, std::memory_order_release);
  phase_.notify_all();
  for (uint32_t phase = first_; phase & 1; phase = phase_.load(std::memory_order_acquire)) {
    if (!take_parts(0, phase)) wait_for_change(phase);
  }
}

void Pool::work(int thread) {
  for (;;) {
    // In this order: `stopping_` was set before the last change of phase_. In the other order, a thread that the
    // destructor overtakes between the two reads would wait for ever for another change.
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    // Who has seen a phase sees the width that was set before it, so no thread beyond it takes a part.
    const int width = width_.load(std::memory_order_acquire);
    if (thread >= width) {
      width_.wait(width, std::memory_order_acquire);
      continue;
    }
    if (!(phase & 1) || !take_parts(thread, phase)) wait_for_change(phase);
  }
}

// Runs its own part, then parts of others that no thread has begun. False if there was none.
bool Pool::take_parts(int thread, uint32_t phase) {
  bool found = false;
  for (int i = 0; i < threads_; ++i) {
    const int part = (thread + i) % threads_;
    std::atomic<uint32_t>& claim = claims_[static_cast<size_t>(part)].phase;
    uint32_t before = claim.load(std::memory_order_relaxed);
    // A phase ends only after every part of it was claimed. So a claim that is still older than `phase` means
    // that the phase is open, and taking it keeps the phase, and with it the job, open until the part is done.
    if (static_cast<int32_t>(before - phase) >= 0) continue;
    if (!claim.compare_exchange_strong(before, phase, std::memory_order_acq_rel)) continue;
    job_(context_, static_cast<int>((phase - first_) / 2), part, threads_);
    finish_part(phase);
    found = true;
  }
  return found;
}

void Pool::finish_part(uint32_t phase) {
  const bool is_last_phase = phase == last_;  // read before the last part ends, and with it perhaps the job
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 != static_cast<uint32_t>(threads_)) return;
  done_.store(0, std::memory_order_relaxed);
  phase_.store(phase + (is_last_phase ? 1 : 2), std::memory_order_release);
  phase_.notify_all();
}

void Pool::wait_for_change(uint32_t old) const {
  for (int spin = 0; spin < spins_; ++spin) {
    if (phase_.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  phase_.wait(old, std::memory_order_acquire);
}

}  // namespace headrace
