// Attention's softmax over a block of scores.
#pragma once
#include "attention_block.hpp"

namespace headrace::HEADRACE_NAMESPACE {

static inline F cap(F x, float softcap) { return splat(softcap) * tanh(x / splat(softcap)); }

// Caps one row of scores and hides keys beyond low .. high of the block (inclusive, may be none).
static inline void mask_row(float* scores, int vectors, int low, int high, float softcap) {
  const int first = softcap > 0 || low > 0 ? 0 : larger(high + 1, 0) / kWidth;  // before it nothing changes
  I key;
  for (int i = 0; i < kWidth; ++i) key[i] = first * kWidth + i;
  for (int v = first; v < vectors; ++v, key += splat_int(kWidth)) {
    F s = load(scores + v * kWidth);
    if (softcap > 0) s = cap(s, softcap);
    s = ((key < splat_int(low)) | (key > splat_int(high))) ? splat(-INFINITY) : s;
    store(scores + v * kWidth, s);
  }
}

// Adds what the table has for the buckets of the distances first, first - 1, ... to `count` scores; `step` numbers of
// the table lie from one key to the next.
static inline void add_by_distance(float* scores, int count, const float* table, int64_t step, int64_t bucket_step,
                                   const AttendArgs& args, int first, float unit) {
  const int32_t* bucket_of = args.bucket_of + args.reach;
  const int reach = args.reach;
  for (int i = 0; i < count; ++i) {
    const int distance = first - i;
    const int near = distance > reach ? reach : distance < -reach ? -reach : distance;
    scores[i] += unit * table[i * step + bucket_of[near] * bucket_step];
  }
}

// Adds the relative bias to the scores of rows [first, last) with the keys from `begin` on. Three sums, in this order,
// for every score alone.
template <typename T>
static void add_bias(const Tile& tile, float* scores, int first, int last, int vectors, int begin) {
  constexpr float kUnit = Arithmetic<T>::kUnit;
  const AttendArgs& args = *tile.args;
  const int64_t row_size = int64_t{args.heads} * args.buckets;
  const int from = larger(begin, tile.first_key), end = smaller(begin + vectors * kWidth, tile.last_key + 1);
  for (int row = first; row < last; ++row, scores += kBlock) {
    const int token = row / tile.heads, head = tile.first_head + row % tile.heads, position = tile.positions[token];
    const int64_t place = tile.positions + token - args.step->positions, of_head = int64_t{head} * args.buckets;
    float* to = scores + from - begin;
    const auto add = [&](const float* table, int64_t step, int64_t bucket_step) {
      add_by_distance(to, end - from, table, step, bucket_step, args, position - from, kUnit);
    };
    if (args.bias_q != nullptr) add(args.bias_q + place * row_size + of_head, 0, 1);
    if (args.bias_k != nullptr) add(args.bias_k + (place - position + from) * row_size + of_head, row_size, 1);
    if (args.bias != nullptr) add(args.bias + head, 0, args.heads);
  }
}

// Caps and masks the scores of rows [first, last) of a block with some keys that not all rows see.
template <typename T>
static inline void mask_rows(const Tile& tile, float* scores, int first, int last, int vectors, int begin) {
  const AttendArgs& args = *tile.args;
  int token = first / tile.heads, head = first % tile.heads;
  for (int row = first; row < last; ++row, scores += kBlock) {
    const int position = tile.positions[token];
    mask_row(scores, vectors, first_visible(args, position) - begin,
             last_visible(args, position, tile.length) - begin, args.softcap * Arithmetic<T>::kUnit);
    if (++head == tile.heads) head = 0, ++token;
  }
}

// The highest score of each of kWidth rows.
static inline F top_of_rows(const float* scores, int vectors) {
  F top[kWidth];
  for (int r = 0; r < kWidth; ++r) top[r] = load(scores + r * kBlock);
  for (int v = 1; v < vectors; ++v) {
    for (int r = 0; r < kWidth; ++r) top[r] = max(load(scores + r * kBlock + v * kWidth), top[r]);
  }
  return fold_rows(top, [](F a, F b) { return max(a, b); });
}

// Scores of `rows` rows become weights e^(score - shift), where they were; returns the sums of weights. Weights of codes
// (`scales` not null) have their scales in them.
template <typename T, typename Between>
static inline F weigh_rows(float* scores, int rows, int vectors, const float* shift, const float* scales,
                           const Between& between) {
  F totals[kWidth] = {};
  for (int r = 0; r < rows; ++r) {
    between();
    float* row = scores + r * kBlock;
    auto* weights = weights_of<T>(row);  // at most as wide as scores: written behind them
    const F from = splat(shift[r]);
    F total = {};
    for (int v = 0; v < vectors; ++v) {
      const F w = Arithmetic<T>::exp(load(row + v * kWidth) - from);
      to_factors(weights + v * kWidth, rounded<T>(scales == nullptr ? w : w * load(scales + v * kWidth)));
      total += w;
    }
    totals[r] = total;
  }
  return fold_rows(totals, [](F a, F b) { return a + b; });
}

// Scores of rows [first, last) with vectors * kWidth keys from `begin` on become weights e^(score - top of the row), where
// they were (between two rows `between` is called); decay is what the old output and sum are worth under the new top. kWidth rows at a time: those behind the
// last row of the tile are computed with and mean nothing.
template <typename T, typename Between>
static inline void soften(const Tile& tile, const Scratch& s, float* scores, int first, int last, int vectors, int begin,
                          const Between& between) {
  if (tile.args->bucket_of != nullptr) add_bias<T>(tile, scores, first, last, vectors, begin);
  if (tile.args->softcap > 0 || begin < tile.first_shared || begin + vectors * kWidth > tile.last_shared + 1) {
    mask_rows<T>(tile, scores, first, last, vectors, begin);
  }
  const float* scales = is_coded(tile.args->kv.type) ? s.value_scales : nullptr;
  for (int row = first; row < last; row += kWidth, scores += kWidth * kBlock) {
    const F old_top = load(s.top + row);
    const F top = max(top_of_rows(scores, vectors), old_top);
    const F shift = top == splat(-INFINITY) ? F{} : top;  // nothing seen yet: every weight is e^-inf
    const F decay = Arithmetic<T>::exp(old_top - shift);
    float shifts[kWidth];
    store(shifts, shift);
    store(s.top + row, top);
    store(s.decay + row, decay);
    const F total = weigh_rows<T>(scores, smaller(kWidth, last - row), vectors, shifts, scales, between);
    store(s.sum + row, load(s.sum + row) * decay + total);
  }
}

}  // namespace headrace::HEADRACE_NAMESPACE
