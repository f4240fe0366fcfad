// Phase 0: norm, then the forms of the input that the weights need.
//
// Each row by itself and in an order that depends on its length alone: the sum of squares runs in 32
// lanes that are folded pairwise, the rotation's butterflies go from distance 1 upwards.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "linear_layout.hpp"

namespace headrace {
namespace {

inline float sum_of_squares(const float* x, int64_t k) {
  float lanes[32] = {};
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
    for (int lane = 0; lane < 32; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  for (int lane = 0; i + lane < k; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (int width = 16; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

inline void norm_row(const float* x, const float* weight, float eps, int64_t k, float* out) {
  const float mean = sum_of_squares(x, k) / static_cast<float>(k);
  const float inverse = 1.0f / __builtin_sqrtf(mean + eps);
  for (int64_t i = 0; i < k; ++i) out[i] = x[i] * inverse * weight[i];
}

#if !defined(HEADRACE_OWN_ROUNDING)
// The bits of the largest magnitude; NaN is larger than any number. `count` is a multiple of 32.
inline uint32_t largest_magnitude(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// q = nearest(x * factor), which fits a byte, ties to even; returns the sum.
inline int32_t round_all(const float* x, int64_t count, float factor, int8_t* out) {
  int32_t totals[32] = {}, sum = 0;
  for (int64_t i = 0; i < count; i += 32) {
    for (int lane = 0; lane < 32; ++lane) {
      const int32_t q = round_to_int(x[i + lane] * factor);
      totals[lane] += q;
      out[i + lane] = static_cast<int8_t>(q);
    }
  }
  for (const int32_t total : totals) sum += total;
  return sum;
}

// The same of the 32 inputs of a group, with a sum of each half.
inline void round_group(const float* x, float factor, int8_t* out, int32_t* low, int32_t* high) {
  int32_t q[kGroup];
  *low = *high = 0;
  for (int i = 0; i < kGroup; ++i) q[i] = round_to_int(x[i] * factor);
  for (int i = 0; i < kGroup / 2; ++i) {
    *low += q[i];
    *high += q[kGroup / 2 + i];
  }
  for (int i = 0; i < kGroup; ++i) out[i] = static_cast<int8_t>(q[i]);
}
#endif

// Rounds a row: q = nearest(x * 127 / largest). A row with a NaN or an infinity gets scale NaN, so that its outputs are
// NaN.
inline void quantise_row(const float* x, int64_t count, int8_t* out, float* scale, int32_t* sum) {
  const uint32_t largest_bits = largest_magnitude(x, count);
  const float largest = float_of(largest_bits);
  const bool usable = largest >= kTiny && largest_bits < 0x7f800000u;
  *scale = largest_bits >= 0x7f800000u ? float_of(0x7fc00000u) : (usable ? largest / 127.0f : 0.0f);
  *sum = 0;
  if (usable) {
    *sum = round_all(x, count, 127.0f / largest, out);
  } else {
    std::memset(out, 0, static_cast<size_t>(count));
  }
}

// Rounds 32 inputs to int8 by their own largest magnitude; the numbers of GroupInput are `stride` apart.
inline void quantise_group(const float* x, int64_t stride, int8_t* out, uint32_t* inputs) {
  const uint32_t largest_bits = largest_magnitude(x, kGroup);
  const float largest = float_of(largest_bits);
  const bool finite = largest_bits < 0x7f800000u, usable = finite && largest >= kTiny;
  const float scale = usable ? largest / 127.0f : (finite ? 0.0f : float_of(0x7fc00000u));
  int32_t low = 0, high = 0;
  if (usable) {
    round_group(x, 127.0f / largest, out, &low, &high);
  } else {
    std::memset(out, 0, kGroup);
  }
  inputs[kInputScale * stride] = bits_of(scale);
  inputs[kInputLow * stride] = static_cast<uint32_t>(-low);
  inputs[kInputHigh * stride] = static_cast<uint32_t>(-high);
  inputs[kInputAll * stride] = static_cast<uint32_t>(-low - high);
  inputs[kInputSum * stride] = bits_of(scale * static_cast<float>(-low - high));
}

// Words of 32 bits, `stride` apart.
inline void spread(const void* words, int64_t steps, int64_t stride, uint32_t* out) {
  if (stride == 1) {
    std::memcpy(out, words, static_cast<size_t>(steps) * 4);
    return;
  }
  for (int64_t s = 0; s < steps; ++s) std::memcpy(out + s * stride, static_cast<const uint8_t*>(words) + s * 4, 4);
}

// The words of four rows side by side, those of a step together; `steps` is a multiple of four.
inline void spread_four(const int8_t* rows, int64_t steps, int64_t stride, uint32_t* out) {
  typedef uint32_t Four __attribute__((vector_size(16)));
  for (int64_t s = 0; s < steps; s += 4) {
    Four a, b, c, d;
    std::memcpy(&a, rows + s * 4, sizeof a);
    std::memcpy(&b, rows + (steps + s) * 4, sizeof b);
    std::memcpy(&c, rows + (2 * steps + s) * 4, sizeof c);
    std::memcpy(&d, rows + (3 * steps + s) * 4, sizeof d);
    const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    const Four step[4] = {
        __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
        __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
    for (int i = 0; i < 4; ++i) std::memcpy(out + (s + i) * stride, &step[i], sizeof(Four));
  }
}

// One row in all forms. Rounded to int8 it goes to `by_row` and `by_group`, from where it is spread with others; as bf16 for
// matrix registers, to `halves`.
inline void prepare_row(const FusedLinearArgs& args, const Scratch& scratch, const Tiles& tiles, FormatSet formats,
                        int64_t row, float* buffer, int8_t* by_row, int8_t* by_group, uint16_t* halves) {
  const int64_t k = args.k;
  const float* x = args.x + (args.row_ids == nullptr ? row : args.row_ids[row]) * k;
  const int64_t tile = tiles.of_row(row);
  const int64_t stride = tiles.size(tile), first = row - tiles.begin(tile);
  const auto place = [&](Form form) {
    return scratch.words[static_cast<int>(form)] + tiles.begin(tile) * form_words(form, k) + first;
  };
  if (args.norm_weight != nullptr) {
    norm_row(x, args.norm_weight, args.norm_eps, k, buffer);
    x = buffer;
  }
  if (needs(formats, Form::f32)) spread(x, k, stride, place(Form::f32));
  if (k < rotated_k(k)) {
    if (x != buffer) std::memcpy(buffer, x, static_cast<size_t>(k) * 4);
    for (int64_t i = k; i < rotated_k(k); ++i) buffer[i] = 0;
    x = buffer;
  }
  if (needs(formats, Form::bf16) && !in_matrix(args)) {
    uint32_t* out = place(Form::bf16);
    for (int64_t i = 0; i < form_words(Form::bf16, k); ++i) {
      if constexpr (kBf16Words == 2) {
        out[i * stride] = static_cast<uint32_t>(to_bf16(x[i])) << 16;
      } else {
        out[i * stride] = to_bf16(x[2 * i]) | static_cast<uint32_t>(to_bf16(x[2 * i + 1])) << 16;
      }
    }
  } else if (needs(formats, Form::bf16)) {
    for (int64_t i = 0; i < rotated_k(k); ++i) halves[i] = to_bf16(x[i]);
  }
  if (needs(formats, Form::grouped)) {
    const bool matrix = in_matrix(args);
    const int64_t begin = matrix ? row / kMatrixGroup * kMatrixGroup : tiles.begin(tile);
    const int64_t rows = matrix ? matrix_together(args.rows, begin) : stride;
    uint32_t* inputs = scratch.group_inputs + begin * group_count(k) * kGroupInputs + row - begin;
    for (int64_t g = 0; g < group_count(k); ++g) {
      quantise_group(x + g * kGroup, rows, by_group + g * kGroup, inputs + g * kGroupInputs * rows);
    }
  }
  if (needs(formats, Form::int8)) {
    rotate_row(x, buffer, rotated_k(k), rotation_block(k));
    quantise_row(buffer, rotated_k(k), by_row, scratch.scales + row, scratch.sums + row);
#if defined(HEADRACE_ISA_avx2)
    sum_pairs(by_row, rotated_k(k) / kGroup, stride, scratch.pair_sums + tiles.begin(tile) * pair_count(k) + first);
#endif
  }
}

// Rows of `bytes` bytes, one after the other, for matrix registers.
inline void lay_out(const FusedLinearArgs& args, const Scratch& scratch, int64_t row, int64_t count, const void* rounded,
                    int64_t bytes) {
  const Form form = form_of(args.w[0].format);
  const int64_t stride = matrix_stride(form, args.k);
  uint8_t* base = reinterpret_cast<uint8_t*>(scratch.words[static_cast<int>(form)]);
  const uint8_t* from = static_cast<const uint8_t*>(rounded);
  for (const int64_t end = row + count; row < end; ++row, from += bytes) {
    const int64_t first = row / kMatrixGroup * kMatrixGroup, together = matrix_together(args.rows, first);
    uint8_t* out = base + first * stride + (row - first) * kMatrixDepth;
    for (int64_t i = 0; i < stride; i += kMatrixDepth, out += together * kMatrixDepth) {
      const int64_t left = std::min(kMatrixDepth, bytes - i);
      std::memcpy(out, from + i, static_cast<size_t>(left));
      std::memset(out + left, 0, static_cast<size_t>(kMatrixDepth - left));
    }
  }
}

// Up to kRowsTogether rows of a tile.
inline void prepare_rows(const FusedLinearArgs& args, const Scratch& scratch, const Tiles& tiles, FormatSet formats,
                         int64_t row, int64_t count, float* buffer) {
  const int64_t padded = rotated_k(args.k), steps = padded / 4, tile = tiles.of_row(row), stride = tiles.size(tile);
  int8_t* by_row = reinterpret_cast<int8_t*>(buffer + padded);
  int8_t* by_group = by_row + kRowsTogether * padded;
  uint16_t* halves = reinterpret_cast<uint16_t*>(by_row);  // of matrix registers, where no other form is needed
  for (int64_t i = 0; i < count; ++i) {
    prepare_row(args, scratch, tiles, formats, row + i, buffer, by_row + i * padded, by_group + i * padded,
                halves + i * padded);
  }
  if (in_matrix(args)) {
    const bool by_groups = needs(formats, Form::grouped);
    const int64_t bytes = needs(formats, Form::bf16) ? 2 * padded : padded;
    return lay_out(args, scratch, row, count, by_groups ? by_group : by_row, bytes);
  }
  for (const Form form : {Form::int8, Form::grouped}) {
    if (!needs(formats, form)) continue;
    const int8_t* rounded = form == Form::int8 ? by_row : by_group;
    uint32_t* out = scratch.words[static_cast<int>(form)] + tiles.begin(tile) * steps + row - tiles.begin(tile);
    if (count == kRowsTogether) {
      spread_four(rounded, steps, stride, out);
    } else {
      for (int64_t i = 0; i < count; ++i) spread(rounded + i * padded, steps, stride, out + i);
    }
  }
}

inline void prepare(const FusedLinearArgs& args, int part, int parts) {
  const int helpers = parts < kRowBuffers ? parts : static_cast<int>(kRowBuffers);
  const int workers = args.rows < helpers ? static_cast<int>(args.rows) : helpers;
  if (part >= workers) return;
  const FormatSet formats = formats_of(args);
  const Scratch scratch = scratch_of(args.scratch, args.rows, args.k, formats);
  const Tiles tiles(args.rows, kMaxRows);
  float* buffer = reinterpret_cast<float*>(scratch.buffers + part * scratch.buffer_bytes);
  const Range rows = share(args.rows, part, workers);
  for (int64_t row = rows.begin, count; row < rows.end; row += count) {
    const int64_t end = std::min<int64_t>(rows.end, tiles.begin(tiles.of_row(row) + 1));
    count = std::min<int64_t>(kRowsTogether, end - row);
    prepare_rows(args, scratch, tiles, formats, row, count, buffer);
  }
}

}  // namespace
}  // namespace headrace
