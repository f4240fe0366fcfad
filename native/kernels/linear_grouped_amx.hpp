// Products with grouped formats on matrix registers, for many rows.
//
// A chunk of groups is unpacked into L1 as signed bytes (code - zero). A register's product ends with its group, or half of
// one, because the next has scales of its own; its exact sums of integers go by way of L1 to vector registers, which
// scale and add them up as linear_grouped.hpp says. So one row through AVX-512 and many through here have the same bits.
// While the matrix unit multiplies a group, the sums of the one before are scaled.
#pragma once
#include <algorithm>

#include "linear_grouped.hpp"
#include "matrix_registers.hpp"

namespace headrace {
namespace {

constexpr int64_t kChunkOfFew = 8;  // groups: few rows would wait for memory while more are unpacked
constexpr int kGroupsAhead = 2;  // of the products before the sums that are being scaled
constexpr int kSquares = 4;      // of sums in memory, a power of two above kGroupsAhead

// 16 columns of a chunk, and up to 16 rows.
struct MatrixTile {
  const uint8_t* codes;  // [groups][8 steps][32][4], at the first of the columns
  const GroupScales* scales;
  int64_t column;  // of the scales
  const uint8_t* x;  // [depths][rows][64 bytes]; the chunk's first group begins at a depth
  int64_t depth_bytes;
  const uint32_t* inputs;  // [groups][kGroupInputs][rows]
  int64_t groups;
  float* acc;  // [rows][32]
  const uint8_t* ahead;  // to be fetched: `ahead_bytes` of every `ahead_stride`, with each group
  int64_t ahead_bytes, ahead_stride;
};

static_assert(kMatrixDepth == 2 * kGroup && kChunkOfFew % 2 == 0 && kChunkGroups % 2 == 0, "chunks are whole depths");

// The exact sums of one group, or one half of one, to [16][16] int32.
template <bool kHalves>
inline void multiply_square(const uint8_t* x, const uint8_t* codes, int32_t* sums) {
  _tile_zero(0);
  if constexpr (kHalves) {
    _tile_loadd(6, x, kMatrixDepth);
    _tile_loadd(7, codes, kPanel * 4);
    _tile_dpbssd(0, 6, 7);
  } else {
    _tile_loadd(4, x, kMatrixDepth);
    _tile_loadd(5, codes, kPanel * 4);
    _tile_dpbssd(0, 4, 5);
  }
  _tile_stored(0, sums, kSquare * 4);
}

template <int kRows, bool kHalves, bool kMinima>
HEADRACE_LEAF void matrix_groups(const MatrixTile& t) {
  constexpr int kParts = kHalves ? 2 : 1;
  constexpr int64_t kInputBytes = kGroup / kParts, kCodeBytes = kGroup * kPanel / kParts;
  alignas(64) int32_t squares[kSquares][kSquare * kSquare];
  const int64_t parts = t.groups * kParts;
  const auto multiply = [&](int64_t part) {
    const int64_t byte = part * kInputBytes;
    const uint8_t* x = t.x + byte / kMatrixDepth * t.depth_bytes + byte % kMatrixDepth;
    multiply_square<kHalves>(x, t.codes + part * kCodeBytes, squares[part % kSquares]);
  };
  for (int64_t part = 0; part < std::min<int64_t>(kGroupsAhead, parts); ++part) multiply(part);
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = _mm512_loadu_ps(t.acc + r * kPanel);
  const uint8_t* ahead = t.ahead;
  for (int64_t part = 0; part < parts; ++part) {
    if (part + kGroupsAhead < parts) multiply(part + kGroupsAhead);
    memory_is_as_written();
    const int half = static_cast<int>(part % kParts);
    for (int64_t line = 0; half == 0 && line < t.ahead_bytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
    }
    if (half == 0) ahead += t.ahead_stride;
    const uint32_t* in = t.inputs + part / kParts * kGroupInputs * kRows;
    const int32_t* sums = squares[part % kSquares];
    const __m512 scale = _mm512_loadu_ps(t.scales[part / kParts].scale[half] + t.column);
    const __m512 minimum = _mm512_loadu_ps(t.scales[part / kParts].minimum[half] + t.column);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512 row = broadcast_float(in[kInputScale * kRows + r]);
      acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + r * kSquare)), _mm512_mul_ps(scale, row), acc[r]);
      if (kMinima) acc[r] = _mm512_fmadd_ps(minimum, sum_of_inputs<kHalves>(in + r, kRows, half), acc[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(t.acc + r * kPanel, acc[r]);
}

using MatrixKernel = void (*)(const MatrixTile& tile);

template <bool kHalves, bool kMinima, int kRows = kSquare>
MatrixKernel matrix_kernel(int64_t rows) {
  if constexpr (kRows == 0) {
    (void)rows;
    return nullptr;
  } else {
    return rows == kRows ? matrix_groups<kRows, kHalves, kMinima> : matrix_kernel<kHalves, kMinima, kRows - 1>(rows);
  }
}

inline MatrixKernel matrix_kernel(const Grouped& g, int64_t rows) {
  if (has_halves(g.scales)) return has_minima(g.scales) ? matrix_kernel<true, true>(rows) : matrix_kernel<true, false>(rows);
  return has_minima(g.scales) ? matrix_kernel<false, true>(rows) : matrix_kernel<false, false>(rows);
}

// A group's codes as signed bytes [8 steps][32][4].
inline void unpack_signed(const Grouped& g, const uint8_t* planes, const uint8_t* table, uint8_t* out) {
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(g.zero)), values = load_table(table);
  with_reader(g, [&](auto reader) {
#pragma GCC unroll 8
    for (int step = 0; step < kGroupSteps; ++step) {
      for (int h = 0; h < 2; ++h) {
        _mm512_store_si512(out + step * 128 + h * 64, _mm512_sub_epi8(reader.at(planes, step, h, values), zero));
      }
    }
  });
}

// Adds the products of one panel with rows [row0, row0 + rows) to acc[rows][32]. They are whole
// registers or end with the last row.
inline void run_grouped_matrix(const Weight& w, int64_t panel_index, const Scratch& scratch, int64_t row0, int64_t rows,
                               float* acc) {
  const Grouped g = grouped(w.format);
  const Table table(w.format);
  const uint8_t* panel = w.data + panel_index * grouped_panel_bytes(g, w.k);
  const int64_t groups = group_count(w.k), stride = matrix_stride(Form::grouped, w.k);
  const uint8_t* form = reinterpret_cast<const uint8_t*>(scratch.words[static_cast<int>(Form::grouped)]);
  const int64_t most = rows <= 2 * kSquare ? kChunkOfFew : kChunkGroups;
  Unpacked chunk;
  for (int64_t at = 0; at < groups; at += most) {
    const int64_t count = std::min(groups - at, most);
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* head = panel + group_start(g, at + i);
      read_scales(g.scales, fine_of(g, panel, at + i), head, chunk.scales[i]);
      unpack_signed(g, head + head_bytes(g.scales), table.bytes, chunk.bytes + i * kGroup * kPanel);
    }
    memory_is_as_written();
    for (int64_t row = 0; row < rows; row += kSquare) {
      const int64_t together = std::min(rows - row, kSquare);
      const MatrixKernel kernel = matrix_kernel(g, together);
      for (int64_t h = 0; h < 2; ++h) {
        MatrixTile t;
        t.codes = chunk.bytes + h * 64;
        t.scales = chunk.scales;
        t.column = h * 16;
        t.depth_bytes = together * kMatrixDepth;
        t.x = form + (row0 + row) * stride + at / 2 * t.depth_bytes;
        t.inputs = scratch.group_inputs + ((row0 + row) * groups + at * together) * kGroupInputs;
        t.groups = count;
        t.acc = acc + row * kPanel + h * 16;
        // The first rows fetch the next chunk.
        t.ahead_stride = group_bytes(g);
        t.ahead_bytes = row == 0 ? (t.ahead_stride + 1) / 2 : 0;
        t.ahead = panel + group_start(g, at + most) - fine_bytes(g.scales) + h * t.ahead_bytes;
        kernel(t);
      }
    }
  }
}

}  // namespace
}  // namespace headrace
