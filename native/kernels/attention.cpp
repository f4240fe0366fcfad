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
// zero that this may change is normalized at the end. So a row's result depends on its position and its
// keys alone: not on the tile, the chunk, the batch or the thread count. On matrix registers (attention_amx.hpp) chains are
// cut into steps, the same for every row.
#include <algorithm>
#include <initializer_list>
#include <optional>

#include "attention_softmax.hpp"
#if defined(HEADRACE_ISA_amx)
#include "attention_amx.hpp"
#endif

namespace headrace::HEADRACE_NAMESPACE {

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
  Block<T> read = block;  // as bf16; codes stay where they are, for what is fetched ahead
  const bool coded = is_coded(args.kv.type);
  const auto shrunk = [&](Part part) { return coded ? 16 / number_bits(args.kv.type, part) : 1; };
  if constexpr (sizeof(T) == sizeof(uint16_t)) {
    if (coded) {
      unpack_part(args.kv, Part::keys, block, s, read.keys);
    } else {
      show_visible(read, args.value_dim, reinterpret_cast<T*>(s.turned));
    }
  }
  const auto* q = reinterpret_cast<const typename Arithmetic<T>::Factor*>(s.q);
  const T* const* values = args.kv.v == nullptr ? next.keys : block.values;
  over_rows<kScoreRows>(tile.rows, [&]<int Rows>(int row, int turn, int turns) {
    const Ahead<T> ahead(read.keys, values, kPageTokens * dim, turn, turns, shrunk(Part::values));
    score_rows<T, Rows>(q + row * stride, stride, read.keys, ahead, block.page_count, dim, s.scores + row * kBlock);
  });
  const int vectors = block.page_count * kPageVectors;
  if constexpr (sizeof(T) == sizeof(uint16_t)) {
    if (coded) {
      scale_scores(s.key_scales, tile.rows, vectors, s.scores);
      unpack_part(args.kv, Part::values, block, s, read.values);  // where the keys were
    }
  }
  soften<T>(tile, s, s.scores, 0, tile.rows, vectors, block.begin, [] {});
  over_rows<kOutRows>(tile.rows, [&]<int Rows>(int row, int turn, int turns) {
    const Ahead<T> ahead(read.values, next.keys, kPageTokens * dim, turn, turns, shrunk(Part::keys));
    out_rows<T, Rows>(weights_of<T>(s.scores + row * kBlock), s.decay + row, read.values, ahead, block.key0,
                      block.key1, args.value_dim, s.out + row * stride, stride);
  });
}

// Row `row` of the tile's queries: scaled, rotated where keys are, as factors, padded with zeros.
template <typename T>
static inline void prepare_query(const float* from, const KvLayer& kv, int64_t head, int stride, float scale, float* queries, int row) {
  float mixed[kMaxHeadDim];
  const int dim = kv.head_dim;
  if (is_coded(kv.type)) {
    memcpy(mixed, from, static_cast<size_t>(dim) * sizeof(float));
    if (kv.balance != nullptr) {
      const float* factors = kv.balance + (kv.kv_heads + head) * dim;
      for (int d = 0; d < dim; ++d) mixed[d] *= factors[d];
    }
    mix_dimensions(mixed, dim);
    from = mixed;
  }
  auto* to = reinterpret_cast<typename Arithmetic<T>::Factor*>(queries) + row * stride;
  const F factor = splat(scale * Arithmetic<T>::kUnit);
  for (int d = 0; d < stride; d += kWidth) {
    const F x = d + kWidth <= dim ? load(from + d) : d < dim ? load_partial(from + d, dim - d) : F{};
    to_factors(to + d, rounded<T>(x * factor));
  }
}

// A tile, and its first token's queries and outputs.
struct Item {
  Tile tile;
  const float* q;
  float* y;
};

// `after` is the tile that the thread computes next, if there is one.
template <typename T>
static void attend_tile(const Item& item, const Tile* after, const Scratch& s) {
  const Tile& tile = item.tile;
  const AttendArgs& args = *tile.args;
  const int dim = args.kv.head_dim, stride = padded_dim(dim);
  const bool coded = is_coded(args.kv.type);
  const auto head_of = [&](int row) {  // counted over all tokens' heads
    return static_cast<int64_t>(row / tile.heads) * args.heads + tile.first_head + row % tile.heads;
  };
  const int first_block = tile.first_key / kBlock, last_block = tile.last_key / kBlock;
  for (int row = 0; row < tile.rows; ++row) {
    prepare_query<T>(item.q + head_of(row) * dim, args.kv, tile.kv_head, stride, args.scale, s.q, row);
    for (int d = 0; d < stride; ++d) s.out[row * stride + d] = 0.0f;
    // A sink is the first score of its row: the highest so far, with weight e^0.
    s.top[row] = args.sinks == nullptr ? -INFINITY
                                       : args.sinks[tile.first_head + row % tile.heads] * Arithmetic<T>::kUnit;
    s.sum[row] = args.sinks == nullptr ? 0.0f : 1.0f;
  }
  Block<T> block = block_of<T>(tile, first_block);
  for (int index = first_block; index <= last_block; ++index) {
    const Block<T> next = index < last_block ? block_of<T>(tile, index + 1)
                          : after != nullptr ? block_of<T>(*after, after->first_key / kBlock)
                                             : Block<T>{};
#if defined(HEADRACE_ISA_amx)
    if constexpr (sizeof(T) == sizeof(uint16_t)) {
      if (in_matrix(args)) {
        attend_matrix_block(tile, s, block, next);
        block = next;
        continue;
      }
    }
#endif
    attend_block<T>(tile, s, block, next);
    block = next;
  }
  for (int row = 0; row < tile.rows; ++row) {
    float* to = item.y + head_of(row) * args.value_dim;
    const float inverse = 1.0f / s.sum[row];
    for (int d = 0; d < args.value_dim; ++d) to[d] = s.out[row * stride + d] * inverse + 0.0f;  // + 0: -0 becomes 0
    if (coded) mix_dimensions(to, args.value_dim);
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

// How many tokens a tile has: more where there is more to share out than each thread's few items.
static inline int tile_tokens(const AttendArgs& args, int parts) {
  constexpr int64_t kItems = 4;  // of a thread, at least
  const int group = args.heads / args.kv.kv_heads, least = larger(1, kTileRows / group);
#if defined(HEADRACE_ISA_amx)
  if (in_matrix(args)) {
    const int64_t shared = int64_t{args.step->T} * args.kv.kv_heads / (kItems * parts);
    return static_cast<int>(std::clamp<int64_t>(shared, least, larger(1, kMaxTileRows / group)));
  }
#endif
  (void)kItems, (void)parts;
  return least;
}

// Calls f(sequence, first token, tokens) for every tile of the step, of at most `most` tokens.
template <typename Call>
static inline void over_tiles(const AttendArgs& args, int most, const Call& call) {
  for (int b = 0; b < args.step->B; ++b) {
    const int end = args.step->query_starts[b + 1];
    for (int token = args.step->query_starts[b]; token < end; token += most) {
      call(b, token, smaller(most, end - token));
    }
  }
}

// Into how many slices the query heads of a KV head are cut: few enough heads for a tile, and where there
// would be less than two items for a thread, more slices. Each reads all keys, so none has less than 16 heads.
static inline int slice_count(const AttendArgs& args, int max_tokens, int parts) {
  const int group = args.heads / args.kv.kv_heads;
  int64_t items = 0;
  over_tiles(args, max_tokens, [&](int, int, int) { items += args.kv.kv_heads; });
  const int64_t wanted = items == 0 ? 1 : (2 * parts + items - 1) / items;
  const int most = larger(min_slices(group), group / 16);
  return wanted < most ? larger(min_slices(group), static_cast<int>(wanted)) : most;
}

// Every thread walks all items and does those whose middle, on the line of summed costs, falls in its share.
static void attend(const AttendArgs& args, int part, int parts) {
  const int kv_heads = args.kv.kv_heads, group = args.heads / kv_heads, tokens_each = tile_tokens(args, parts);
  const int slices = slice_count(args, tokens_each, parts);
  const int max_heads = (group + slices - 1) / slices, items = kv_heads * slices;
  int64_t total = 0;
  over_tiles(args, tokens_each, [&](int b, int token, int tokens) {
    total += items * cost_of(tile_of(args, b, token, tokens, max_heads));
  });
#if defined(HEADRACE_ISA_amx)
  std::optional<MatrixRegisters> registers;
  if (in_matrix(args)) registers.emplace(kSquare);
#endif
  const Scratch scratch = scratch_of(args.scratch, part, max_rows(group), args.kv.head_dim);
  const auto compute = [&](const Item& item, const Tile* after) {
    if (args.kv.type == KvType::f32) {
      attend_tile<float>(item, after, scratch);
    } else {
      attend_tile<uint16_t>(item, after, scratch);
    }
  };
  std::optional<Item> waiting;  // until it is known whose keys are fetched at its end
  int64_t done = 0;
  over_tiles(args, tokens_each, [&](int b, int token, int tokens) {
    const int64_t cost = cost_of(tile_of(args, b, token, tokens, max_heads));
    for (int item = 0; item < items; ++item) {
      const int64_t middle = 2 * done + cost;  // doubled
      done += cost;
      if (middle * parts / (2 * total) != part) continue;
      const int first = group * (item % slices) / slices, last = group * (item % slices + 1) / slices;
      const int64_t heads_before = int64_t{token} * args.heads;
      Item found = {tile_of(args, b, token, tokens, last - first), args.q + heads_before * args.kv.head_dim,
                    args.y + heads_before * args.value_dim};
      found.tile.kv_head = item / slices;
      found.tile.first_head = found.tile.kv_head * group + first;
      if (waiting) compute(*waiting, &found.tile);
      waiting = found;
    }
  });
  if (waiting) compute(*waiting, nullptr);
}

}  // namespace headrace::HEADRACE_NAMESPACE

namespace headrace {

namespace k = HEADRACE_NAMESPACE;
extern const AttentionKernels HEADRACE_TABLE(attention);
const AttentionKernels HEADRACE_TABLE(attention) = {k::scratch_bytes, k::attend};

}  // namespace headrace
