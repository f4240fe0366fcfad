#include "limits.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../kernels/peaks.hpp"
#include "../kernels/rows.hpp"
#include "memory.hpp"

namespace headrace {
namespace {

// Bytes that a reader fetches ahead. Which is best differs: 1,024 reads a fourth more than 4,096 on a Xeon.
constexpr size_t kFetchedAhead[] = {512, 1024, 4096};

}  // namespace

double read_bandwidth(Pool& pool, size_t bytes, int repeats) {
  if (bytes < 4096 || repeats < 1) {
    throw std::invalid_argument("read_bandwidth needs at least 4096 bytes and one repeat");
  }
  const RowsKernels& kernels = rows_kernels(active_isa());
  const Buffer buffer(bytes);
  std::atomic<uint64_t> sink{0};  // what is read must be used
  const auto share = [&](int part, int parts) {
    const size_t begin = bytes * static_cast<size_t>(part) / static_cast<size_t>(parts) / 64 * 64;
    const size_t end = bytes * static_cast<size_t>(part + 1) / static_cast<size_t>(parts) / 64 * 64;
    return std::pair<uint8_t*, size_t>(buffer.data() + begin, end - begin);
  };
  pool.run([&](int part, int parts) {
    const auto [data, count] = share(part, parts);
    std::memset(data, part + 1, count);
  });
  const auto pass = [&](size_t ahead) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int part, int parts) {
      const auto [data, count] = share(part, parts);
      sink.fetch_add(kernels.read(data, count, ahead), std::memory_order_relaxed);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return static_cast<double>(bytes) / seconds.count();
  };
  size_t best_ahead = 0;
  double best = 0;
  for (const size_t ahead : kFetchedAhead) {
    const double speed = std::max(pass(ahead), pass(ahead));
    if (speed > best) best = speed, best_ahead = ahead;
  }
  std::vector<double> speeds;
  for (int repeat = 0; repeat < repeats; ++repeat) speeds.push_back(pass(best_ahead));
  std::nth_element(speeds.begin(), speeds.begin() + repeats / 2, speeds.end());
  return speeds[static_cast<size_t>(repeats / 2)];
}

Peaks compute_peaks(Pool& pool, int64_t rounds, int repeats) {
  if (rounds < 1 || repeats < 1) throw std::invalid_argument("compute_peaks needs at least one round and one repeat");
  const PeaksKernels& kernels = peaks_kernels(active_isa());
  const auto measure = [&](float (*loop)(int64_t), int64_t operations) {
    if (loop == nullptr) return 0.0;
    std::atomic<int64_t> sink{0};  // what is computed must be used
    double best = 0;  // slower ones shared their cores with other programs
    for (int repeat = 0; repeat < repeats; ++repeat) {
      std::atomic<int> threads{0};
      const auto start = std::chrono::steady_clock::now();
      pool.run([&](int, int parts) {
        threads.store(parts, std::memory_order_relaxed);
        sink.fetch_add(static_cast<int64_t>(loop(rounds)), std::memory_order_relaxed);
      });
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::max(best, static_cast<double>(rounds * operations) * threads.load() / seconds.count());
    }
    return best;
  };
  return {measure(kernels.f32, kernels.f32_operations), measure(kernels.bf16, kernels.bf16_operations),
          measure(kernels.int8, kernels.int8_operations), measure(kernels.matrix_bf16, kernels.matrix_bf16_operations),
          measure(kernels.matrix_int8, kernels.matrix_int8_operations)};
}

}  // namespace headrace
