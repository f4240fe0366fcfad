// Products of int8 and int4 for many rows on matrix registers, with everything else as on AVX-512.
//
// Sums of integers are exact, so rows that come together here and those that go through AVX-512 one by one get the same
// bits. Inputs lie as registers want them (linear_layout.hpp), 64 of each of 16 rows in one kilobyte; where there are
// fewer rows, what lies behind is read with them. A strip's weights, [steps][32][4] bytes, are right as they are: a register takes
// 16 steps of half of the columns.
#pragma once
#include <algorithm>

#include "linear_avx512.hpp"
#include "matrix_registers.hpp"

namespace headrace {
namespace {

static_assert(kSquare == kMatrixGroup && kDepth == kMatrixDepth, "inputs are laid out as registers want them");

constexpr int64_t kMatrixChunk = 16 * kDepth;  // inputs whose weights are unpacked together: 32 KB, most of L1
constexpr int64_t kStepBytes = kStrip * 4;
constexpr int64_t kDepthBytes = kDepth / 4 * kStepBytes;  // of weights

// GCC does not know that loading a register reads memory: what was stored must not wait.
inline void stores_are_done() { asm volatile("" ::: "memory"); }

// Inputs of the rows of one register: those of depth d are at x + d * step.
struct Inputs {
  const uint8_t* x;
  int64_t step;
  const uint8_t* at(int64_t depth) const { return x + depth * step; }
};

// Of `rows` rows, the whole form of which begins at `form`, those from `row` on.
inline Inputs inputs_of(const uint8_t* form, int64_t stride, int64_t rows, int64_t row) {
  return {form + row * stride, std::min(kSquare, rows - row) * kDepth};
}

// Sums of the rows of one register, or of two.
template <bool kTwo>
inline void begin_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <bool kTwo>
inline void load_sums(const int32_t* acc) {
  _tile_loadd(0, acc, kStepBytes);
  _tile_loadd(1, acc + kSquare, kStepBytes);
  if constexpr (kTwo) {
    _tile_loadd(2, acc + kSquare * kStrip, kStepBytes);
    _tile_loadd(3, acc + kSquare * kStrip + kSquare, kStepBytes);
  }
}

template <bool kTwo>
inline void store_sums(int32_t* acc) {
  _tile_stored(0, acc, kStepBytes);
  _tile_stored(1, acc + kSquare, kStepBytes);
  if constexpr (kTwo) {
    _tile_stored(2, acc + kSquare * kStrip, kStepBytes);
    _tile_stored(3, acc + kSquare * kStrip + kSquare, kStepBytes);
  }
}

// Adds the products of kDepth inputs.
template <bool kTwo>
inline void add_depth(const uint8_t* w, const uint8_t* upper, const uint8_t* lower) {
  _tile_loadd(4, upper, kDepth);
  _tile_loadd(6, w, kStepBytes);
  _tile_loadd(7, w + kStepBytes / 2, kStepBytes);
  if constexpr (kTwo) _tile_loadd(5, lower, kDepth);
  _tile_dpbsud(0, 4, 6);
  _tile_dpbsud(1, 4, 7);
  if constexpr (kTwo) {
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
}

// acc[rows][32] (+)= x w, over `depths` times kDepth inputs from depth `from` on.
template <bool kTwo>
inline void multiply_rows(const uint8_t* w, const Inputs& upper, const Inputs& lower, int64_t from, int64_t depths,
                          int32_t* acc) {
  if (from == 0) begin_sums<kTwo>();
  if (from > 0) load_sums<kTwo>(acc);
  for (int64_t d = from; d < from + depths; ++d, w += kDepthBytes) add_depth<kTwo>(w, upper.at(d), lower.at(d));
  store_sums<kTwo>(acc);
}

// The same with a whole strip of int4 from memory: while the matrix units multiply, the next weights are unpacked and later
// ones fetched.
template <bool kTwo>
inline void multiply_int4(const uint8_t* groups, int64_t count, const Inputs& upper, const Inputs& lower, int64_t ahead,
                          int32_t* acc) {
  constexpr int64_t kGroups = kDepth / kGroup, kTurns = 4;
  alignas(64) uint8_t unpacked[kTurns][kDepthBytes];
  const int64_t depths = (count + kGroups - 1) / kGroups;
  const auto unpack = [&](int64_t d) {
    const int64_t group = d * kGroups;
    unpack_groups(groups + group * kGroupBytes, std::min(kGroups, count - group), unpacked[d % kTurns], ahead);
  };
  begin_sums<kTwo>();
  unpack(0);
  for (int64_t d = 0; d < depths; ++d) {
    if (d + 1 < depths) unpack(d + 1);
    stores_are_done();
    add_depth<kTwo>(unpacked[d % kTurns], upper.at(d), lower.at(d));
  }
  store_sums<kTwo>(acc);
}

// All rows with a chunk of a strip.
inline void multiply_chunk(const uint8_t* w, const uint8_t* form, int64_t stride, int64_t rows, int64_t from,
                           int64_t depths, int32_t* acc) {
  int64_t row = 0;
  for (; rows - row > kSquare; row += 2 * kSquare) {
    multiply_rows<true>(w, inputs_of(form, stride, rows, row), inputs_of(form, stride, rows, row + kSquare), from,
                        depths, acc + row * kStrip);
  }
  const Inputs last = inputs_of(form, stride, rows, row);
  if (row < rows) multiply_rows<false>(w, last, last, from, depths, acc + row * kStrip);
}

// acc[rows][32] = x times a strip of int8 or int4, of which `ahead` bytes are fetched where it is int4 and the rows are few.
// `rows` are whole registers or end with the last row.
inline void run_matrix(Format format, const uint8_t* weights, int64_t steps, const uint8_t* form, int64_t stride,
                       int64_t rows, int64_t ahead, int32_t* acc) {
  constexpr int64_t kChunkSteps = kMatrixChunk / 4, kRegisterSteps = kDepth / 4;
  if (format == Format::int4 && rows <= 2 * kSquare) {
    const Inputs upper = inputs_of(form, stride, rows, 0);
    if (rows <= kSquare) return multiply_int4<false>(weights, steps / 8, upper, upper, ahead, acc);
    return multiply_int4<true>(weights, steps / 8, upper, inputs_of(form, stride, rows, kSquare), ahead, acc);
  }
  alignas(64) uint8_t unpacked[kChunkSteps * kStepBytes];
  for (int64_t step = 0; step < steps; step += kChunkSteps) {
    const int64_t count = std::min(kChunkSteps, steps - step);
    const uint8_t* w = weights + step * kStepBytes;
    if (format == Format::int4) {
      unpack_groups(weights + step / 8 * kGroupBytes, count / 8, unpacked);
      w = unpacked;
    } else if (count % kRegisterSteps != 0) {  // what follows the strip may be no memory
      std::memcpy(unpacked, w, static_cast<size_t>(count * kStepBytes));
      w = unpacked;
    }
    stores_are_done();
    const int64_t depths = (count + kRegisterSteps - 1) / kRegisterSteps;
    multiply_chunk(w, form, stride, rows, step / kRegisterSteps, depths, acc);
  }
}

}  // namespace
}  // namespace headrace
