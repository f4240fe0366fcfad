// Products on matrix registers, with everything else as on AVX-512: of int8 and int4 for many rows, of bf16 for any.
//
// bf16: tdpbf16ps adds in another order than vdpbf16ps, so a row alone goes this way as well, in steps of 32 inputs.
//
// int8 and int4: sums of integers are exact, so rows that come together here and those that go through AVX-512 one by one
// get the same bits.
//
// Inputs have the layout of registers (linear_layout.hpp), 64 of each of 16 rows in one kilobyte; where there are
// fewer rows, what lies behind is read with them. A panel's weights, [steps][32][4] bytes, are right as they are: a register takes
// 16 steps (of four bytes or two bfloat16) of half of the columns.
#pragma once
#include <algorithm>

#include "linear_avx512.hpp"
#include "matrix_registers.hpp"

namespace headrace {
namespace {

static_assert(kSquare == kMatrixGroup && kDepth == kMatrixDepth, "inputs have the layout of registers");

constexpr int64_t kMatrixChunk = 16 * kDepth;  // inputs whose weights are unpacked together: 32 KB, most of L1
constexpr int64_t kStepBytes = kPanel * 4;
constexpr int64_t kDepthBytes = kDepth / 4 * kStepBytes;  // of weights

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

// Adds the products of one depth.
template <bool kFloats, bool kTwo>
inline void add_depth(const uint8_t* w, const uint8_t* upper, const uint8_t* lower) {
  multiply_squares<kFloats, kTwo, true>({{upper, kDepth}, {lower, kDepth}}, {{w, kStepBytes}, {w + kDepth, kStepBytes}});
}

// acc[rows][32] (+)= x w, over `depths` from depth `from` on; later weights are fetched if `ahead`.
template <bool kFloats, bool kTwo>
inline void multiply_rows(const uint8_t* w, const Inputs& upper, const Inputs& lower, int64_t from, int64_t depths,
                          bool ahead, void* acc) {
  if (from == 0) begin_sums();
  if (from > 0) load_sums<kTwo, true>(acc, kStepBytes);
  for (int64_t d = from; d < from + depths; ++d, w += kDepthBytes) {
    for (int64_t line = 0; ahead && line < kDepthBytes; line += 64) fetch_ahead(w + line);
    add_depth<kFloats, kTwo>(w, upper.at(d), lower.at(d));
  }
  store_sums<kTwo, true>(acc, kStepBytes);
}

// The same with a whole panel of int4 from memory: while the matrix units multiply, the next weights are unpacked and later
// ones fetched.
template <bool kTwo>
inline void multiply_int4(const uint8_t* groups, int64_t count, const Inputs& upper, const Inputs& lower, int32_t* acc) {
  constexpr int64_t kGroups = kDepth / kGroup, kTurns = 4;
  alignas(64) uint8_t unpacked[kTurns][kDepthBytes];
  const int64_t depths = (count + kGroups - 1) / kGroups;
  const auto unpack = [&](int64_t d) {
    const int64_t group = d * kGroups;
    unpack_groups(groups + group * kGroupBytes, std::min(kGroups, count - group), unpacked[d % kTurns], true);
  };
  begin_sums();
  unpack(0);
  for (int64_t d = 0; d < depths; ++d) {
    if (d + 1 < depths) unpack(d + 1);
    memory_is_as_written();
    add_depth<false, kTwo>(unpacked[d % kTurns], upper.at(d), lower.at(d));
  }
  store_sums<kTwo, true>(acc, kStepBytes);
}

// All rows with a chunk of a panel.
template <bool kFloats>
inline void multiply_chunk(const uint8_t* w, const uint8_t* form, int64_t stride, int64_t rows, int64_t from,
                           int64_t depths, bool ahead, int32_t* acc) {
  int64_t row = 0;
  for (; rows - row > kSquare; row += 2 * kSquare) {
    multiply_rows<kFloats, true>(w, inputs_of(form, stride, rows, row), inputs_of(form, stride, rows, row + kSquare),
                                 from, depths, ahead && row == 0, acc + row * kPanel);
  }
  const Inputs last = inputs_of(form, stride, rows, row);
  if (row < rows) {
    multiply_rows<kFloats, false>(w, last, last, from, depths, ahead && row == 0, acc + row * kPanel);
  }
}

// Weights that need no unpacking are multiplied where they are, but for the end of a panel that is no whole depth: what
// follows it may be no memory or no number.
inline const uint8_t* whole_depths(const uint8_t* w, int64_t steps, uint8_t* copy) {
  constexpr int64_t kRegisterSteps = kDepth / 4;
  if (steps % kRegisterSteps == 0) return w;
  const int64_t bytes = steps * kStepBytes;
  std::memcpy(copy, w, static_cast<size_t>(bytes));
  std::memset(copy + bytes, 0, static_cast<size_t>(round_up(bytes, kDepthBytes) - bytes));
  return copy;
}

// acc[rows][32] = x times a panel of int8, int4 or bf16, which is fetched ahead where memory would be waited for. `rows` are
// whole registers or end with the last row.
inline void run_matrix(Format format, const uint8_t* weights, int64_t steps, const uint8_t* form, int64_t stride,
                       int64_t rows, int32_t* acc) {
  constexpr int64_t kChunkSteps = kMatrixChunk / 4, kRegisterSteps = kDepth / 4;
  if (format == Format::int4 && rows <= 2 * kSquare) {
    const Inputs upper = inputs_of(form, stride, rows, 0);
    if (rows <= kSquare) return multiply_int4<false>(weights, steps / 8, upper, upper, acc);
    return multiply_int4<true>(weights, steps / 8, upper, inputs_of(form, stride, rows, kSquare), acc);
  }
  alignas(64) uint8_t unpacked[kChunkSteps * kStepBytes];
  for (int64_t step = 0; step < steps; step += kChunkSteps) {
    const int64_t count = std::min(kChunkSteps, steps - step), from = step / kRegisterSteps;
    const int64_t depths = (count + kRegisterSteps - 1) / kRegisterSteps;
    if (format == Format::int4) {
      unpack_groups(weights + step / 8 * kGroupBytes, count / 8, unpacked);
      memory_is_as_written();
      multiply_chunk<false>(unpacked, form, stride, rows, from, depths, false, acc);
      continue;
    }
    const uint8_t* w = whole_depths(weights + step * kStepBytes, count, unpacked);
    memory_is_as_written();
    if (format == Format::bf16) {
      multiply_chunk<true>(w, form, stride, rows, from, depths, true, acc);
    } else {
      multiply_chunk<false>(w, form, stride, rows, from, depths, true, acc);
    }
  }
}

}  // namespace
}  // namespace headrace
