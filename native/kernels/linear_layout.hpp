// How a product lays out its scratch: rows in tiles, the inputs in the forms that the formats need.
//
// Rows are split into tiles of at most kMaxRows rows, as even as possible. A form of a tile is
// [steps][rows of the tile] words of 32 bits, where a step is one input as float (f32, f16, FP8 weights),
// two as bf16 (AVX2: two words of one each) or four as int8, scaled by row (int8, int4) or by 32 inputs (grouped formats): whatever a kernel broadcasts next lies next in memory.
#pragma once
#include "../formats/bf16.hpp"
#include "../formats/f16.hpp"
#include "../formats/f32.hpp"
#include "../formats/grouped.hpp"
#include "../formats/int4.hpp"
#include "../formats/int8.hpp"

namespace headrace {
namespace {

// Tile kernels are leaves of their own: inlined into a caller, compilers spill their accumulators.
#if defined(__clang__)
#define HEADRACE_LEAF __attribute__((noinline))
#else
#define HEADRACE_LEAF __attribute__((noipa))
#endif

// What a tile kernel prefetches: at each step the line at base + step * stride, and the
// one `second` bytes further; where `far` is not 0, so many bytes further both of them for the second cache.
struct Prefetch {
  const uint8_t* base;
  int64_t stride;
  int64_t second;
  int64_t far = 0;
};

// Weights that are read once are fetched ahead: so many bytes into the first cache and, where that has too few places for
// all that is on its way from memory, so many into the second.
#if defined(HEADRACE_ISA_amx)
constexpr int64_t kAheadBytes = 512, kFarBytes = 3584;  // as measured on a Xeon; from 4,096 on it is slower
#else
constexpr int64_t kAheadBytes = 6144, kFarBytes = 0;  // as measured on Zen 4
#endif
inline void fetch_ahead(const uint8_t* at) {
  __builtin_prefetch(at + kAheadBytes, 0, 3);
  if (kFarBytes > 0) __builtin_prefetch(at + kFarBytes, 0, 2);
}

// acc[rows][32] += x[steps][rows] * w[steps][32], `rows` fixed per kernel.
using TileKernel = void (*)(const uint8_t* w, const uint32_t* x, int64_t steps, void* acc, Prefetch ahead);

// A tile's share of a chunk of a grouped weight: acc[rows][32] += products, `rows` fixed per kernel.
struct GroupTile {
  const uint8_t* codes;  // [groups], each [8 steps][32][4] or planes of codes, `stride` bytes apart
  const uint8_t* table;  // [16] bytes for the codes of types that have a table
  int64_t stride;
  const GroupScales* scales;  // [groups]; a tile by itself reads them from the head before each group's codes
  Scales kind;
  const uint8_t* fine;
  int64_t head_bytes;
  const uint32_t* x;          // [groups * 8 steps][rows]
  const uint32_t* inputs;     // [groups][kGroupInputs][rows]
  int64_t groups;
  int zero;  // of the codes
  float* acc;
  const uint8_t* ahead;  // to be fetched: `ahead_stride` bytes with each group
  int64_t ahead_stride;
};
using GroupKernel = void (*)(const GroupTile& tile);

// What a grouped kernel needs of a row's 32 inputs: their scale, minus the sums of the codes of inputs 0 to 15, 16 to 31
// and of all (integers), minus scale * sum of all.
enum GroupInput : int { kInputScale = 0, kInputLow = 1, kInputHigh = 2, kInputAll = 3, kInputSum = 4 };
constexpr int kGroupInputs = 5;

enum class Form : int { f32 = 0, bf16 = 1, int8 = 2, grouped = 3 };
constexpr int kForms = 4;
constexpr int64_t kRowBuffers = 64;  // more threads than this do not help to prepare
constexpr int64_t kRowsTogether = 4;  // rounded rows that are spread in one go


constexpr Form form_of(Format format) {
  if (format == Format::int8 || format == Format::int4) return Form::int8;
  if (is_grouped(format) && format != Format::e4m3_g32) return Form::grouped;
  return format == Format::bf16 ? Form::bf16 : Form::f32;
}
// Products that go through matrix registers (linear_amx.hpp, linear_grouped_amx.hpp): with int8 and int4 alone, or grouped
// formats alone, from so many rows on, with bf16 alone always, so that a row's bits depend on the instruction and not on the
// step. Their inputs are not cut into tiles: 16 rows, or the last few, lie together as [depths][rows][64 bytes], with zeros
// behind the inputs.
#if defined(HEADRACE_ISA_amx)
constexpr bool kMatrix = true;
#else
constexpr bool kMatrix = false;
#endif
constexpr int64_t kMatrixRows = 4, kMatrixGroupedRows = 12, kMatrixGroup = 16, kMatrixDepth = 64;
inline bool in_matrix(const FusedLinearArgs& args) {
  const Form form = form_of(args.w[0].format);
  for (int i = 1; i < args.count; ++i) {
    if (form_of(args.w[i].format) != form) return false;
  }
  if (form == Form::grouped) return kMatrix && args.rows >= kMatrixGroupedRows;
  return kMatrix && (form == Form::bf16 || (form == Form::int8 && args.rows >= kMatrixRows));
}
// Rows that lie together from `first` on.
inline int64_t matrix_together(int64_t rows, int64_t first) { return rows - first < kMatrixGroup ? rows - first : kMatrixGroup; }
// Bytes of a row.
inline int64_t matrix_stride(Form form, int64_t k) {
  return round_up(form == Form::bf16 ? 2 * k : rotated_k(k), kMatrixDepth);
}

// AVX2 does not make int4's codes into weights (linear_int4_avx2.hpp): it multiplies offsets with sums of a group's inputs,
// those of two groups in the halves of a word.
#if defined(HEADRACE_ISA_avx2)
constexpr bool kPairSums = true;
#else
constexpr bool kPairSums = false;
#endif
inline int64_t pair_count(int64_t k) { return (rotated_k(k) / kGroup + 1) / 2; }

// Inputs of bf16 weights: two in a word or, on AVX2, each rounded to bf16 as a float.
#if defined(HEADRACE_ISA_avx2)
constexpr int64_t kBf16Words = 2;  // of a step
#else
constexpr int64_t kBf16Words = 1;
#endif

// Steps of a panel's weights, and words of a row's inputs.
inline int64_t weight_steps(Form form, int64_t k) {
  if (form == Form::int8 || form == Form::grouped) return round_up(k, kGroup) / 4;
  return form == Form::bf16 ? (k + 1) / 2 : k;
}
inline int64_t form_words(Form form, int64_t k) { return weight_steps(form, k) * (form == Form::bf16 ? kBf16Words : 1); }
inline int64_t panel_bytes_of(Format format, int64_t k) {
  switch (format) {
    case Format::f32:
      return F32::panel_bytes(k);
    case Format::f16:
      return F16::panel_bytes(k);
    case Format::bf16:
      return Bf16::panel_bytes(k);
    case Format::int8:
      return Int8::panel_bytes(k);
    case Format::int4:
      return Int4::panel_bytes(k);
    default:
      return grouped_panel_bytes(grouped(format), k);
  }
}

struct Tiles {
  int64_t rows, count;
  int64_t base, extra;  // rows of a tile, and how many tiles at the front have one more: divided once, since every panel needs it
  Tiles(int64_t rows_, int64_t most)
      : rows(rows_), count((rows_ + most - 1) / most), base(count > 0 ? rows / count : 0), extra(rows - base * count) {}
  int64_t begin(int64_t tile) const { return tile * base + (tile < extra ? tile : extra); }
  int64_t size(int64_t tile) const { return base + (tile < extra ? 1 : 0); }
  int64_t of_row(int64_t row) const {
    return row < extra * (base + 1) ? row / (base + 1) : extra + (row - extra * (base + 1)) / base;
  }
};

constexpr FormatSet formats_with(Form form) {
  FormatSet formats = 0;
  for (int i = 0; i < kFormatCount; ++i) {
    if (form_of(static_cast<Format>(i)) == form) formats |= set_of(static_cast<Format>(i));
  }
  return formats;
}
constexpr FormatSet kFormatsOf[kForms] = {formats_with(Form::f32), formats_with(Form::bf16), formats_with(Form::int8),
                                          formats_with(Form::grouped)};

// Whether weights in these formats need their inputs in a form.
inline bool needs(FormatSet formats, Form form) { return (formats & kFormatsOf[static_cast<int>(form)]) != 0; }

// Memory of the forms that are needed; the others have none.
struct Scratch {
  uint32_t* words[kForms];  // by form; tile t starts at begin(t) * form_words
  // Of the grouped form: tile t, [groups][kGroupInputs][rows of t], at begin(t) * groups * kGroupInputs; for matrix registers
  // the rows that lie together are a tile.
  uint32_t* group_inputs;
  uint32_t* pair_sums;      // of the int8 form, where kPairSums: tile t, [pairs of groups][rows of t], at begin(t) * pairs
  float* scales;            // [rows] of the int8 form
  int32_t* sums;            // [rows] of the int8 form
  uint8_t* buffers;         // [kRowBuffers][buffer_bytes]
  int64_t buffer_bytes;
  size_t total;
};

inline Scratch scratch_of(uint8_t* base, int64_t rows, int64_t k, FormatSet formats) {
  Scratch s{};
  size_t offset = 0;
  const auto take = [&](int64_t bytes) {
    uint8_t* at = base == nullptr ? nullptr : base + offset;
    offset += static_cast<size_t>(round_up(bytes, 64));
    return at;
  };
  for (int form = 0; form < kForms; ++form) {
    const Form which = static_cast<Form>(form);
    if (!needs(formats, which)) continue;
    const bool padded = kMatrix && which != Form::f32;
    s.words[form] = reinterpret_cast<uint32_t*>(take(rows * (padded ? matrix_stride(which, k) : form_words(which, k) * 4)));
  }
  if (needs(formats, Form::grouped)) s.group_inputs = reinterpret_cast<uint32_t*>(take(rows * group_count(k) * kGroupInputs * 4));
  if (kPairSums && needs(formats, Form::int8)) s.pair_sums = reinterpret_cast<uint32_t*>(take(rows * pair_count(k) * 4));
  if (needs(formats, Form::int8)) {
    s.scales = reinterpret_cast<float*>(take(rows * 4));
    s.sums = reinterpret_cast<int32_t*>(take(rows * 4));
  }
  s.buffer_bytes = round_up(rotated_k(k) * (4 + 2 * kRowsTogether), 64);  // floats; rows rounded by row and by group, or to bf16
  s.buffers = take((rows < kRowBuffers ? rows : kRowBuffers) * s.buffer_bytes);
  s.total = offset;
  return s;
}

struct Range {
  int64_t begin, end;
};
inline Range share(int64_t total, int part, int parts) { return {total * part / parts, total * (part + 1) / parts}; }

}  // namespace
}  // namespace headrace
