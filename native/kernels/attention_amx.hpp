// Attention over bf16 on matrix registers: up to 32 rows at a time, whose scores stay in L1 from the product with keys
// to the product with values.
//
// Every row goes this way, alone or among many: tdpbf16ps adds in another order than vdpbf16ps. It adds the products of the even
// numbers of a register's row, those of the odd ones, both, and then the sum (Intel's Architecture Instruction Set
// Extensions Programming Reference, TDPBF16PS), whatever the other rows are. Steps are 32 dimensions, and 32 keys from a
// multiple of 32 on; what no row sees adds zeros.
#pragma once
#include "attention_softmax.hpp"
#include "matrix_registers.hpp"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kSide = static_cast<int>(kSquare);  // rows of a register, and sums side by side
constexpr int kInner = static_cast<int>(kDepth) / 2;  // numbers that a product adds: dimensions, or keys
static_assert(kPageTokens == kSide && kBlock % kInner == 0, "a page of keys is as wide as a register");

static inline bool in_matrix(const AttendArgs& args) {
  return args.kv.type == KvType::bf16 && args.kv.head_dim % kInner == 0 && args.value_dim % kSide == 0;
}

// The lines of a block that comes next, page by page, keys and then values, fetched little by little during the computation with
// others: memory is slower than the matrix units, and must be kept busy all the time.
class Fetcher {
 public:
  explicit Fetcher(const Block<uint16_t>& block, int head_dim) : lines_(kPageTokens * head_dim / kInner) {
    for (int p = 0; p < block.page_count; ++p) {
      pages_[count_++] = block.keys[p];
      if (block.values[p] != nullptr) pages_[count_++] = block.values[p];
    }
  }
  void fetch_some(int lines) {
    for (int i = 0; i < lines && page_ < count_; ++i) {
      fetch(pages_[page_] + line_ * kInner);
      if (++line_ == lines_) line_ = 0, ++page_;
    }
  }

 private:
  const uint16_t* pages_[2 * kBlockPages];
  int count_ = 0, lines_ = 0, page_ = 0, line_ = 0;
};
constexpr int kFetched = 16;  // lines at a time

// Scores of 16 or 32 rows with one or two pages of keys.
template <bool kRows2, bool kPages2>
static inline void score_pages(const uint16_t* q, int q_stride, const uint16_t* const* pages, Fetcher& ahead, int head_dim,
                               float* scores) {
  begin_sums();
  const int64_t q_bytes = q_stride * int64_t{2};
  for (int d = 0; d < head_dim; d += kInner) {
    const int at = d * kPageTokens;
    const Square left[2] = {{q + d, q_bytes}, {q + kSide * q_stride + d, q_bytes}};
    const Square right[2] = {{pages[0] + at, kDepth}, {kPages2 ? pages[1] + at : nullptr, kDepth}};
    multiply_squares<true, kRows2, kPages2>(left, right);
    ahead.fetch_some(kFetched);
  }
  store_sums<kRows2, kPages2>(scores, kBlock * int64_t{4});
}

template <bool kRows2>
static inline void score_matrix(const uint16_t* q, int q_stride, const Block<uint16_t>& block,
                                Fetcher& ahead, int head_dim, float* scores) {
  int p = 0;
  for (; p + 2 <= block.page_count; p += 2) {
    score_pages<kRows2, true>(q, q_stride, block.keys + p, ahead, head_dim, scores + p * kPageTokens);
  }
  if (p < block.page_count) {
    score_pages<kRows2, false>(q, q_stride, block.keys + p, ahead, head_dim, scores + p * kPageTokens);
  }
}

// Every key's values, each after its page's neighbor, as [keys / 2][value_dim][2], up to a whole number of products; zero
// where no row sees them. Meanwhile the pages at `ahead` are fetched.
static inline void gather_values(Block<uint16_t>& block, const AttendArgs& args, Fetcher& ahead, uint16_t* to) {
  const int page_numbers = kPageTokens * args.value_dim;
  for (int p = block.key0 / kInner * 2; p < (block.key1 + kInner - 1) / kInner * 2; ++p) {
    const int begin = p * kPageTokens;
    uint16_t* page = to + p * page_numbers;
    if (begin + kPageTokens <= block.key0 || begin >= block.key1) {
      memset(page, 0, static_cast<size_t>(page_numbers) * 2);
      continue;
    }
    ahead.fetch_some(kFetched);
    if (args.kv.v == nullptr) block.values[p] = turned(block.keys[p], args.value_dim, args.kv.head_dim, page);
    if (begin < block.key0 || begin + kPageTokens > block.key1) {
      visible_values(block.values[p], args.value_dim, block.key0 - begin, block.key1 - begin, page);
    } else if (block.values[p] != page) {
      memcpy(page, block.values[p], static_cast<size_t>(page_numbers) * 2);
    }
  }
}

// The outputs of 16 rows under a new top.
static inline void decay_rows(const float* decay, int value_dim, float* out, int stride) {
  for (int row = 0; row < kSide; ++row, out += stride) {
    if (decay[row] == 1.0f) continue;
    const F by = splat(decay[row]);
    for (int d = 0; d < value_dim; d += kWidth) store(out + d, load(out + d) * by);
  }
}

template <bool kRows2, bool kColumns2>
static inline void add_values(const uint16_t* weights, const uint16_t* values, int key0, int key1, int value_dim,
                              Fetcher& ahead, float* out, int stride) {
  constexpr int64_t kWeightBytes = kWeightStride<uint16_t> * 2;
  load_sums<kRows2, kColumns2>(out, stride * int64_t{4});
  for (int key = key0 / kInner * kInner; key < key1; key += kInner) {
    const Square left[2] = {{weights + key, kWeightBytes}, {weights + kSide * kWeightStride<uint16_t> + key, kWeightBytes}};
    const uint16_t* right = values + key * value_dim;
    const int64_t bytes = value_dim * int64_t{4};
    multiply_squares<true, kRows2, kColumns2>(left, {{right, bytes}, {right + 2 * kSide, bytes}});
    ahead.fetch_some(kFetched);
  }
  store_sums<kRows2, kColumns2>(out, stride * int64_t{4});
}

template <bool kRows2>
static inline void out_matrix(const uint16_t* weights, const uint16_t* values, int key0, int key1, int value_dim,
                              Fetcher& ahead, float* out, int stride) {
  int d = 0;
  for (; d + 2 * kSide <= value_dim; d += 2 * kSide) {
    add_values<kRows2, true>(weights, values + 2 * d, key0, key1, value_dim, ahead, out + d, stride);
  }
  if (d < value_dim) add_values<kRows2, false>(weights, values + 2 * d, key0, key1, value_dim, ahead, out + d, stride);
}

// One or two registers' rows, from their scores to their outputs; the first ones gather the values.
template <bool kRows2>
static inline void attend_matrix_rows(const Tile& tile, const Scratch& s, Block<uint16_t>& block, Fetcher& ahead,
                                      int row) {
  const AttendArgs& args = *tile.args;
  const int dim = args.kv.head_dim, vectors = (block.page_count + 1) / 2 * 2 * kPageVectors;
  const uint16_t* q = reinterpret_cast<const uint16_t*>(s.q) + row * dim;
  uint16_t* values = reinterpret_cast<uint16_t*>(s.turned);
  float* out = s.out + row * dim;
  memory_is_as_written();
  score_matrix<kRows2>(q, dim, block, ahead, dim, s.scores);
  memory_is_as_written();
  const int last = smaller(row + (kRows2 ? 2 : 1) * kSide, tile.rows);
  soften<uint16_t>(tile, s, s.scores, row, last, vectors, block.begin, [&] { ahead.fetch_some(kFetched); });
  if (row == 0) gather_values(block, args, ahead, values);
  decay_rows(s.decay + row, args.value_dim, out, dim);
  if constexpr (kRows2) decay_rows(s.decay + row + kSide, args.value_dim, out + kSide * dim, dim);
  memory_is_as_written();
  out_matrix<kRows2>(weights_of<uint16_t>(s.scores), values, block.key0, block.key1, args.value_dim, ahead, out, dim);
  memory_is_as_written();
}

static void attend_matrix_block(const Tile& tile, const Scratch& s, Block<uint16_t> block, const Block<uint16_t>& next) {
  Fetcher ahead(next, tile.args->kv.head_dim);
  int row = 0;
  for (; tile.rows - row > kSide; row += 2 * kSide) attend_matrix_rows<true>(tile, s, block, ahead, row);
  if (row < tile.rows) attend_matrix_rows<false>(tile, s, block, ahead, row);
}

}  // namespace headrace::HEADRACE_NAMESPACE
