// One persistent pool of threads: run(f) calls f(part, parts) on all of them, the caller being part 0.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace headrace {

// Threads spin for a short while and then sleep in the kernel, so that a step's barriers cost well
// under a microsecond, an idle server costs nothing, and more threads than cores still make progress.
// Calls of run() from several threads take turns. f must not throw and must not call run().
class Pool {
 public:
  explicit Pool(int threads);  // std::invalid_argument unless 1 <= threads <= kMaxThreads
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // f(int part, int parts) on every thread; returns when all are done.
  template <class F>
  void run(F&& f) {
    using Callable = std::remove_reference_t<F>;
    run_job([](void* context, int part, int parts) { (*static_cast<Callable*>(context))(part, parts); },
            const_cast<void*>(static_cast<const void*>(&f)));
  }

  // Inside run() only, and by every part equally often: nobody passes before all have arrived, and
  // what anybody wrote before it is seen by everybody after it.
  void barrier();

  static constexpr int kMaxThreads = 1024;

 private:
  using Job = void (*)(void* context, int part, int parts);
  void run_job(Job job, void* context);
  void work(int part);
  void wait_for_change(const std::atomic<uint32_t>& word, uint32_t old) const;

  // Separate cache lines: everybody writes arrived_ while everybody polls generation_.
  alignas(64) std::atomic<uint32_t> epoch_{0};       // counts jobs
  alignas(64) std::atomic<uint32_t> arrived_{0};     // at the present barrier
  alignas(64) std::atomic<uint32_t> generation_{0};  // counts barriers passed
  alignas(64) Job job_ = nullptr;                    // null: stop
  void* context_ = nullptr;
  int threads_;
  int spins_;
  std::mutex turn_;
  std::vector<std::thread> workers_;
};

}  // namespace headrace
