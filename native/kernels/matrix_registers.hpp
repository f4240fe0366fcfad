// The matrix registers of AMX (Intel's Software Developer's Manual, volume 1, chapter 18): eight of up to 16 rows of 64
// bytes. Four hold sums, [rows][16] int32; two inputs, [rows][64] bytes; two weights, [16][16][4] bytes.
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
  explicit MatrixRegisters(int64_t rows) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 8; ++i) {
      shape.row_bytes[i] = kDepth;
      shape.rows[i] = static_cast<uint8_t>(i < 6 ? rows : kSquare);
    }
    // GCC 12 takes the instruction for one that reads 8 bytes: the others must be written all the same.
    asm volatile("" : : "r"(&shape) : "memory");
    _tile_loadconfig(&shape);
  }
  ~MatrixRegisters() { _tile_release(); }
  MatrixRegisters(const MatrixRegisters&) = delete;
  MatrixRegisters& operator=(const MatrixRegisters&) = delete;
};

}  // namespace
}  // namespace headrace
