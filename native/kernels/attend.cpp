// Grouped-query attention over paged keys and values, causal or to both sides, with sliding window and soft cap:
// online softmax (Milakov, Gimelshein 2018) over blocks of keys.
//
// Work: one item is (sequence, tile of consecutive query tokens, KV head, slice of its query heads). A tile
// has all query heads of the KV head where they are not many, so K and V are read once for all of them; its
// rows are (token, head) pairs. Where values are the first entries of keys, a block is turned for all rows.
// Per block of 128 keys: scores [rows, 128] = q K by register tiles (a vector holds some dimensions of 16 keys),
// softmax of as many rows as a vector has lanes, then out [rows, head_dim] by register tiles.
//
// Determinism: blocks start at multiples of 128 keys of the sequence, whatever the query. Within a block
// a score is one chain over the head's dimensions, an output one chain over the keys, the sum of weights
// has fixed lanes. Tile shapes choose how many chains run together, never their order. A key that a row
// may not see gets weight exactly 0: it multiplies the old state by 1 or adds a zero, and the sign of a
// zero that this may change is normalised at the end. So a row's result depends on its position and its
// keys alone: not on the tile, the chunk, the batch or the thread count.
#include <initializer_list>

#include "attend_tiles.hpp"

namespace headrace::HEADRACE_NAMESPACE {

// One thread's scratch. Rows of q (factors) and out are padded to whole vectors.
struct Scratch {
  float *q, *scores, *out, *top, *sum, *decay;
  float* turned;  // a block of values that were keys
};

static inline int padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }
static inline int tile_tokens(int group) { return larger(1, kTileRows / group); }
static inline int fewest_slices(int group) { return (group + kTileRows - 1) / kTileRows; }
static inline int most_rows(int group) {
  return tile_tokens(group) * ((group + fewest_slices(group) - 1) / fewest_slices(group));
}
static inline size_t scratch_floats(int rows, int head_dim) {
  const size_t padded_rows = static_cast<size_t>((rows + 15) / 16 * 16);
  return padded_rows * (2 * static_cast<size_t>(padded_dim(head_dim)) + kBlock + 3) +
         kBlock * static_cast<size_t>(head_dim);
}

static size_t scratch_bytes(int parts, int32_t heads, int32_t kv_heads, int32_t head_dim) {
  const int group = heads / kv_heads;
  return static_cast<size_t>(parts) * scratch_floats(most_rows(group), head_dim) * sizeof(float);
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
  s.turned = s.decay + padded_rows;
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

// Caps and masks the scores of a block with some keys that not all rows see.
template <typename T>
static inline void mask_rows(const Tile& tile, const Scratch& s, int vectors, int begin) {
  const AttendArgs& args = *tile.args;
  for (int row = 0, token = 0; row < tile.rows; ++token) {
    const int position = tile.positions[token];
    for (int head = 0; head < tile.heads; ++head, ++row) {
      mask_row(s.scores + row * kBlock, vectors, first_visible(args, position) - begin,
               last_visible(args, position, tile.length) - begin,
               args.softcap * Arithmetic<T>::kUnit);
    }
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

// Scores of `rows` rows become weights e^(score - shift), where they were; returns the sums of weights.
template <typename T>
static inline F weigh_rows(float* scores, int rows, int vectors, const float* shift) {
  F totals[kWidth] = {};
  for (int r = 0; r < rows; ++r) {
    float* row = scores + r * kBlock;
    auto* weights = weights_of<T>(row);  // at most as wide as scores: written behind them
    const F from = splat(shift[r]);
    F total = {};
    for (int v = 0; v < vectors; ++v) {
      const F w = Arithmetic<T>::exp(load(row + v * kWidth) - from);
      to_factors(weights + v * kWidth, rounded<T>(w));
      total += w;
    }
    totals[r] = total;
  }
  return fold_rows(totals, [](F a, F b) { return a + b; });
}

// Scores become weights e^(score - top of the row); decay is what the old output and sum are worth under the new
// top. kWidth rows at a time: those behind the last row are computed with and mean nothing.
template <typename T>
static inline void soften(const Tile& tile, const Scratch& s, int page_count, int begin) {
  const int vectors = page_count * kPageVectors;
  if (tile.args->softcap > 0 || begin < tile.first_shared || begin + vectors * kWidth > tile.last_shared + 1) {
    mask_rows<T>(tile, s, vectors, begin);
  }
  for (int row = 0; row < tile.rows; row += kWidth) {
    const F old_top = load(s.top + row);
    const F top = max(top_of_rows(s.scores + row * kBlock, vectors), old_top);
    const F shift = top == splat(-INFINITY) ? F{} : top;  // nothing seen yet: every weight is e^-inf
    const F decay = Arithmetic<T>::exp(old_top - shift);
    float shifts[kWidth];
    store(shifts, shift);
    store(s.top + row, top);
    store(s.decay + row, decay);
    const F total = weigh_rows<T>(s.scores + row * kBlock, smaller(kWidth, tile.rows - row), vectors, shifts);
    store(s.sum + row, load(s.sum + row) * decay + total);
  }
}

// One block of keys: page_count pages of K and V, keys key0 .. key1 (exclusive) for some row visible.
template <typename T>
struct Block {
  int begin, page_count, key0, key1;
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
    const int64_t at = (page * args.kv.kv_heads + tile.kv_head) * kPageTokens * args.kv.head_dim;
    block.keys[p] = reinterpret_cast<const T*>(args.kv.k) + at;
    block.values[p] = args.kv.v == nullptr ? nullptr : reinterpret_cast<const T*>(args.kv.v) + at;
  }
  return block;
}

// Values that no row sees may be anything, also what no finite weight makes zero: where one lies beside a visible
// one and is multiplied with it, the page is replaced by a copy without it.
template <typename T>
static inline void show_visible(Block<T>& block, int value_dim, T* copies) {
  for (const int key : {block.key0, block.key1}) {
    if (key % 2 == 0) continue;
    const int p = key / kPageTokens, begin = p * kPageTokens;
    T* to = copies + begin * value_dim;
    block.values[p] = visible_values(block.values[p], value_dim, block.key0 - begin, block.key1 - begin, to);
  }
}

// What rows fetch while they read the pages of a block. Pages are small and lie anywhere, so the processor does not
// foresee the next: while keys are read, the values are fetched, and while values are read, the next keys. Each row
// tile, in turn, fetches some pages, since memory is slower than one of them; for the others it asks for what it has.
template <typename T>
struct Ahead {
  const T* pages[kBlockPages];
  Ahead(const T* const* read, const T* const* next, int turn, int turns) {
    for (int p = 0; p < kBlockPages; ++p) pages[p] = p % turns == turn && next[p] != nullptr ? next[p] : read[p];
  }
};

template <typename T>
static void attend_block(const Tile& tile, const Scratch& s, Block<T> block, const Block<T>& next) {
  const AttendArgs& args = *tile.args;
  const int dim = args.kv.head_dim, stride = padded_dim(dim);
  if (args.kv.v == nullptr) {
    for (int p = 0; p < block.page_count; ++p) {
      T* to = reinterpret_cast<T*>(s.turned) + p * kPageTokens * args.value_dim;
      block.values[p] = turned(block.keys[p], args.value_dim, dim, to);
    }
  }
  if constexpr (Arithmetic<T>::kTogether == 2) show_visible(block, args.value_dim, reinterpret_cast<T*>(s.turned));
  const auto* q = reinterpret_cast<const typename Arithmetic<T>::Factor*>(s.q);
  const T* const* values = args.kv.v == nullptr ? next.keys : block.values;
  over_rows<kScoreRows>(tile.rows, [&]<int Rows>(int row, int turn, int turns) {
    const Ahead<T> ahead(block.keys, values, turn, turns);
    score_rows<T, Rows>(q + row * stride, stride, block.keys, ahead.pages, block.page_count, dim,
                        s.scores + row * kBlock);
  });
  soften<T>(tile, s, block.page_count, block.begin);
  over_rows<kOutRows>(tile.rows, [&]<int Rows>(int row, int turn, int turns) {
    const Ahead<T> ahead(block.values, next.keys, turn, turns);
    out_rows<T, Rows>(weights_of<T>(s.scores + row * kBlock), s.decay + row, block.values, ahead.pages, block.key0,
                      block.key1, args.value_dim, s.out + row * stride, stride);
  });
}

// Row `row` of the tile's queries: scaled, as factors, padded with zeros.
template <typename T>
static inline void prepare_query(const float* from, int dim, int stride, float scale, float* queries, int row) {
  auto* to = reinterpret_cast<typename Arithmetic<T>::Factor*>(queries) + row * stride;
  const F factor = splat(scale * Arithmetic<T>::kUnit);
  for (int d = 0; d < stride; d += kWidth) {
    const F x = d + kWidth <= dim ? load(from + d) : d < dim ? load_partial(from + d, dim - d) : F{};
    to_factors(to + d, rounded<T>(x * factor));
  }
}

// q and y point at the tile's first token.
template <typename T>
static void attend_tile(const Tile& tile, const Scratch& s, const float* q, float* y) {
  const AttendArgs& args = *tile.args;
  const int dim = args.kv.head_dim, stride = padded_dim(dim);
  const auto head_of = [&](int row) {  // counted over all tokens' heads
    return static_cast<int64_t>(row / tile.heads) * args.heads + tile.first_head + row % tile.heads;
  };
  const int first_block = tile.first_key / kBlock, last_block = tile.last_key / kBlock;
  for (int row = 0; row < tile.rows; ++row) {
    prepare_query<T>(q + head_of(row) * dim, dim, stride, args.scale, s.q, row);
    for (int d = 0; d < stride; ++d) s.out[row * stride + d] = 0.0f;
    // A sink is the first score of its row: the highest so far, with weight e^0.
    s.top[row] = args.sinks == nullptr ? -INFINITY
                                       : args.sinks[tile.first_head + row % tile.heads] * Arithmetic<T>::kUnit;
    s.sum[row] = args.sinks == nullptr ? 0.0f : 1.0f;
  }
  Block<T> block = block_of<T>(tile, first_block);
  for (int index = first_block; index <= last_block; ++index) {
    const Block<T> next = block_of<T>(tile, smaller(index + 1, last_block));
    attend_block<T>(tile, s, block, next);
    block = next;
  }
  for (int row = 0; row < tile.rows; ++row) {
    float* to = y + head_of(row) * args.value_dim;
    const float inverse = 1.0f / s.sum[row];
    for (int d = 0; d < args.value_dim; ++d) to[d] = s.out[row * stride + d] * inverse + 0.0f;  // + 0: -0 becomes 0
  }
}

// Describes the tile of tokens [token, token + tokens) of sequence b, for `heads` query heads of a KV head.
static inline Tile tile_of(const AttendArgs& args, int b, int token, int tokens, int heads) {
  Tile tile;
  tile.args = &args;
  tile.block_table = args.step->block_tables + static_cast<int64_t>(b) * args.step->max_pages;
  tile.positions = args.step->positions + token;
  tile.kv_head = tile.first_head = 0;
  tile.heads = heads;
  tile.rows = tokens * heads;
  tile.length = args.step->lengths[b];
  tile.first_key = tile.first_shared = first_visible(args, tile.positions[0]);
  tile.last_key = tile.last_shared = last_visible(args, tile.positions[0], tile.length);
  for (int t = 1; t < tokens; ++t) {
    const int first = first_visible(args, tile.positions[t]);
    const int last = last_visible(args, tile.positions[t], tile.length);
    tile.first_key = smaller(tile.first_key, first);
    tile.first_shared = larger(tile.first_shared, first);
    tile.last_key = larger(tile.last_key, last);
    tile.last_shared = smaller(tile.last_shared, last);
  }
  return tile;
}

static inline int64_t cost_of(const Tile& tile) {
  const int64_t blocks = tile.last_key / kBlock - tile.first_key / kBlock + 1;
  return blocks * (tile.rows + 4);  // reading a block costs about as much as four rows' arithmetic
}

// Calls f(sequence, first token, tokens) for every tile of the step.
template <typename Call>
static inline void over_tiles(const AttendArgs& args, const Call& call) {
  const int most = tile_tokens(args.heads / args.kv.kv_heads);
  for (int b = 0; b < args.step->B; ++b) {
    const int end = args.step->query_starts[b + 1];
    for (int token = args.step->query_starts[b]; token < end; token += most) {
      call(b, token, smaller(most, end - token));
    }
  }
}

// Into how many slices the query heads of a KV head are cut: few enough heads for a tile, and where there
// would be less than two items for a thread, more slices. Each reads all keys, so none has less than 16 heads.
static inline int slice_count(const AttendArgs& args, int parts) {
  const int group = args.heads / args.kv.kv_heads;
  int64_t items = 0;
  over_tiles(args, [&](int, int, int) { items += args.kv.kv_heads; });
  const int64_t wanted = items == 0 ? 1 : (2 * parts + items - 1) / items;
  const int most = larger(fewest_slices(group), group / 16);
  return wanted < most ? larger(fewest_slices(group), static_cast<int>(wanted)) : most;
}

// Every thread walks all items and does those whose middle, on the line of summed costs, falls in its share.
static void attend(const AttendArgs& args, int part, int parts) {
  const int kv_heads = args.kv.kv_heads, group = args.heads / kv_heads, slices = slice_count(args, parts);
  const int most_heads = (group + slices - 1) / slices, items = kv_heads * slices;
  int64_t total = 0;
  over_tiles(args, [&](int b, int token, int tokens) {
    total += items * cost_of(tile_of(args, b, token, tokens, most_heads));
  });
  const Scratch scratch = scratch_of(args.scratch, part, most_rows(group), args.kv.head_dim);
  int64_t done = 0;
  over_tiles(args, [&](int b, int token, int tokens) {
    const int64_t cost = cost_of(tile_of(args, b, token, tokens, most_heads));
    for (int item = 0; item < items; ++item) {
      const int64_t middle = 2 * done + cost;  // doubled
      done += cost;
      if (middle * parts / (2 * total) != part) continue;
      const int first = group * (item % slices) / slices, last = group * (item % slices + 1) / slices;
      Tile tile = tile_of(args, b, token, tokens, last - first);
      tile.kv_head = item / slices;
      tile.first_head = tile.kv_head * group + first;
      const float* q = args.q + static_cast<int64_t>(token) * args.heads * args.kv.head_dim;
      float* y = args.y + static_cast<int64_t>(token) * args.heads * args.value_dim;
      if (args.kv.type == KvType::f32) {
        attend_tile<float>(tile, scratch, q, y);
      } else {
        attend_tile<uint16_t>(tile, scratch, q, y);
      }
    }
  });
}

}  // namespace headrace::HEADRACE_NAMESPACE

namespace headrace {

namespace k = HEADRACE_NAMESPACE;
extern const AttendKernels HEADRACE_TABLE(attend);
const AttendKernels HEADRACE_TABLE(attend) = {k::scratch_bytes, k::attend};

}  // namespace headrace
