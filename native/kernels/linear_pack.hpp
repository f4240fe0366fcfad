// Weights into their packed form and rows of them back.
#pragma once
#include <cstdlib>

#include "linear_layout.hpp"

namespace headrace {
namespace {

template <class F>
void unpack_plain(const Weight& w, int64_t row, float* out) {
  const uint8_t* panel = w.data + row / kPanel * F::panel_bytes(w.k);
  for (int64_t i = 0; i < w.k; ++i) out[i] = F::value(panel, i, row % kPanel);
}

template <class F>
void unpack_rotated(const Weight& w, int64_t row, float* out) {
  const uint8_t* panel = w.data + row / kPanel * F::panel_bytes(w.k);
  const int64_t block = rotation_block(w.k);
  for (int64_t start = 0; start < w.k; start += block) {
    float values[kMaxRotation];
    for (int64_t i = 0; i < block; ++i) values[i] = F::value(panel, start + i, row % kPanel);
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

// Whole panels of memory of their own; nothing sensible is left to do where there is none.
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

// As read_panel, of a block type, by way of its own grouped format.
int64_t read_grouped_panel(Format type, const uint8_t* source, int64_t rows, int64_t k, int64_t k_padded,
                           uint8_t* panel, float* row, float* out) {
  const int64_t bad = pack_grouped_panel(type, source, rows, k, panel);
  if (bad >= 0) return bad;
  std::memset(out, 0, static_cast<size_t>(k_padded) * kPanel * sizeof(float));
  for (int64_t c = 0; c < rows; ++c) {
    unpack_grouped_row({type, kPanel, k, panel}, c, row);
    for (int64_t i = 0; i < k; ++i) out[i * kPanel + c] = row[i];
  }
  return -1;
}

template <class F>
int64_t pack_panels(Format type, const uint8_t* source, int64_t n, int64_t k, int64_t panel0, int64_t panel1,
                    uint8_t* packed) {
  const Buffer<float> buffer(F::padded_k(k) * kPanel);
  const Buffer<float> row_buffer(is_grouped(type) ? k : 0);
  const Buffer<uint8_t> panel_buffer(is_grouped(type) ? panel_bytes_of(type, k) : 0);
  for (int64_t panel = panel0; panel < panel1; ++panel) {
    const int64_t row = panel * kPanel;
    const int64_t rows = n - row < kPanel ? n - row : kPanel;
    const uint8_t* from = source + (row - panel0 * kPanel) * source_row_bytes(type, k);
    const int64_t bad =
        is_grouped(type)
            ? read_grouped_panel(type, from, rows, k, F::padded_k(k), panel_buffer.data, row_buffer.data, buffer.data)
            : read_panel(type, from, rows, k, F::padded_k(k), buffer.data);
    if (bad >= 0) return row + bad;
    if (!F::pack_panel(buffer.data, k, packed + panel * F::panel_bytes(k))) return row;
  }
  return -1;
}

int64_t pack_grouped(Format format, const uint8_t* source, int64_t n, int64_t k, int64_t panel0, int64_t panel1,
                     uint8_t* packed) {
  for (int64_t panel = panel0; panel < panel1; ++panel) {
    const int64_t row = panel * kPanel, rows = n - row < kPanel ? n - row : kPanel;
    const uint8_t* from = source + (row - panel0 * kPanel) * source_row_bytes(format, k);
    const int64_t bad = pack_grouped_panel(format, from, rows, k, packed + panel * panel_bytes_of(format, k));
    if (bad >= 0) return row + bad;
  }
  return -1;
}

int64_t pack(Format format, Format type, const void* source, int64_t n, int64_t k, int64_t panel0, int64_t panel1,
             uint8_t* packed) {
  const uint8_t* bytes = static_cast<const uint8_t*>(source);
  switch (format) {
    case Format::f32:
      return pack_panels<F32>(type, bytes, n, k, panel0, panel1, packed);
    case Format::f16:
      return pack_panels<F16>(type, bytes, n, k, panel0, panel1, packed);
    case Format::bf16:
      return pack_panels<Bf16>(type, bytes, n, k, panel0, panel1, packed);
    case Format::int8:
      return pack_panels<Int8>(type, bytes, n, k, panel0, panel1, packed);
    case Format::int4:
      return pack_panels<Int4>(type, bytes, n, k, panel0, panel1, packed);
    default:
      return pack_grouped(format, bytes, n, k, panel0, panel1, packed);
  }
}

}  // namespace
}  // namespace headrace
