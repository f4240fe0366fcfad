#include "memory.hpp"

#include <sys/mman.h>

#include <limits>
#include <new>
#include <utility>

namespace headrace {

Buffer::Buffer(size_t bytes, size_t small_bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugeFrom && bytes - kHugePage >= small_bytes;
  const size_t small = huge ? (small_bytes + kSmallPage - 1) / kSmallPage * kSmallPage : 0;
  const size_t slack = huge ? kHugePage : 0;  // so that what follows the small pages starts at a huge page's border
  if (bytes > std::numeric_limits<size_t>::max() / 2) throw std::bad_alloc();
  mapped_bytes_ = bytes + slack;
  mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    throw std::bad_alloc();
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(mapped_);
  const uintptr_t aligned = huge ? (start + small + kHugePage - 1) / kHugePage * kHugePage - small : start;
  data_ = reinterpret_cast<uint8_t*>(aligned);
#ifdef MADV_HUGEPAGE
  // Whole huge pages only: the last part of one stays small. Advice, so a refusal does not matter.
  if (huge) (void)madvise(data_ + small, (bytes - small) / kHugePage * kHugePage, MADV_HUGEPAGE);
  // Where the system gives huge pages to every process.
  if (small_bytes > 0) (void)madvise(data_, huge ? small : bytes, MADV_NOHUGEPAGE);
#endif
}

Buffer::~Buffer() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

}  // namespace headrace
