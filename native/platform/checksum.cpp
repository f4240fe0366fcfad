#include "checksum.hpp"

#include <cstring>

namespace headrace {
namespace {

constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;  // odd, hence a bijection: 2^64 divided by the golden ratio
constexpr int kLanes = 8;                             // as many multiplications are under way at a time
constexpr size_t kBlock = kLanes * sizeof(uint64_t);

// Lower bits reach the upper ones by the product, upper ones the lower ones by the shift. A rotation alone would leave
// a change of the highest bit a change of one bit, which a change of that bit in the next word undoes.
inline uint64_t mix(uint64_t state, uint64_t word) {
  const uint64_t product = (state ^ word) * kMultiplier;
  return product ^ (product >> 32);
}

}  // namespace

uint64_t checksum(const uint8_t* data, size_t bytes) {
  uint64_t lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = kMultiplier * (static_cast<uint64_t>(lane) + 1);
  const size_t whole = bytes / kBlock * kBlock;
  for (size_t at = 0; at < whole; at += kBlock) {
    uint64_t words[kLanes];
    std::memcpy(words, data + at, kBlock);
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  uint64_t rest[kLanes] = {};
  if (whole < bytes) std::memcpy(rest, data + whole, bytes - whole);
  uint64_t sum = mix(kMultiplier, bytes);  // so that zeros at the end count
  for (int lane = 0; lane < kLanes; ++lane) sum = mix(sum, mix(lanes[lane], rest[lane]));
  return sum ^ (sum >> 32);
}

}  // namespace headrace
