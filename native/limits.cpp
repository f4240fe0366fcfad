#include "limits.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/rows.hpp"
#include "memory.hpp"

namespace headrace {

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
  std::vector<double> speeds;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int part, int parts) {
      const auto [data, count] = share(part, parts);
      sink.fetch_add(kernels.read(data, count), std::memory_order_relaxed);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    speeds.push_back(static_cast<double>(bytes) / seconds.count());
  }
  std::nth_element(speeds.begin(), speeds.begin() + repeats / 2, speeds.end());
  return speeds[static_cast<size_t>(repeats / 2)];
}

}  // namespace headrace
