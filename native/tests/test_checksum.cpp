// The checksum of cached weights: every bit counts, wherever it is.
#include <cstdint>
#include <set>
#include <vector>

#include "../platform/checksum.hpp"
#include "test.hpp"

namespace {

using headrace::checksum;

void every_bit_counts() {
  std::vector<uint8_t> data(200, 0x5A);
  const uint64_t expected = checksum(data.data(), data.size());
  std::set<uint64_t> seen{expected};
  for (uint8_t& byte : data) {
    for (int bit = 0; bit < 8; ++bit) {
      byte ^= static_cast<uint8_t>(1 << bit);
      CHECK(seen.insert(checksum(data.data(), data.size())).second);
      byte ^= static_cast<uint8_t>(1 << bit);
    }
  }
  CHECK(checksum(data.data(), data.size()) == expected);
}

void length_and_order_count() {
  const std::vector<uint8_t> zeros(300, 0);
  std::set<uint64_t> seen;
  for (size_t length = 0; length <= zeros.size(); ++length) CHECK(seen.insert(checksum(zeros.data(), length)).second);
  std::vector<uint8_t> blocks(128, 0);
  blocks[0] = 1;
  const uint64_t first = checksum(blocks.data(), blocks.size());
  blocks[0] = 0;
  blocks[64] = 1;
  CHECK(checksum(blocks.data(), blocks.size()) != first);
}

}  // namespace

int main() {
  every_bit_counts();
  length_and_order_count();
  return headrace::test::report();
}
