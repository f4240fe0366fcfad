// Products of activations with packed weights, for one ISA.
//
// Phase 0 (linear_prepare.hpp) converts rows to the forms that the formats need, in tiles of rows. Phase 1
// walks panels of 32 outputs; each thread has a contiguous run of panels, so that it reads one sequential
// stream. Within a panel: blocks of row tiles; within a block: chunks of inputs, small enough that a chunk of
// weights stays in L1 while all tiles of the block use it; int4 is unpacked once per chunk (AVX2: into codes, not weights,
// linear_int4_avx2.hpp; and bf16 into floats). With one tile the weights come straight from memory, prefetched ahead.
//
// Determinism: an output is one chain of sums over its inputs in ascending order, in a register within a chunk
// and in memory between chunks, whatever the tile, the block or the thread; integer sums are exact anyway. On matrix
// registers (linear_amx.hpp) floats are added in steps of 32 inputs. There and on AVX2 many rows with long inputs take all
// panels block by block.
#if defined(HEADRACE_ISA_amx)
#include "linear_amx.hpp"
#include "linear_grouped_avx512.hpp"
#elif defined(HEADRACE_ISA_avx512)
#include "linear_avx512.hpp"
#include "linear_grouped_avx512.hpp"
#elif defined(HEADRACE_ISA_avx2)
#include "linear_avx2.hpp"
#include "linear_grouped_avx2.hpp"
#elif defined(HEADRACE_ISA_neon)
#include "linear_neon.hpp"
#else
#include "linear_portable.hpp"
#endif
#if !defined(HEADRACE_ISA_avx512) && !defined(HEADRACE_ISA_avx2)
#include "linear_grouped_plain.hpp"
#endif

#include <optional>

#include "linear_epilogue.hpp"
#include "linear_pack.hpp"
#include "linear_prepare.hpp"

namespace headrace {
namespace {

constexpr int64_t kChunkSteps = 128;     // 16 KB of weights
constexpr int64_t kBlockRows = 252;      // their sums stay on the stack: 2 * 32 KB
constexpr int64_t kPrefetchLine = 64;
constexpr int64_t kFetchingTiles = 6;    // so many fetch each other's inputs

template <int kRows>
TileKernel tile_kernel(Format format, int64_t rows) {
  if constexpr (kRows == 0) {
    (void)format, (void)rows;
    return nullptr;
  } else {
    if (rows != kRows) return tile_kernel<kRows - 1>(format, rows);
    switch (format) {
      case Format::f32:
        return tile_f32<kRows>;
      case Format::f16:
        return tile_f16<kRows>;
      case Format::bf16:
        return tile_bf16<kRows>;
      default:
        return tile_int8<kRows>;
    }
  }
}

}  // namespace
}  // namespace headrace

#include "linear_grouped.hpp"
#if defined(HEADRACE_ISA_avx2)
#include "linear_int4_avx2.hpp"
#endif
#if defined(HEADRACE_ISA_amx)
#include "linear_grouped_amx.hpp"
#endif

namespace headrace {
namespace {

#if defined(HEADRACE_ISA_avx512)
template <int kRows = kDirectRows>
TileKernel direct_kernel(int64_t rows) {
  if constexpr (kRows == 0) {
    (void)rows;
    return nullptr;
  } else {
    return rows == kRows ? direct_int4<kRows> : direct_kernel<kRows - 1>(rows);
  }
}
#else
inline TileKernel direct_kernel(int64_t) { return nullptr; }
#endif

// One panel of one weight, and where its stream of bytes starts.
struct Stream {
  Format format;
  const uint8_t* weights;
  int64_t steps;
  int64_t step_bytes_x8;  // of eight steps, since int4 has 72 bytes a step on average
};

inline Stream stream_of(const Weight& w, int64_t panel) {
  const uint8_t* base = w.data + panel * panel_bytes_of(w.format, w.k);
  const int64_t steps = weight_steps(form_of(w.format), w.k);
  switch (w.format) {
    case Format::f16:
      return {w.format, base, steps, 512};
    case Format::int8:
      return {w.format, base + kScaleBytes, steps, 1024};
    case Format::int4:
      return {w.format, base + kScaleBytes, steps, kGroupBytes};
    default:
      return {w.format, base, steps, 1024};
  }
}

// Adds the products of one panel with the row tiles [first, last) to acc[rows][32].
inline void run_panel(const Stream& stream, const uint32_t* words, const Tiles& tiles, int64_t first, int64_t last,
                      float* acc) {
  alignas(64) uint8_t unpacked[kChunkSteps * kPanel * 4];
  const bool alone = last - first == 1;
  const TileKernel direct = alone && stream.format == Format::int4 ? direct_kernel(tiles.size(first)) : nullptr;
  const bool widened = kBf16Words == 2 && !alone && stream.format == Format::bf16;
  const int64_t row0 = tiles.begin(first), words_of_step = stream.format == Format::bf16 ? kBf16Words : 1;
  const int64_t most = widened ? kChunkSteps / 2 : kChunkSteps;
  for (int64_t step = 0; step < stream.steps; step += most) {
    const int64_t count = stream.steps - step < most ? stream.steps - step : most;
    const uint8_t* raw = stream.weights + step * stream.step_bytes_x8 / 8;
    const uint8_t* next = raw + count * stream.step_bytes_x8 / 8;
    const uint8_t* w = raw;
#if defined(HEADRACE_ISA_avx2)  // whose int4 has a way of its own
    if (widened) {
      widen_bf16(raw, count, unpacked);
      w = unpacked;
    }
#else
    if (stream.format == Format::int4 && direct == nullptr) {
      unpack_groups(raw, count / 8, unpacked);
      w = unpacked;
    }
#endif
    const int64_t taken = widened ? 2 * count : count;  // steps of the kernel, each of which fetches a line
    const auto inputs_of = [&](int64_t tile, int64_t at) {
      return words + words_of_step * (tiles.begin(tile) * stream.steps + at * tiles.size(tile));
    };
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t rows = tiles.size(tile);
      // Alone, a tile streams its own weights; of several, the first ones fetch a part of the next chunk; of many, whose
      // inputs are more than L1 holds, each fetches those of the next.
      Prefetch ahead{w, 0, 0};
      if (direct != nullptr) {
        ahead = {raw, 0, 0};  // it fetches by itself
      } else if (alone && w == raw) {
        ahead = {raw + kAheadBytes, stream.step_bytes_x8 / 8, kPrefetchLine, kFarBytes > 0 ? kFarBytes - kAheadBytes : 0};
      } else if (last - first < kFetchingTiles) {
        const int64_t part = (tile - first) * taken * kPrefetchLine;
        if (part < next - raw) ahead = {next + part, kPrefetchLine, 0};
      } else {
        const uint32_t* inputs = tile + 1 < last               ? inputs_of(tile + 1, step)
                                 : step + count < stream.steps ? inputs_of(first, step + count)
                                                               : inputs_of(first, 0);
        const uint8_t* base = reinterpret_cast<const uint8_t*>(inputs);
        const int64_t part = (tile - first) * taken * kPrefetchLine;
        ahead = {base, kPrefetchLine, part < next - raw ? next + part - base : 0};
      }
      const TileKernel kernel = direct != nullptr ? direct : tile_kernel<kMaxRows>(widened ? Format::f32 : stream.format, rows);
      kernel(w, inputs_of(tile, step), taken, acc + (tiles.begin(tile) - row0) * kPanel, ahead);
    }
  }
}

constexpr int64_t kGatedRun = 64;  // panels

constexpr int64_t kRowsBehind = 15;  // that matrix registers write too many

struct Sums {
  alignas(64) float first[(kBlockRows + kRowsBehind) * kPanel];
  alignas(64) float second[(kBlockRows + kRowsBehind) * kPanel];
};

// Rows whose sums are kept together: whole tiles [first, last), or whole matrix registers.
struct Block {
  int64_t first, last, row0, rows;
};

// All rows of a product in blocks, and how many of those take every panel before the next ones do: inputs that do not stay in
// the second cache from panel to panel are waited for, where products are fast or that cache is small.
class Blocks {
 public:
  Blocks(const FusedLinearArgs& args, const Tiles& tiles)
      : tiles_(tiles), matrix_(in_matrix(args)), row_bytes_(input_bytes(args, matrix_)),
        split_(matrix_ ? (args.rows + kTwo - 1) / kTwo : tiles.count, most()) {}
  int64_t count() const { return split_.count; }
  int64_t together() const {
    if (split_.count == 0 || kCachedInputs == 0 || (kMatrix && !matrix_)) return split_.count;
    const int64_t units = split_.base + (split_.extra > 0 ? 1 : 0);  // of the largest block
    return std::max<int64_t>(1, kCachedInputs / (row_bytes_ * units * (matrix_ ? kTwo : kMaxRows)));
  }
  Block operator[](int64_t i) const {
    const int64_t first = split_.begin(i), last = split_.begin(i + 1);
    const int64_t row0 = matrix_ ? first * kTwo : tiles_.begin(first);
    return {first, last, row0, (matrix_ ? std::min(last * kTwo, tiles_.rows) : tiles_.begin(last)) - row0};
  }

 private:
  static constexpr int64_t kTwo = 2 * kMatrixGroup;
#if defined(HEADRACE_ISA_amx)
  static constexpr int64_t kCachedInputs = 3 << 19;  // of a second cache of 2 MB
#elif defined(HEADRACE_ISA_avx2)
  static constexpr int64_t kCachedInputs = 3 << 17;  // of half a megabyte, as on Zen 3
#else
  static constexpr int64_t kCachedInputs = 0;  // no bound was measured
#endif
  static int64_t input_bytes(const FusedLinearArgs& args, bool matrix) {  // of a row, in the largest of its forms
    int64_t largest = 0;
    for (int i = 0; i < args.count; ++i) {
      const Form form = form_of(args.w[i].format);
      const int64_t bytes = matrix ? matrix_stride(form, args.k) : form_words(form, args.k) * 4;
      largest = std::max(largest, bytes + (form == Form::grouped ? group_count(args.k) * kGroupInputs * 4 : 0));
    }
    return largest;
  }
  int64_t most() const {
    if (!matrix_) return kBlockRows / kMaxRows;
    return std::clamp<int64_t>(kCachedInputs / (row_bytes_ * kTwo), 1, kBlockRows / kTwo);
  }
  const Tiles& tiles_;
  bool matrix_;
  int64_t row_bytes_;  // of inputs
  Tiles split_;
};

// Blocks [begin, end).
struct Sweep {
  const Blocks& blocks;
  int64_t begin, end;
};

// Sums of one panel for the rows of a block, settled.
inline void multiply(const FusedLinearArgs& args, const Scratch& scratch, const Tiles& tiles, int which, int64_t panel,
                     const Block& block, float* acc) {
  const Weight& w = args.w[which];
  const auto [first, last, row0, rows] = block;
#if defined(HEADRACE_ISA_amx)
  if (in_matrix(args) && !is_grouped(w.format)) {
    const Stream stream = stream_of(w, panel);
    const Form form = form_of(w.format);
    const int64_t stride = matrix_stride(form, w.k);
    const uint8_t* x = reinterpret_cast<const uint8_t*>(scratch.words[static_cast<int>(form)]) + row0 * stride;
    run_matrix(w.format, stream.weights, stream.steps, x, stride, rows, reinterpret_cast<int32_t*>(acc));
    return settle(args, scratch, which, panel, row0, rows, acc);
  }
#endif
  std::memset(acc, 0, static_cast<size_t>(rows) * kPanel * 4);
  if (w.format == Format::e4m3_g32) {
    run_fp8(w, panel, scratch, tiles, first, last, acc);
#if defined(HEADRACE_ISA_amx)
  } else if (in_matrix(args)) {
    run_grouped_matrix(w, panel, scratch, row0, rows, acc);
#endif
#if defined(HEADRACE_ISA_avx2)
  } else if (w.format == Format::int4) {
    run_int4(stream_of(w, panel).weights, rotated_k(w.k) / kGroup, scratch, tiles, first, last, reinterpret_cast<int32_t*>(acc));
#endif
  } else if (is_grouped(w.format)) {
    run_grouped(w, panel, scratch, tiles, first, last, acc);
  } else {
    run_panel(stream_of(w, panel), scratch.words[static_cast<int>(form_of(w.format))], tiles, first, last, acc);
  }
  settle(args, scratch, which, panel, row0, rows, acc);
}

// The rows of a sweep and one panel.
inline void do_panel(const FusedLinearArgs& args, const Scratch& scratch, const Tiles& tiles, const Sweep& sweep, int which,
                     int64_t panel, Sums& sums) {
  for (int64_t i = sweep.begin; i < sweep.end; ++i) {
    const Block block = sweep.blocks[i];
    multiply(args, scratch, tiles, which, panel, block, sums.first);
    write_out(args, which, panel, block.row0, block.rows, sums.first, nullptr);
  }
}

// The rows of a sweep and neighboring panels of gate and up: as many of the gate's as the buffer of sums holds, then the
// up's, because the two are streams of their own, and each change from one to the other makes the memory wait.
inline void do_gated_panels(const FusedLinearArgs& args, const Scratch& scratch, const Tiles& tiles, const Sweep& sweep,
                            int64_t begin, int64_t end, Sums& sums) {
  const int64_t run = sweep.blocks.count() > 1 ? 1 : std::min<int64_t>(kGatedRun, kBlockRows / args.rows);
  for (int64_t panel = begin; panel < end; panel += run) {
    const int64_t panels = std::min(run, end - panel);
    for (int64_t b = sweep.begin; b < sweep.end; ++b) {
      const Block block = sweep.blocks[b];
      for (int64_t i = 0; i < panels; ++i) {
        multiply(args, scratch, tiles, 0, panel + i, block, sums.first + i * block.rows * kPanel);
      }
      for (int64_t i = 0; i < panels; ++i) {
        multiply(args, scratch, tiles, 1, panel + i, block, sums.second);
        write_out(args, 1, panel + i, block.row0, block.rows, sums.second, sums.first + i * block.rows * kPanel);
      }
    }
  }
}

inline int64_t panel_cost(const FusedLinearArgs& args, int which) {
  const int64_t cost = panel_bytes_of(args.w[which].format, args.k);
  return args.act == Act::none ? cost : cost + panel_bytes_of(args.w[1].format, args.k);
}

void product(const FusedLinearArgs& args, int part, int parts) {
  if (args.rows == 0) return;
  const Scratch scratch = scratch_of(args.scratch, args.rows, args.k, formats_of(args));
  const Tiles tiles(args.rows, kMaxRows);
  const Blocks blocks(args, tiles);
  const int units = args.act == Act::none ? args.count : 1;
  int64_t total = 0;
  for (int i = 0; i < units; ++i) total += panel_count(args.w[i].n) * panel_cost(args, i);
  const Range mine = share(total, part, parts);  // of all panels' bytes in a row; a panel goes with its first byte
#if defined(HEADRACE_ISA_amx)
  std::optional<MatrixRegisters> registers;
  if (in_matrix(args)) registers.emplace(std::min(args.rows, kSquare), is_grouped(args.w[0].format));
#endif
  Sums sums;
  int64_t start = 0;
  for (int i = 0; i < units; ++i) {
    const int64_t cost = panel_cost(args, i), panels = panel_count(args.w[i].n);
    const auto at = [&](int64_t byte) {
      const int64_t panel = (byte - start + cost - 1) / cost;
      return byte <= start ? 0 : (panel < panels ? panel : panels);
    };
    const int64_t begin = at(mine.begin), end = at(mine.end);
    for (int64_t block = 0; block < blocks.count(); block += blocks.together()) {
      const Sweep sweep{blocks, block, std::min(block + blocks.together(), blocks.count())};
      if (args.act == Act::none) {
        for (int64_t panel = begin; panel < end; ++panel) do_panel(args, scratch, tiles, sweep, i, panel, sums);
      } else {
        do_gated_panels(args, scratch, tiles, sweep, begin, end, sums);
      }
    }
    start += panels * cost;
  }
}

void prepare_all(const FusedLinearArgs& args, int part, int parts) {
  if (args.rows > 0) prepare(args, part, parts);
}

size_t scratch_bytes(int64_t rows, int64_t k, FormatSet formats) { return scratch_of(nullptr, rows, k, formats).total; }

}  // namespace

extern const LinearKernels HEADRACE_TABLE(linear);
const LinearKernels HEADRACE_TABLE(linear) = {scratch_bytes, prepare_all, product, unpack_row, pack};

}  // namespace headrace
