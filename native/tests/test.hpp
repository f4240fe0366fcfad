// A few lines of test harness: CHECK records a failure and goes on, report() is main's return value.
#pragma once
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "../platform/isa.hpp"

namespace headrace::test {

inline std::atomic<int> failures{0};  // threads check too
inline std::atomic<int> checks{0};
inline const char* context = "";  // printed with failures, e.g. the ISA under test

inline void check(bool good, const char* what, const char* file, int line) {
  ++checks;
  if (good) return;
  if (++failures <= 50) std::fprintf(stderr, "%s:%d: [%s] failed: %s\n", file, line, context, what);
}

inline void check_near(double got, double expected, double tolerance, const char* what, const char* file, int line) {
  ++checks;
  if (std::fabs(got - expected) <= tolerance) return;  // false for NaN
  if (++failures <= 50) {
    std::fprintf(stderr, "%s:%d: [%s] %s: got %.9g, expected %.9g, tolerance %.3g\n", file, line, context, what, got,
                 expected, tolerance);
  }
}

// Calls f(Isa) for every ISA that is compiled in and that this CPU has.
template <class F>
void for_each_isa(F&& f) {
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (!isa_usable(isa)) continue;
    context = isa_name(isa);
    f(isa);
  }
  context = "";
}

// A small generator, the same on every machine (splitmix64; Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }  // [0, 1)
  float uniform(float low, float high) { return low + (high - low) * uniform(); }
  float normal() {  // Box-Muller
    const double u = (static_cast<double>(bits() >> 11) + 1.0) * 0x1p-53;
    const double v = static_cast<double>(bits() >> 11) * 0x1p-53;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

inline bool same_bits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

inline int report() {
  std::printf("%d checks, %d failures\n", checks.load(), failures.load());
  return failures == 0 ? 0 : 1;
}

}  // namespace headrace::test

#define CHECK(condition) ::headrace::test::check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
#define CHECK_NEAR(got, expected, tolerance) \
  ::headrace::test::check_near((got), (expected), (tolerance), #got, __FILE__, __LINE__)
