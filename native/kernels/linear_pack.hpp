// Weights into their packed form and rows of them back.
#pragma once
#include <cstdlib>

#include "linear_layout.hpp"

namespace headrace {
namespace {

template <class F>
void unpack_plain(const Weight& w, int64_t row, float* out) {
  const uint8_t* strip = w.data + row / kStrip * F::strip_bytes(w.k);
  for (int64_t i = 0; i < w.k; ++i) out[i] = F::value(strip, i, row % kStrip);
}

template <class F>
void unpack_rotated(const Weight& w, int64_t row, float* out) {
  const uint8_t* strip = w.data + row / kStrip * F::strip_bytes(w.k);
  const int64_t block = rotation_block(w.k);
  for (int64_t start = 0; start < w.k; start += block) {
    float values[kMaxRotation];
    for (int64_t i = 0; i < block; ++i) values[i] = F::value(strip, start + i, row % kStrip);
    rotate_row(values, values, block, block);
    const int64_t left = w.k - start;
    std::memcpy(out + start, values, static_cast<size_t>(left < block ? left : block) * 4);
  }
}

void unpack_row(const Weight& w, int64_t row, float* out) {
  switch (w.format) {
    case Format::f32:
      return unpack_plain<F32>(w, row, out);
    case Format::f16:
      return unpack_plain<F16>(w, row, out);
    case Format::bf16:
      return unpack_plain<Bf16>(w, row, out);
    case Format::int8:
      return unpack_rotated<Int8>(w, row, out);
    case Format::int4:
      return unpack_rotated<Int4>(w, row, out);
    default:
      return unpack_grouped_row(w, row, out);
  }
}

// Whole strips of memory of their own; nothing sensible is left to do where there is none.
template <class T>
struct Buffer {
  explicit Buffer(int64_t count) : data(static_cast<T*>(std::malloc(static_cast<size_t>(count + 1) * sizeof(T)))) {
    if (data == nullptr) std::abort();
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data;
};

// As read_strip, of a block type, by way of its own grouped format.
int64_t read_grouped_strip(Format type, const uint8_t* source, int64_t rows, int64_t k, int64_t k_padded,
                           uint8_t* strip, float* row, float* out) {
  const int64_t bad = pack_grouped_strip(type, source, rows, k, strip);
  if (bad >= 0) return bad;
  std::memset(out, 0, static_cast<size_t>(k_padded) * kStrip * sizeof(float));
  for (int64_t c = 0; c < rows; ++c) {
    unpack_grouped_row({type, kStrip, k, strip}, c, row);
    for (int64_t i = 0; i < k; ++i) out[i * kStrip + c] = row[i];
  }
  return -1;
}

template <class F>
int64_t pack_strips(Format type, const uint8_t* source, int64_t n, int64_t k, int64_t strip0, int64_t strip1,
                    uint8_t* packed) {
  const Buffer<float> buffer(F::padded_k(k) * kStrip);
  const Buffer<float> row_buffer(is_grouped(type) ? k : 0);
  const Buffer<uint8_t> strip_buffer(is_grouped(type) ? strip_bytes_of(type, k) : 0);
  for (int64_t strip = strip0; strip < strip1; ++strip) {
    const int64_t row = strip * kStrip;
    const int64_t rows = n - row < kStrip ? n - row : kStrip;
    const uint8_t* from = source + (row - strip0 * kStrip) * source_row_bytes(type, k);
    const int64_t bad =
        is_grouped(type)
            ? read_grouped_strip(type, from, rows, k, F::padded_k(k), strip_buffer.data, row_buffer.data, buffer.data)
            : read_strip(type, from, rows, k, F::padded_k(k), buffer.data);
    if (bad >= 0) return row + bad;
    if (!F::pack_strip(buffer.data, k, packed + strip * F::strip_bytes(k))) return row;
  }
  return -1;
}

int64_t pack_grouped(Format format, const uint8_t* source, int64_t n, int64_t k, int64_t strip0, int64_t strip1,
                     uint8_t* packed) {
  for (int64_t strip = strip0; strip < strip1; ++strip) {
    const int64_t row = strip * kStrip, rows = n - row < kStrip ? n - row : kStrip;
    const uint8_t* from = source + (row - strip0 * kStrip) * source_row_bytes(format, k);
    const int64_t bad = pack_grouped_strip(format, from, rows, k, packed + strip * strip_bytes_of(format, k));
    if (bad >= 0) return row + bad;
  }
  return -1;
}

int64_t pack(Format format, Format type, const void* source, int64_t n, int64_t k, int64_t strip0, int64_t strip1,
             uint8_t* packed) {
  const uint8_t* bytes = static_cast<const uint8_t*>(source);
  switch (format) {
    case Format::f32:
      return pack_strips<F32>(type, bytes, n, k, strip0, strip1, packed);
    case Format::f16:
      return pack_strips<F16>(type, bytes, n, k, strip0, strip1, packed);
    case Format::bf16:
      return pack_strips<Bf16>(type, bytes, n, k, strip0, strip1, packed);
    case Format::int8:
      return pack_strips<Int8>(type, bytes, n, k, strip0, strip1, packed);
    case Format::int4:
      return pack_strips<Int4>(type, bytes, n, k, strip0, strip1, packed);
    default:
      return pack_grouped(format, bytes, n, k, strip0, strip1, packed);
  }
}

}  // namespace
}  // namespace headrace
