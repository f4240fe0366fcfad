// Large zero-filled memory straight from the operating system, in huge pages where that is worth it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace {

// Memory that is committed only where it is touched. From kHugeFrom bytes on it requests 2 MiB pages;
// smaller buffers keep 4 KiB pages, so that a touched byte costs little, and so do the first `small_bytes` of a large one,
// rounded up to such pages (all of it where no huge page would be left).
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes, size_t small_bytes = 0);  // std::bad_alloc where the system has no memory left
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  uint8_t* data() const { return data_; }  // 64-byte aligned; null for 0 bytes
  size_t bytes() const { return bytes_; }

  static constexpr size_t kSmallPage = 4096;
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kHugeFrom = size_t{16} << 20;

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  void* mapped_ = nullptr;  // the mapping, which may be larger
  size_t mapped_bytes_ = 0;
};

}  // namespace headrace
