// A checksum against damage on the way to the disk and back, as fast as memory is read. It is no protection against
// someone who may write the file.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace {

// 64 bits of `bytes` bytes at `data`. Each word changes its lane by a bijection, so damage within one word never goes
// unnoticed; other damage does with a probability of about 2^-64. Never change it: caches on disk hold its results.
uint64_t checksum(const uint8_t* data, size_t bytes);

}  // namespace headrace
