// What attention works on: a tile of queries, a block of keys, and one thread's scratch.
#pragma once
#include "attention_tiles.hpp"
#include "kv_codes.hpp"

namespace headrace::HEADRACE_NAMESPACE {

// One thread's scratch. Rows of q (factors) and out are padded to whole vectors.
struct Scratch {
  float *q, *scores, *out, *top, *sum, *decay;
  float *key_scales, *value_scales;  // of a block of codes
  float* turned;  // a block of values that were keys, or of numbers that were codes
};

static inline int padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }
static inline int min_slices(int group) { return (group + kMaxTileRows - 1) / kMaxTileRows; }
static inline int max_rows(int group) {
  return larger(1, kMaxTileRows / group) * ((group + min_slices(group) - 1) / min_slices(group));
}
static inline size_t scratch_floats(int rows, int head_dim) {
  const size_t padded_rows = static_cast<size_t>((rows + 15) / 16 * 16);
  return padded_rows * (2 * static_cast<size_t>(padded_dim(head_dim)) + kBlock + 3) +
         kBlock * (static_cast<size_t>(head_dim) + 2);
}

static size_t scratch_bytes(int parts, int32_t heads, int32_t kv_heads, int32_t head_dim) {
  const int group = heads / kv_heads;
  return static_cast<size_t>(parts) * scratch_floats(max_rows(group), head_dim) * sizeof(float);
}

static inline Scratch scratch_of(uint8_t* base, int part, int rows, int head_dim) {
  const size_t padded_rows = static_cast<size_t>((rows + 15) / 16 * 16);
  const size_t dim = static_cast<size_t>(padded_dim(head_dim));
  Scratch s;
  s.q = reinterpret_cast<float*>(base) + static_cast<size_t>(part) * scratch_floats(rows, head_dim);
  s.out = s.q + padded_rows * dim;
  s.scores = s.out + padded_rows * dim;
  s.top = s.scores + padded_rows * kBlock;
  s.sum = s.top + padded_rows;
  s.decay = s.sum + padded_rows;
  s.key_scales = s.decay + padded_rows;
  s.value_scales = s.key_scales + kBlock;
  s.turned = s.value_scales + kBlock;
  return s;
}

// A tile of queries over one sequence: what all its blocks share.
struct Tile {
  const AttendArgs* args;
  const int32_t* block_table;
  const int32_t* positions;  // of the tile's tokens
  int kv_head;
  int first_head, heads, rows;    // query heads, of every token
  int length;                     // keys of the sequence
  int first_key, last_key;        // that some row sees, inclusive
  int first_shared, last_shared;  // that all rows see
};

static inline int first_visible(const AttendArgs& args, int position) {
  return args.window > 0 ? larger(0, position - args.window + 1) : 0;
}

static inline int last_visible(const AttendArgs& args, int position, int length) {
  return smaller(position + args.ahead, length - 1);
}

// One block of keys: page_count pages of K and V, keys key0 .. key1 (exclusive) for some row visible.
template <typename T>
struct Block {
  int begin = 0, page_count = 0, key0 = 0, key1 = 0;
  const T *keys[kBlockPages] = {}, *values[kBlockPages] = {};  // values null where keys hold them
};

template <typename T>
static inline Block<T> block_of(const Tile& tile, int index) {
  const AttendArgs& args = *tile.args;
  Block<T> block;
  block.begin = index * kBlock;
  block.key0 = larger(tile.first_key - block.begin, 0);
  block.key1 = smaller(tile.last_key + 1 - block.begin, kBlock);
  block.page_count = (block.key1 + kPageTokens - 1) / kPageTokens;
  for (int p = 0; p < block.page_count; ++p) {
    const int64_t page = tile.block_table[index * kBlockPages + p];
    const int64_t at = page * args.kv.kv_heads + tile.kv_head;
    const auto page_of = [&](const uint8_t* pages, Part part) {
      return reinterpret_cast<const T*>(pages + at * page_bytes(args.kv.type, part, args.kv.head_dim));
    };
    block.keys[p] = page_of(args.kv.k, Part::keys);
    block.values[p] = args.kv.v == nullptr ? nullptr : page_of(args.kv.v, Part::values);
  }
  return block;
}

// Values that no row sees may be anything, also what no finite weight makes zero: where one is next to a visible
// one and is multiplied with it, the page is replaced by a copy without it.
static inline void show_visible(Block<uint16_t>& block, int value_dim, uint16_t* copies) {
  for (const int key : {block.key0, block.key1}) {
    if (key % 2 == 0) continue;
    const int p = key / kPageTokens, begin = p * kPageTokens;
    uint16_t* to = copies + begin * value_dim;
    block.values[p] = visible_values(block.values[p], value_dim, block.key0 - begin, block.key1 - begin, to);
  }
}

// Replaces pages of codes by what they say, and reads their scales: 0 for keys that no row sees, whose codes and scales may be
// anything. What codes say is finite, so that a weight of 0 makes it 0.
static inline void unpack_part(const KvLayer& kv, Part part, const Block<uint16_t>& block, const Scratch& s,
                               const uint16_t** pages) {
  float* scales = part == Part::keys ? s.key_scales : s.value_scales;
  for (int p = 0; p < block.page_count; ++p) {
    const auto* page = reinterpret_cast<const uint8_t*>(pages[p]);
    uint16_t* to = reinterpret_cast<uint16_t*>(s.turned) + p * kPageTokens * kv.head_dim;
    unpack_page(kv, part, page, to);
    unpack_scales(kv, part, page, scales + p * kPageTokens);
    pages[p] = to;
  }
  for (int key = 0; key < block.page_count * kPageTokens; ++key) {
    if (key < block.key0 || key >= block.key1) scales[key] = 0.0f;
  }
}

// Scores with codes become scores with the keys that they stand for.
static inline void scale_scores(const float* scales, int rows, int vectors, float* scores) {
  for (int row = 0; row < rows; ++row, scores += kBlock) {
    for (int v = 0; v < vectors; ++v) store(scores + v * kWidth, load(scores + v * kWidth) * load(scales + v * kWidth));
  }
}

}  // namespace headrace::HEADRACE_NAMESPACE
