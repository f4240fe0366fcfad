// Attention against a naive double reference, and bit-identity across chunks, batches and parts.
#include "../formats/kv_page.hpp"
#include "../kernels/attention.hpp"
#include "../kernels/rows.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "coded_row.hpp"
#include "test.hpp"

using namespace headrace;
using Floats = std::vector<float>;

struct Shape {
  int32_t heads, kv_heads, head_dim, window;
  float softcap;
  KvType type;
  bool sinks = false;
  int32_t shared_dim = 0;  // not 0: values are that many first entries of the keys
  int32_t ahead = 0;       // later keys that are seen
  int32_t buckets = 0;     // of relative biases of queries, keys and heads

  int32_t value_dim() const { return shared_dim > 0 ? shared_dim : head_dim; }
};

// Some sequences whose keys and values lie in shuffled pages; unwritten places hold NaN.
class World {
 public:
  World(const RowsKernels& rows, const Shape& shape, std::vector<int32_t> lengths, uint64_t seed)
      : shape_(shape), lengths_(std::move(lengths)) {
    test::Random random(seed);
    int32_t pages = 1;
    for (const int32_t length : lengths_) max_pages_ = std::max(max_pages_, (length + kPageTokens - 1) / kPageTokens);
    max_pages_ += 1;
    tables_.assign(lengths_.size() * static_cast<size_t>(max_pages_), 1 << 30);  // unused entries must not be followed
    for (size_t b = 0; b < lengths_.size(); ++b) {
      for (int32_t p = 0; p < (lengths_[b] + kPageTokens - 1) / kPageTokens; ++p) tables_[b * static_cast<size_t>(max_pages_) + static_cast<size_t>(p)] = pages++;
    }
    for (size_t i = 0; i < tables_.size(); ++i) {  // shuffle page ids
      const size_t j = static_cast<size_t>(random.below(static_cast<int>(tables_.size())));
      if (tables_[i] < (1 << 30) && tables_[j] < (1 << 30)) std::swap(tables_[i], tables_[j]);
    }
    const size_t all = static_cast<size_t>(pages * shape.kv_heads);
    k_.assign(all * static_cast<size_t>(page_bytes(shape.type, Part::keys, shape.head_dim)), 0xff);
    v_.assign(all * static_cast<size_t>(page_bytes(shape.type, Part::values, shape.head_dim)), 0xff);
    for (size_t b = 0; b < lengths_.size(); ++b) {
      q_.emplace_back();
      for (int32_t i = 0; i < lengths_[b] * shape.heads * shape.head_dim; ++i) q_[b].push_back(random.normal());
      for (int32_t key = 0; key < lengths_[b]; ++key) write(rows, b, key, random);
    }
    for (int32_t head = 0; head < shape.heads && shape.sinks; ++head) sinks_.push_back(3.0f * random.normal());
    for (const int32_t length : lengths_) {
      for (auto* biases : {&bias_q_, &bias_k_}) {
        biases->emplace_back();
        for (int32_t i = 0; i < length * shape.heads * shape.buckets; ++i) biases->back().push_back(random.normal());
      }
    }
    for (int32_t i = 0; i < shape.buckets * shape.heads; ++i) bias_.push_back(random.normal());
    for (int32_t i = 0; i < 2 * kReach + 1 && shape.buckets > 0; ++i) bucket_of_.push_back(random.below(shape.buckets));
  }

  struct Chunk {
    size_t sequence;
    int32_t begin, end;
  };

  // Attends the chunks as one step; each chunk sees its keys up to `end`, as if later ones were not written yet.
  std::vector<Floats> attend(const AttentionKernels& kernels, const std::vector<Chunk>& chunks, int parts) const {
    const size_t row = static_cast<size_t>(shape_.heads * shape_.head_dim);
    const int64_t y_row = shape_.heads * shape_.value_dim();
    const int64_t bias_row = int64_t{shape_.heads} * shape_.buckets;
    Floats q, bias_q, bias_k;
    std::vector<int32_t> positions, starts{0}, lengths, tables;
    for (const Chunk& chunk : chunks) {
      for (int32_t p = chunk.begin; p < chunk.end; ++p) {
        positions.push_back(p);
        const auto copy = [&](Floats& to, const std::vector<Floats>& from) {
          if (bias_row == 0) return;
          const auto at = from[chunk.sequence].begin() + p * bias_row;
          to.insert(to.end(), at, at + bias_row);
        };
        copy(bias_q, bias_q_);
        copy(bias_k, bias_k_);
        q.insert(q.end(), q_[chunk.sequence].begin() + p * static_cast<int64_t>(row), q_[chunk.sequence].begin() + (p + 1) * static_cast<int64_t>(row));
      }
      starts.push_back(static_cast<int32_t>(positions.size()));
      lengths.push_back(chunk.end);
      const auto table = tables_.begin() + static_cast<int64_t>(chunk.sequence) * max_pages_;
      tables.insert(tables.end(), table, table + max_pages_);
    }
    Step step;
    step.T = static_cast<int32_t>(positions.size());
    step.B = static_cast<int32_t>(chunks.size());
    step.max_pages = max_pages_;
    step.positions = positions.data();
    step.query_starts = starts.data();
    step.lengths = lengths.data();
    step.block_tables = tables.data();
    Floats y(static_cast<size_t>(step.T * y_row), NAN);
    std::vector<uint8_t> scratch(kernels.scratch_bytes(parts, shape_.heads, shape_.kv_heads, shape_.head_dim) + 64, 0xff);
    AttendArgs args;
    args.q = q.data();
    args.y = y.data();
    args.heads = shape_.heads;
    args.scale = scale();
    args.window = shape_.window;
    args.ahead = shape_.ahead;
    args.softcap = shape_.softcap;
    args.value_dim = shape_.value_dim();
    if (shape_.buckets > 0) {
      args.bias_q = bias_q.data();
      args.bias_k = bias_k.data();
      args.bias = bias_.data();
      args.bucket_of = bucket_of_.data();
      args.buckets = shape_.buckets;
      args.reach = kReach;
    }
    args.sinks = shape_.sinks ? sinks_.data() : nullptr;
    uint8_t* v = shape_.shared_dim > 0 ? nullptr : const_cast<uint8_t*>(v_.data());
    args.kv = {shape_.type, shape_.kv_heads, shape_.head_dim, const_cast<uint8_t*>(k_.data()), v};
    args.step = &step;
    args.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
    for (int part = 0; part < parts; ++part) kernels.attend(args, part, parts);
    std::vector<Floats> result;
    for (size_t c = 0; c < chunks.size(); ++c) {
      result.emplace_back(y.begin() + starts[c] * y_row, y.begin() + starts[c + 1] * y_row);
    }
    return result;
  }

  std::vector<double> naive(size_t b, int32_t position, int32_t head) const {
    const int32_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const size_t dim = static_cast<size_t>(shape_.head_dim), value_dim = static_cast<size_t>(shape_.value_dim());
    const float* q = &q_[b][static_cast<size_t>((position * shape_.heads + head) * shape_.head_dim)];
    const int32_t first = shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
    std::vector<double> out(value_dim, 0.0);
    double sum = shape_.sinks ? std::exp(static_cast<double>(sinks_[static_cast<size_t>(head)])) : 0;
    const int32_t last = std::min(position + shape_.ahead, lengths_[b] - 1);
    for (int32_t key = first; key <= last; ++key) {
      double score = 0;
      for (size_t d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * numbers(k_rows_, b, key, kv_head)[d];
      score *= scale();
      if (shape_.buckets > 0) {
        const size_t of_head = static_cast<size_t>(head * shape_.buckets), row = static_cast<size_t>(shape_.heads * shape_.buckets);
        const size_t bucket = static_cast<size_t>(bucket_of_[static_cast<size_t>(std::clamp(position - key, -kReach, kReach) + kReach)]);
        score += bias_q_[b][static_cast<size_t>(position) * row + of_head + bucket];
        score += bias_k_[b][static_cast<size_t>(key) * row + of_head + bucket];
        score += bias_[bucket * static_cast<size_t>(shape_.heads) + static_cast<size_t>(head)];
      }
      if (shape_.softcap > 0) score = shape_.softcap * std::tanh(score / shape_.softcap);
      const double weight = std::exp(score);
      sum += weight;
      for (size_t d = 0; d < value_dim; ++d) {
        out[d] += weight * numbers(shape_.shared_dim > 0 ? k_rows_ : v_rows_, b, key, kv_head)[d];
      }
    }
    for (double& value : out) value /= sum;
    return out;
  }

  const Shape& shape() const { return shape_; }
  int32_t length(size_t b) const { return lengths_[b]; }

 private:
  static constexpr int32_t kReach = 40;
  float scale() const { return 1.3f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  const double* numbers(const std::vector<std::vector<double>>& rows, size_t b, int32_t key, int32_t head) const {
    return &rows[b][static_cast<size_t>((key * shape_.kv_heads + head) * shape_.head_dim)];
  }
  // A key and a value of every head into their page, and what is there then.
  void write(const RowsKernels& rows, size_t b, int32_t key, test::Random& random) {
    const int32_t page = tables_[b * static_cast<size_t>(max_pages_) + static_cast<size_t>(key / kPageTokens)];
    const int32_t slot = page * kPageTokens + key % kPageTokens;
    Floats k, v;
    for (int32_t i = 0; i < shape_.kv_heads * shape_.head_dim; ++i) {
      k.push_back(random.normal());
      v.push_back(random.normal());
    }
    Step step;
    step.T = 1;
    step.slots = &slot;
    RopeKvWriteArgs args;
    args.k = k.data();
    args.v = v.data();
    args.kv = {shape_.type, shape_.kv_heads, shape_.head_dim, k_.data(), v_.data()};
    args.step = &step;
    rows.rope_kv_write(args, 0, 1);
    k_rows_.resize(lengths_.size());
    v_rows_.resize(lengths_.size());
    for (int32_t h = 0; h < shape_.kv_heads; ++h) {
      for (auto [part, memory, found] : {std::tuple{Part::keys, &k_, &k_rows_[b]}, {Part::values, &v_, &v_rows_[b]}}) {
        const uint8_t* at = memory->data() + (page * shape_.kv_heads + h) * page_bytes(shape_.type, part, shape_.head_dim);
        const auto row = stored(part, at, key % kPageTokens);
        found->insert(found->end(), row.begin(), row.end());
      }
    }
  }
  std::vector<double> stored(Part part, const uint8_t* page, int64_t token) const {
    if (is_coded(shape_.type)) return test::coded_row(shape_.type, part, page, shape_.head_dim, token);
    std::vector<double> row;
    for (int32_t d = 0; d < shape_.head_dim; ++d) {
      const int64_t at = part == Part::keys ? key_place(shape_.type, shape_.head_dim, token, d)
                                            : value_place(shape_.type, shape_.head_dim, token, d);
      float value = 0;
      if (shape_.type == KvType::f32) {
        std::memcpy(&value, page + at * 4, 4);
      } else {
        std::memcpy(reinterpret_cast<uint8_t*>(&value) + 2, page + at * 2, 2);
      }
      row.push_back(value);
    }
    return row;
  }

  Shape shape_;
  std::vector<int32_t> lengths_;
  int32_t max_pages_ = 0;
  std::vector<int32_t> tables_;
  std::vector<uint8_t> k_, v_;
  std::vector<std::vector<double>> k_rows_, v_rows_;  // as stored, by sequence: [key][KV head][head_dim]
  std::vector<Floats> q_, bias_q_, bias_k_;
  Floats bias_;
  std::vector<int32_t> bucket_of_;
  Floats sinks_;
};

static void matches_naive(const AttentionKernels& kernels, const World& world) {
  const Shape& shape = world.shape();
  const auto got = world.attend(kernels, {{0, 0, world.length(0)}}, 2)[0];
  const int32_t stride = std::max(1, world.length(0) / 23);
  for (int32_t position = 0; position < world.length(0); position += stride) {
    for (int32_t head = 0; head < shape.heads; ++head) {
      const auto want = world.naive(0, position, head);
      const float* y = &got[static_cast<size_t>((position * shape.heads + head) * shape.value_dim())];
      // bf16 rounds queries and weights to 8 bits.
      const double near = shape.type == KvType::f32 ? 4e-6 : 1.5e-2;
      for (size_t d = 0; d < want.size(); ++d) CHECK_NEAR(y[d], want[d], near);
    }
  }
}

// The same rows by prefill, decode, chunks of any size, in a batch and with any number of parts.
static void is_bit_identical(const AttentionKernels& kernels, const World& world) {
  const int32_t n = world.length(0);
  const size_t row = static_cast<size_t>(world.shape().heads * world.shape().value_dim());
  const Floats whole = world.attend(kernels, {{0, 0, n}}, 1)[0];
  for (const int32_t chunk : {1, 5, 64, 100}) {
    for (int32_t begin = 0; begin < n; begin += chunk == 1 ? 13 : chunk) {
      const int32_t end = std::min(n, begin + chunk);
      const Floats part = world.attend(kernels, {{0, begin, end}}, 1 + begin % 3)[0];
      CHECK(test::same_bits(part.data(), &whole[static_cast<size_t>(begin) * row], part.size()));
    }
  }
  const auto batch = world.attend(kernels, {{1, 3, world.length(1)}, {0, n - 20, n}, {2, world.length(2) - 1, world.length(2)}, {0, 0, 1}}, 3);
  CHECK(test::same_bits(batch[1].data(), &whole[static_cast<size_t>(n - 20) * row], batch[1].size()));
  CHECK(test::same_bits(batch[3].data(), whole.data(), batch[3].size()));
  for (const Floats& y : batch) CHECK(std::none_of(y.begin(), y.end(), [](float x) { return std::isnan(x); }));
}

// Where later keys are seen, a text is one chunk: alone and in a batch it has the same bits.
static void is_the_same_in_company(const AttentionKernels& kernels, const World& world) {
  const Floats alone = world.attend(kernels, {{0, 0, world.length(0)}}, 1)[0];
  const auto batch = world.attend(kernels, {{2, 0, world.length(2)}, {0, 0, world.length(0)}, {1, 0, world.length(1)}}, 3);
  CHECK(test::same_bits(batch[1].data(), alone.data(), alone.size()));
}

int main() {
  test::for_each_isa([](Isa isa) {
    const AttentionKernels& kernels = attention_kernels(isa);
    const RowsKernels& rows = rows_kernels(isa);
    const Shape shapes[] = {
        {4, 2, 8, 0, 0, KvType::f32},     {4, 4, 16, 0, 0, KvType::bf16}, {3, 1, 10, 37, 0, KvType::f32},
        {6, 2, 64, 0, 5.0f, KvType::f32}, {4, 1, 128, 70, 0, KvType::bf16}, {2, 2, 80, 0, 30.0f, KvType::bf16},
        {1, 1, 256, 3, 0, KvType::f32},   {56, 1, 2, 0, 0, KvType::f32},   {8, 2, 16, 20, 0, KvType::bf16, true},
        {4, 1, 24, 0, 9.0f, KvType::f32, true}, {100, 1, 40, 0, 0, KvType::bf16, false, 30},
        {6, 2, 7, 0, 0, KvType::bf16},    {4, 1, 33, 21, 0, KvType::bf16}, {5, 1, 25, 0, 0, KvType::bf16, false, 25},
        {3, 1, 24, 0, 0, KvType::f32, true, 13}, {2, 1, 576, 0, 0, KvType::bf16, false, 512},
        {6, 2, 64, 0, 0, KvType::int8},    {4, 1, 128, 70, 0, KvType::int8},     {3, 1, 20, 37, 9.0f, KvType::int8, true},
        {6, 2, 64, 0, 0, KvType::k8v4},    {2, 2, 80, 0, 30.0f, KvType::k8v4},   {100, 1, 8, 0, 0, KvType::k8v4, true},
        {6, 2, 64, 0, 5.0f, KvType::int4}, {4, 1, 256, 21, 0, KvType::int4},     {3, 1, 12, 0, 0, KvType::int4, true},
        {6, 2, 64, 0, 0, KvType::int3},    {4, 1, 128, 70, 0, KvType::int3},     {3, 1, 16, 37, 9.0f, KvType::int3, true},
        {2, 2, 80, 0, 0, KvType::k4v3},    {4, 1, 48, 21, 0, KvType::k3v4},
    };
    uint64_t seed = 1;
    for (const Shape& shape : shapes) {
      const World world(rows, shape, {203, 70, 16}, seed++);
      matches_naive(kernels, world);
      is_bit_identical(kernels, world);
    }
    const Shape both_sides[] = {
        {4, 2, 8, 0, 0, KvType::f32, false, 0, 1 << 20}, {3, 1, 10, 37, 0, KvType::f32, false, 0, 36},
        {6, 2, 64, 5, 0, KvType::bf16, false, 0, 70},    {12, 12, 32, 0, 0, KvType::bf16, false, 0, 1 << 20},
        {3, 3, 10, 0, 0, KvType::f32, false, 0, 1 << 20, 9}, {4, 2, 16, 0, 8.0f, KvType::f32, false, 0, 1 << 20, 5},
        {6, 6, 64, 0, 0, KvType::bf16, false, 0, 1 << 20, 16}, {2, 2, 24, 30, 0, KvType::bf16, true, 0, 29, 7},
        {4, 2, 32, 0, 0, KvType::int8, false, 0, 1 << 20}, {3, 3, 16, 0, 0, KvType::int4, false, 0, 36, 9},
        {4, 2, 32, 0, 0, KvType::int3, false, 0, 36},
    };
    for (const Shape& shape : both_sides) {
      const World world(rows, shape, {203, 70, 16}, seed++);
      matches_naive(kernels, world);
      is_the_same_in_company(kernels, world);
    }
  });
  return test::report();
}
