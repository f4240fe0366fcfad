// Products with grouped formats: a chunk of groups is unpacked into L1, then all tiles of rows multiply with it.
//
// Every type becomes the same thing: bytes [8 steps][32][4] like int8's (AVX2: its codes as they are), for each output a scale (two for types with
// halves of 16 inputs) and perhaps a minimum. A group's sum is exact in int32; then, per output and row,
//   sum += float(integers) * (scale * row's scale)     one fma, groups in ascending order
//   sum -= minimum * (row's scale * sum of row's codes)  another, in types with minima
// in memory between groups, so that one row and many rows, in whatever tiles, give the same bits. FP8 is unpacked to
// floats, which go through the kernels of f32.
#pragma once
#include "linear_layout.hpp"

namespace headrace {
namespace {

constexpr int64_t kChunkGroups = 16;       // 16 KB of bytes
constexpr int64_t kChunkFloatGroups = 4;   // 16 KB of floats
constexpr int64_t kGroupSteps = kGroup / 4;

// Groups of a panel, ready for the kernels.
struct Unpacked {
  alignas(64) uint8_t bytes[kChunkGroups * kGroup * kPanel];
  alignas(64) GroupScales scales[kChunkGroups];
};

// The table of a type as bytes 128 higher, as the kernels need them.
struct Table {
  explicit Table(Format format) {
    for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(table_of(format)[i] + 128);
  }
  uint8_t bytes[16];
};

// The multipliers of a group's scales.
inline const uint8_t* fine_of(const Grouped& g, const uint8_t* panel, int64_t group) {
  return panel + group_start(g, group / kFineGroups * kFineGroups) - fine_bytes(g.scales);
}

// FP8 groups as float [count * 32][32].
inline void unpack_floats(const Grouped& g, const uint8_t* panel, int64_t first, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i, out += kGroup * kPanel) {
    const uint8_t* head = panel + group_start(g, first + i);
    GroupScales s;
    read_scales(g.scales, head, head, s);
    const uint8_t* codes = head + head_bytes(g.scales);
    for (int step = 0; step < kGroupSteps; ++step) {
      uint32_t words[kPanel];  // of four inputs
      std::memcpy(words, codes + step * 128, sizeof words);
      for (int t = 0; t < 4; ++t) {
        float* to = out + (step * 4 + t) * kPanel;
        for (int c = 0; c < kPanel; ++c) to[c] = s.scale[0][c] * from_e4m3(words[c] >> (8 * t));
      }
    }
  }
}

#if !defined(HEADRACE_ISA_avx2)  // which has kernels for each kind of code
template <int kRows = kMaxRows>
GroupKernel group_kernel(const Grouped& g, int64_t rows) {
  if constexpr (kRows == 0) {
    (void)g, (void)rows;
    return nullptr;
  } else {
    if (rows != kRows) return group_kernel<kRows - 1>(g, rows);
    const bool minima = has_minima(g.scales);
    if (has_halves(g.scales)) return minima ? tile_group<kRows, true, true> : tile_group<kRows, true, false>;
    return minima ? tile_group<kRows, false, true> : tile_group<kRows, false, false>;
  }
}
#endif

// Adds the products of one panel with the row tiles [first, last) to acc[rows][32].
inline void run_grouped(const Weight& w, int64_t panel_index, const Scratch& scratch, const Tiles& tiles,
                        int64_t first, int64_t last, float* acc) {
  const Grouped g = grouped(w.format);
  const Table table(w.format);
  const uint8_t* panel = w.data + panel_index * grouped_panel_bytes(g, w.k);
  const int64_t groups = group_count(w.k), row0 = tiles.begin(first);
  const GroupKernel direct = last - first == 1 ? direct_group(g, tiles.size(first)) : nullptr;
  const bool in_place = direct != nullptr || g.low_bits == 8;
  // In place groups are evenly apart only between multipliers.
  const int64_t most = in_place && fine_bytes(g.scales) > 0 ? kFineGroups : kChunkGroups;
  Unpacked chunk;
  for (int64_t at = 0; at < groups; at += most) {
    const int64_t count = groups - at < most ? groups - at : most;
    const uint8_t* head = panel + group_start(g, at);
    for (int64_t i = 0; i < count && direct == nullptr; ++i) {
      const uint8_t* own = panel + group_start(g, at + i);
      read_scales(g.scales, fine_of(g, panel, at + i), own, chunk.scales[i]);
      if (!in_place) {
        unpack_codes(g, own + head_bytes(g.scales), table.bytes, chunk.bytes + i * kGroup * kPanel);
      }
    }
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t rows = tiles.size(tile), start = tiles.begin(tile);
      GroupTile t;
      t.codes = in_place ? head + head_bytes(g.scales) : chunk.bytes;
      t.table = table.bytes;
      t.stride = in_place ? group_bytes(g) : kGroup * kPanel;
      t.scales = chunk.scales;
      t.kind = g.scales;
      t.fine = fine_of(g, panel, at);
      t.head_bytes = head_bytes(g.scales);
      t.x = scratch.words[static_cast<int>(Form::grouped)] + (start * groups + at * rows) * kGroupSteps;
      t.inputs = scratch.group_inputs + (start * groups + at * rows) * kGroupInputs;
      t.groups = count;
      t.zero = g.zero;
      t.acc = acc + (start - row0) * kPanel;
      // A tile by itself streams its weights; of several, the first fetches the next chunk.
      t.ahead = direct != nullptr ? head + kAheadBytes : panel + group_start(g, at + most) - fine_bytes(g.scales);
      t.ahead_stride = tile == first ? group_bytes(g) : 0;
      if (tile != first) t.ahead = t.codes;
      const GroupKernel kernel = direct != nullptr ? direct : group_kernel(g, rows);
      kernel(t);
    }
  }
}

inline void run_fp8(const Weight& w, int64_t panel_index, const Scratch& scratch, const Tiles& tiles, int64_t first,
                    int64_t last, float* acc) {
  const Grouped g = grouped(w.format);
  const uint8_t* panel = w.data + panel_index * grouped_panel_bytes(g, w.k);
  const uint32_t* words = scratch.words[static_cast<int>(Form::f32)];
  alignas(64) float unpacked[kChunkFloatGroups * kGroup * kPanel];
  for (int64_t at = 0; at < group_count(w.k); at += kChunkFloatGroups) {
    const int64_t left = group_count(w.k) - at, count = left < kChunkFloatGroups ? left : kChunkFloatGroups;
    unpack_floats(g, panel, at, count, unpacked);
    const uint8_t* next = panel + group_start(g, at + kChunkFloatGroups);
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t rows = tiles.size(tile), start = tiles.begin(tile);
      const Prefetch ahead{next, tile == first ? group_bytes(g) / kGroup : 0, 0};
      const uint32_t* x = words + start * w.k + at * kGroup * rows;
      tile_kernel<kMaxRows>(Format::f32, rows)(reinterpret_cast<const uint8_t*>(unpacked), x, count * kGroup,
                                               acc + (start - tiles.begin(first)) * kPanel, ahead);
    }
  }
}

}  // namespace
}  // namespace headrace
