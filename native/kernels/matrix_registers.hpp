// The matrix registers of AMX (Intel's Software Developer's Manual, volume 1, chapter 18): eight of up to 16 rows of 64
// bytes. Four hold sums, [rows][16] int32 or float; two the left factors, [rows][64] bytes; two the right ones, [16][16][4] bytes.
// A product takes one or two of each: sums 0 and 1 belong to the first left one, 2 and 3 to the second.
//
// Products with grouped formats (linear_grouped_amx.hpp) end after 32 or 16 inputs: registers 4 and 5 are the left and the
// right factor of those with 32, 6 and 7 of those with 16.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace headrace {
namespace {

constexpr int64_t kSquare = 16;  // rows of a register
constexpr int64_t kDepth = 64;   // bytes of a register's row: inputs that a product takes

// Lends this thread the registers for inputs of so many rows, at most kSquare; they begin as zeros. Afterwards they are
// free again, so that the system has none to save.
class MatrixRegisters {
 public:
  explicit MatrixRegisters(int64_t rows, bool grouped = false) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shape;
    const auto set = [&shape](int i, int64_t count, int64_t bytes) {
      shape.rows[i] = static_cast<uint8_t>(count);
      shape.row_bytes[i] = static_cast<uint16_t>(bytes);
    };
    for (int sums = 0; sums < 4; ++sums) set(sums, rows, kDepth);
    if (grouped) {
      set(4, rows, kDepth / 2), set(5, kSquare / 2, kDepth);
      set(6, rows, kDepth / 4), set(7, kSquare / 4, kDepth);
    } else {
      set(4, rows, kDepth), set(5, rows, kDepth);
      set(6, kSquare, kDepth), set(7, kSquare, kDepth);
    }
    // GCC 12 takes the instruction for one that reads 8 bytes: the others must be written all the same.
    asm volatile("" : : "r"(&shape) : "memory");
    _tile_loadconfig(&shape);
  }
  ~MatrixRegisters() { _tile_release(); }
  MatrixRegisters(const MatrixRegisters&) = delete;
  MatrixRegisters& operator=(const MatrixRegisters&) = delete;
};

// GCC does not model that loading a register reads memory and storing one writes it: pending writes must complete first.
inline void memory_is_as_written() { asm volatile("" ::: "memory"); }

inline void begin_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Sums lie at `at`, rows `stride` bytes apart.
template <bool kRows2, bool kColumns2>
inline void load_sums(const void* at, int64_t stride) {
  const char* from = static_cast<const char*>(at);
  _tile_loadd(0, from, stride);
  if constexpr (kColumns2) _tile_loadd(1, from + kDepth, stride);
  if constexpr (kRows2) _tile_loadd(2, from + kSquare * stride, stride);
  if constexpr (kRows2 && kColumns2) _tile_loadd(3, from + kSquare * stride + kDepth, stride);
}

template <bool kRows2, bool kColumns2>
inline void store_sums(void* at, int64_t stride) {
  char* to = static_cast<char*>(at);
  _tile_stored(0, to, stride);
  if constexpr (kColumns2) _tile_stored(1, to + kDepth, stride);
  if constexpr (kRows2) _tile_stored(2, to + kSquare * stride, stride);
  if constexpr (kRows2 && kColumns2) _tile_stored(3, to + kSquare * stride + kDepth, stride);
}

// A register's content in memory.
struct Square {
  const void* at;
  int64_t stride;  // bytes from row to row
};

// sums += left x right, of bfloat16, or of signed bytes with unsigned ones: of what lies in the registers.
template <bool kFloats, bool kRows2, bool kColumns2>
inline void multiply_loaded() {
  if constexpr (kFloats) {
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kColumns2) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRows2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRows2 && kColumns2) _tile_dpbf16ps(3, 5, 7);
  } else {
    _tile_dpbsud(0, 4, 6);
    if constexpr (kColumns2) _tile_dpbsud(1, 4, 7);
    if constexpr (kRows2) _tile_dpbsud(2, 5, 6);
    if constexpr (kRows2 && kColumns2) _tile_dpbsud(3, 5, 7);
  }
}

// The same of what lies in memory.
template <bool kFloats, bool kRows2, bool kColumns2>
inline void multiply_squares(const Square (&left)[2], const Square (&right)[2]) {
  _tile_loadd(4, left[0].at, left[0].stride);
  _tile_loadd(6, right[0].at, right[0].stride);
  if constexpr (kColumns2) _tile_loadd(7, right[1].at, right[1].stride);
  if constexpr (kRows2) _tile_loadd(5, left[1].at, left[1].stride);
  multiply_loaded<kFloats, kRows2, kColumns2>();
}

}  // namespace
}  // namespace headrace
