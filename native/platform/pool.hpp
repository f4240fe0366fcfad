// One persistent pool of threads: run(f) calls f(part, parts) for every part once, run_phases in phases.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace headrace {

// There are as many parts as threads, and part i belongs to thread i. A thread without work left takes a part that no
// thread has begun (work stealing). So a phase never waits for a thread that the system has not scheduled, only for one in
// the middle of a part. On a busy machine a fixed assignment with a barrier of all threads was measured up to 50 times
// slower. Which thread computes a part never changes its result.
//
// Threads spin for a short while and then sleep in the kernel: phases follow each other within a
// microsecond, an idle server costs nothing, and more threads than cores still make progress.
// A pool can be narrowed to fewer threads than it has (`set_width`). The parts stay as many, so that results are the
// same to the bit: those of the threads that take none are computed by the others.
//
// Calls from several threads are serialized. f must not throw and must not call the pool.
class Pool {
 public:
  explicit Pool(int threads);  // std::invalid_argument unless 1 <= threads <= kMaxThreads
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // From the next run on `width` threads compute: 1 to threads(), others count as the nearest. With 1 the caller does
  // everything, and wakes nobody.
  void set_width(int width);
  int width() const { return width_.load(std::memory_order_relaxed); }

  // f(int part, int parts), each part once; returns when all are done.
  template <class F>
  void run(F&& f) {
    run_phases(1, [&f](int, int part, int parts) { f(part, parts); });
  }

  // f(int phase, int part, int parts): all parts of a phase have ended, and what they wrote is seen,
  // before a part of the next one begins.
  template <class F>
  void run_phases(int phases, F&& f) {
    using Callable = std::remove_reference_t<F>;
    run_job([](void* context, int phase, int part, int parts) {
              (*static_cast<Callable*>(context))(phase, part, parts);
            },
            const_cast<void*>(static_cast<const void*>(&f)), phases);
  }

  static constexpr int kMaxThreads = 1024;

 private:
  using Job = void (*)(void* context, int phase, int part, int parts);
  struct alignas(64) Claim {
    std::atomic<uint32_t> phase{0};  // the last phase in which this part was begun
  };

  void run_job(Job job, void* context, int phases);
  void work(int thread);
  bool take_parts(int thread, uint32_t phase);
  void finish_part(uint32_t phase);
  void wait_for_change(uint32_t old) const;

  // Counts phases over all jobs: odd while one is open, even when there is no work. It may wrap.
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<uint32_t> done_{0};  // parts of the open phase that have ended
  std::unique_ptr<Claim[]> claims_;            // by part
  // Of the open job; only read by who has claimed one of its parts, which keeps it open.
  Job job_ = nullptr;
  void* context_ = nullptr;
  uint32_t first_ = 0, last_ = 0;  // its phases, as phase_ counts them
  std::atomic<bool> stopping_{false};
  std::atomic<int> width_;  // threads from this one on wait until it changes
  int threads_;
  int spins_;
  std::mutex turn_;
  std::vector<std::thread> workers_;
};

}  // namespace headrace
