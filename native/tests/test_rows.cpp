// Row kernels against double arithmetic, and their independence of row counts and parts.
#include "../formats/kv_page.hpp"
#include "../kernels/rows.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "coded_row.hpp"
#include "test.hpp"

using namespace headrace;
using Floats = std::vector<float>;

static Floats random_floats(size_t count, uint64_t seed, float scale = 1.0f) {
  test::Random random(seed);
  Floats result(count);
  for (float& x : result) x = scale * random.normal();
  return result;
}

template <class F>
static void all_parts(int parts, F&& f) {
  for (int part = 0; part < parts; ++part) f(part, parts);
}

using RowOp = void (*)(const RowOpArgs& op, int part, int parts);
static void in_parts(int parts, RowOp kernel, const RowOpArgs& op) {
  all_parts(parts, [&](int p, int n) { kernel(op, p, n); });
}

constexpr float kEps = 1e-5f;

static void norm_matches_double(const RowsKernels& kernels) {
  constexpr int kRuns = 1;
  for (const int64_t d : {1, 2, 7, 16, 63, 64, 65, 130, 2048}) {
    const int64_t rows = 3;
    const Floats x = random_floats(static_cast<size_t>(rows * d), 1), w = random_floats(static_cast<size_t>(d), 2);
    Floats y(x.size());
    RowOpArgs norm{.x = {x.data()}, .y = y.data(), .rows = rows, .columns = d, .constants = {w.data()}, .constant_size = d,
                   .ints = &kRuns, .floats = &kEps};
    in_parts(2, kernels.rms_norm, norm);
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += static_cast<double>(x[r * d + i]) * x[r * d + i];
      const double inverse = 1 / std::sqrt(sum / static_cast<double>(d) + 1e-5);
      for (int64_t i = 0; i < d; ++i) {
        const double expected = x[r * d + i] * inverse * w[i];
        CHECK_NEAR(y[r * d + i], expected, 1e-6 * std::fabs(expected) + 1e-12);
      }
    }
    Floats one(static_cast<size_t>(d));  // a row alone, in place
    std::copy(x.begin() + d, x.begin() + 2 * d, one.begin());
    norm.x[0] = norm.y = one.data();
    norm.rows = 1;
    kernels.rms_norm(norm, 0, 1);
    CHECK(test::same_bits(one.data(), y.data() + d, static_cast<size_t>(d)));
  }
}

static void layer_norm_matches_double(const RowsKernels& kernels) {
  for (const int64_t d : {2, 7, 16, 63, 64, 65, 130, 2048}) {
    const int64_t rows = 3;
    Floats x = random_floats(static_cast<size_t>(rows * d), 1);
    for (float& number : x) number += 10;  // a mean that dwarfs the variance
    const Floats w = random_floats(static_cast<size_t>(d), 2), bias = random_floats(static_cast<size_t>(d), 3);
    Floats y(x.size()), plain(x.size());
    RowOpArgs norm{.x = {x.data()}, .y = y.data(), .rows = rows, .columns = d, .constants = {w.data(), bias.data()},
                   .constant_size = d, .floats = &kEps};
    in_parts(2, kernels.layer_norm, norm);
    norm.y = plain.data();
    norm.constants[1] = nullptr;
    in_parts(3, kernels.layer_norm, norm);
    for (int64_t r = 0; r < rows; ++r) {
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < d; ++i) mean += x[r * d + i] / static_cast<double>(d);
      for (int64_t i = 0; i < d; ++i) variance += (x[r * d + i] - mean) * (x[r * d + i] - mean) / static_cast<double>(d);
      for (int64_t i = 0; i < d; ++i) {
        const double expected = (x[r * d + i] - mean) / std::sqrt(variance + 1e-5) * w[i];
        CHECK_NEAR(plain[r * d + i], expected, 1e-5);
        CHECK_NEAR(y[r * d + i], expected + bias[i], 1e-5);
      }
    }
    Floats one(x.begin() + d, x.begin() + 2 * d);  // a row alone, in place
    norm.x[0] = norm.y = one.data();
    norm.rows = 1;
    norm.constants[1] = bias.data();
    kernels.layer_norm(norm, 0, 1);
    CHECK(test::same_bits(one.data(), y.data() + d, static_cast<size_t>(d)));
  }
}

static void scales_and_caps(const RowsKernels& kernels) {
  const float by = 0.3f, cap = 30.0f;
  for (const int64_t count : {1, 15, 64, 1000}) {
    const Floats x = random_floats(static_cast<size_t>(count), 4, 20.0f);
    Floats scaled(x), capped(x);
    in_parts(3, kernels.scale, {.x = {scaled.data()}, .y = scaled.data(), .rows = 1, .columns = count, .floats = &by});
    in_parts(3, kernels.softcap, {.x = {capped.data()}, .y = capped.data(), .rows = 1, .columns = count, .floats = &cap});
    bool good = true;
    for (size_t i = 0; i < x.size(); ++i) good = good && scaled[i] == x[i] * by;
    CHECK(good);
    for (size_t i = 0; i < x.size(); ++i) CHECK_NEAR(capped[i], 30 * std::tanh(x[i] / 30.0), 1e-5);
    Floats alone(1);  // in a tail or in a vector: the same
    kernels.softcap({.x = {&x[0]}, .y = alone.data(), .rows = 1, .columns = 1, .floats = &cap}, 0, 1);
    CHECK(test::same_bits(alone.data(), capped.data(), 1));
  }
}

static double expected_act(Act act, double x) {
  switch (act) {
    case Act::silu:
      return x / (1 + std::exp(-x));
    case Act::gelu:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case Act::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case Act::tanh:
      return std::tanh(x);
    case Act::relu:
      return std::fmax(x, 0.0);
    case Act::log1p_relu:
      return std::log1p(std::fmax(x, 0.0));
    default:
      return x;
  }
}

static void activations_match_double(const RowsKernels& kernels) {
  Floats x;
  for (float v = -30; v < 30; v += 0.0137f) x.push_back(v);
  for (const float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 200.0f, -200.0f, 0.624999f, 0.625f}) x.push_back(v);
  const Floats up = random_floats(x.size(), 3);
  const int64_t count = static_cast<int64_t>(x.size());
  for (const Act act : {Act::none, Act::silu, Act::gelu, Act::gelu_tanh, Act::tanh, Act::relu, Act::log1p_relu}) {
    Floats y(x.size()), gated(x.size());
    const int kind = static_cast<int>(act);
    in_parts(3, kernels.act, {.x = {x.data()}, .y = y.data(), .rows = 1, .columns = count, .ints = &kind});
    in_parts(2, kernels.gated_act, {.x = {x.data(), up.data()}, .y = gated.data(), .rows = 1, .columns = count, .ints = &kind});
    bool product = true;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = expected_act(act, x[i]);
      CHECK_NEAR(y[i], expected, 6e-7 * std::fmax(1.0, std::fabs(expected)));
      product = product && gated[i] == y[i] * up[i];
    }
    CHECK(product);
    Floats alone(1);  // in a tail or in a vector: the same
    bool same = true;
    for (size_t i = 0; i < x.size(); i += 17) {
      kernels.act({.x = {&x[i]}, .y = alone.data(), .rows = 1, .columns = 1, .ints = &kind}, 0, 1);
      same = same && test::same_bits(alone.data(), &y[i], 1);
    }
    CHECK(same);
  }
  const float nan = NAN;
  float out = 0;
  const int silu = static_cast<int>(Act::silu);
  kernels.act({.x = {&nan}, .y = &out, .rows = 1, .columns = 1, .ints = &silu}, 0, 1);
  CHECK(std::isnan(out));
}

static void adds_and_gathers(const RowsKernels& kernels) {
  for (const int64_t count : {1, 15, 64, 1000}) {
    const Floats a = random_floats(static_cast<size_t>(count), 4), b = random_floats(static_cast<size_t>(count), 5);
    Floats y(a);
    in_parts(3, kernels.add, {.x = {y.data(), b.data()}, .y = y.data(), .rows = 1, .columns = count});
    bool good = true;
    for (size_t i = 0; i < y.size(); ++i) good = good && y[i] == a[i] + b[i];
    CHECK(good);
  }
  const Floats x = random_floats(5 * 3, 6);
  const int32_t rows[] = {4, 0, 4};
  Floats y(9);
  Step step;
  step.rows = rows;
  RowOpArgs op{.x = {x.data()}, .y = y.data(), .rows = 3, .columns = 3, .step = &step};
  in_parts(4, kernels.gather, op);
  for (size_t r = 0; r < 3; ++r) CHECK(test::same_bits(&y[r * 3], &x[static_cast<size_t>(rows[r]) * 3], 3));
  const int32_t starts[] = {0, 2, 5}, lasts[] = {4, 1, 2};
  step.B = 2;
  step.R = 3;
  step.query_starts = starts;
  step.rows = lasts;
  const int mean = 0, largest = 1;
  op.ints = &largest;
  in_parts(4, kernels.pool, op);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(y[i] == std::fmax(x[6 + i], std::fmax(x[9 + i], x[12 + i])));
    CHECK(y[3 + i] == std::fmax(x[i], x[3 + i]));
    CHECK(y[6 + i] == x[6 + i]);
  }
  op.ints = &mean;
  in_parts(4, kernels.pool, op);
  for (size_t i = 0; i < 3; ++i) {
    CHECK_NEAR(y[i], (x[6 + i] + x[9 + i] + x[12 + i]) / 3, 1e-6);
    CHECK_NEAR(y[3 + i], (x[i] + x[3 + i]) / 2, 1e-6);
    CHECK(y[6 + i] == x[6 + i]);
  }
  const int columns[] = {2, 0, 1};
  op.ints = columns;
  in_parts(4, kernels.take_columns, op);
  for (size_t i = 0; i < 9; ++i) CHECK(y[i] == x[i / 3 * 3 + static_cast<size_t>(columns[i % 3])]);
}

static void rope_table_is_accurate(const RowsKernels& kernels) {
  const int32_t positions[] = {0, 1, 77, 100000, 131071};
  float inv_freq[16];
  for (int i = 0; i < 16; ++i) inv_freq[i] = static_cast<float>(std::pow(500000.0, -i / 16.0));
  Step step;
  step.T = 5;
  step.positions = positions;
  Floats cos(5 * 16), sin(5 * 16);
  RopeTableArgs args;
  args.inv_freq = inv_freq;
  args.half = 16;
  args.rope_scale = 1.25f;
  args.cos = cos.data();
  args.sin = sin.data();
  args.step = &step;
  all_parts(2, [&](int p, int n) { kernels.rope_table(args, p, n); });
  for (size_t t = 0; t < 5; ++t) {
    for (size_t i = 0; i < 16; ++i) {
      const float angle = static_cast<float>(positions[t]) * inv_freq[i];
      CHECK_NEAR(cos[t * 16 + i], 1.25 * std::cos(static_cast<double>(angle)), 1.5e-7);
      CHECK_NEAR(sin[t * 16 + i], 1.25 * std::sin(static_cast<double>(angle)), 1.5e-7);
    }
  }
}

static uint16_t nearest_bf16(float x) {  // by search among the two neighbors, ties to the even one
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t low = bits & 0xffff0000u, high = low + 0x10000u;
  float a, b;
  std::memcpy(&a, &low, 4);
  std::memcpy(&b, &high, 4);
  const double below = std::fabs(static_cast<double>(x) - a), above = std::fabs(static_cast<double>(b) - x);
  const bool up = above < below || (above == below && ((low >> 16) & 1u) != 0);
  return static_cast<uint16_t>((up ? high : low) >> 16);
}

// One call of rope_kv_write for T tokens, with everything it needs.
struct RopeCase {
  int32_t T, heads, kv_heads, head_dim, rotary_dim;
  KvType type;
  bool norms;
  Floats q, k, v, q_norm, k_norm, cos, sin, q_out;
  std::vector<int32_t> slots;
  std::vector<uint8_t> k_memory, v_memory;

  RopeCase(int32_t T, int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t rotary_dim, KvType type, bool norms)
      : T(T), heads(heads), kv_heads(kv_heads), head_dim(head_dim), rotary_dim(rotary_dim), type(type), norms(norms) {
    const size_t tokens = static_cast<size_t>(T), dim = static_cast<size_t>(head_dim);
    q = random_floats(tokens * static_cast<size_t>(heads) * dim, 11);
    k = random_floats(tokens * static_cast<size_t>(kv_heads) * dim, 12);
    v = random_floats(tokens * static_cast<size_t>(kv_heads) * dim, 13);
    q_norm = random_floats(dim, 14);
    k_norm = random_floats(dim, 15);
    cos = random_floats(tokens * static_cast<size_t>(rotary_dim / 2), 16);
    sin = random_floats(tokens * static_cast<size_t>(rotary_dim / 2), 17);
    for (int32_t t = 0; t < T; ++t) slots.push_back((t * 7 + 3) % 32);
    const size_t pages = 2 * static_cast<size_t>(kv_heads);
    k_memory.assign(pages * static_cast<size_t>(page_bytes(type, Part::keys, head_dim)), 0);
    v_memory.assign(pages * static_cast<size_t>(page_bytes(type, Part::values, head_dim)), 0);
    q_out.assign(q.size(), 0);
  }

  void run(const RowsKernels& kernels, int parts, bool in_place) {
    Step step;
    step.T = T;
    step.slots = slots.data();
    RopeKvWriteArgs args;
    if (in_place) q_out = q;
    args.q = in_place ? q_out.data() : q.data();
    args.k = k.data();
    args.v = v.data();
    args.q_out = q_out.data();
    args.heads = heads;
    args.q_norm = norms ? q_norm.data() : nullptr;
    args.k_norm = norms ? k_norm.data() : nullptr;
    args.norm_eps = 1e-6f;
    args.cos = cos.data();
    args.sin = sin.data();
    args.rotary_dim = rotary_dim;
    args.kv = {type, kv_heads, head_dim, k_memory.data(), v_memory.data()};
    args.step = &step;
    all_parts(parts, [&](int p, int n) { kernels.rope_kv_write(args, p, n); });
  }

  // Double reference of one head of token t.
  std::vector<double> expected(const float* x, const Floats& norm, int32_t t, bool rotate) const {
    const size_t dim = static_cast<size_t>(head_dim), half = static_cast<size_t>(rotary_dim / 2);
    std::vector<double> h(x, x + dim);
    if (!rotate) return h;
    if (norms) {
      double sum = 0;
      for (const double value : h) sum += value * value;
      for (size_t i = 0; i < dim; ++i) h[i] = h[i] / std::sqrt(sum / static_cast<double>(dim) + 1e-6) * norm[i];
    }
    std::vector<double> r = h;
    for (size_t i = 0; i < half; ++i) {
      const double c = cos[static_cast<size_t>(t) * half + i], s = sin[static_cast<size_t>(t) * half + i];
      r[i] = h[i] * c - h[half + i] * s;
      r[half + i] = h[half + i] * c + h[i] * s;
    }
    return r;
  }

  // A row of a page: as many numbers of `type`, or what its codes stand for.
  std::vector<double> stored(Part part, int32_t head, int32_t slot) const {
    const std::vector<uint8_t>& memory = part == Part::keys ? k_memory : v_memory;
    const int64_t token = slot % kPageTokens;
    const uint8_t* page = memory.data() + (slot / kPageTokens * kv_heads + head) * page_bytes(type, part, head_dim);
    if (is_coded(type)) return test::coded_row(type, part, page, head_dim, token);
    std::vector<double> row;
    for (int32_t d = 0; d < head_dim; ++d) {
      const int64_t at = part == Part::keys ? key_place(type, head_dim, token, d) : value_place(type, head_dim, token, d);
      float value = 0;
      if (type == KvType::f32) {
        std::memcpy(&value, page + at * 4, 4);
      } else {
        std::memcpy(reinterpret_cast<uint8_t*>(&value) + 2, page + at * 2, 2);
      }
      row.push_back(value);
    }
    return row;
  }

  // A row as it was rounded: each number, or the whole within what its bits allow.
  void check_row(Part part, const std::vector<double>& got, const std::vector<double>& want) const {
    double error = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
      const double slack = type == KvType::f32 ? 3e-6 : 1.0 / 256;
      if (!is_coded(type)) CHECK_NEAR(got[i], want[i], slack * (1 + std::fabs(want[i])));
    }
    const int bits = number_bits(type, part);
    const double share = bits == 8 ? 0.012 : bits == 4 ? 0.2 : 0.38;  // of short rows; of long ones 0.006, 0.1 and 0.19
    if (is_coded(type)) CHECK(std::sqrt(error) <= share * std::sqrt(size));
  }

  void check() const {
    for (int32_t t = 0; t < T; ++t) {
      for (int32_t h = 0; h < heads; ++h) {
        const size_t at = static_cast<size_t>((t * heads + h) * head_dim);
        const auto want = expected(&q[at], q_norm, t, true);
        for (size_t i = 0; i < want.size(); ++i) CHECK_NEAR(q_out[at + i], want[i], 3e-6 * (1 + std::fabs(want[i])));
      }
      for (int32_t h = 0; h < kv_heads; ++h) {
        const size_t at = static_cast<size_t>((t * kv_heads + h) * head_dim);
        check_row(Part::keys, stored(Part::keys, h, slots[static_cast<size_t>(t)]), expected(&k[at], k_norm, t, true));
        const auto values = stored(Part::values, h, slots[static_cast<size_t>(t)]);
        check_row(Part::values, values, expected(&v[at], k_norm, t, false));
        for (size_t i = 0; i < values.size() && !is_coded(type); ++i) {
          float exact = v[at + i];
          if (type == KvType::bf16) {
            const uint32_t bits = static_cast<uint32_t>(nearest_bf16(exact)) << 16;
            std::memcpy(&exact, &bits, 4);
          }
          CHECK(values[i] == exact);
        }
      }
    }
  }
};

static void rope_writes(const RowsKernels& kernels) {
  for (const KvType type : {KvType::f32, KvType::bf16, KvType::int8, KvType::k8v4, KvType::int4, KvType::int3,
                            KvType::k4v3, KvType::k3v4}) {
    for (const bool norms : {false, true}) {
      for (const int32_t dim : {8, 10, 64, 80, 256}) {
        if (is_coded(type) && dim % dims_multiple(type) != 0) continue;
        for (const int32_t rotary : {0, dim / 4 * 2, dim}) {
          RopeCase split(4, 4, 2, dim, rotary, type, norms), whole = split;
          split.run(kernels, 3, false);
          split.check();
          whole.run(kernels, 1, true);
          CHECK(whole.k_memory == split.k_memory && whole.v_memory == split.v_memory);
          CHECK(test::same_bits(whole.q_out.data(), split.q_out.data(), split.q_out.size()));
        }
      }
    }
  }
}

// Rows that have no scale of their own, or none that a number can be.
static void codes_of_strange_rows(const RowsKernels& kernels) {
  for (const KvType type : {KvType::int8, KvType::int4, KvType::int3}) {
    for (const float x : {0.0f, 1e-45f, 1e-37f, 1e30f, 3e36f, NAN, INFINITY, -INFINITY}) {
      RopeCase one(1, 0, 1, 32, 0, type, false);
      std::fill(one.k.begin(), one.k.end(), 0.0f);
      one.k[5] = x;  // rotated, in every dimension
      one.run(kernels, 1, false);
      const auto got = one.stored(Part::keys, 0, one.slots[0]);
      for (size_t i = 0; i < got.size(); ++i) {
        if (!std::isfinite(x)) {
          CHECK(std::isnan(got[i]));
        } else if (x < 1e-36f) {
          CHECK_NEAR(got[i], 0, 1e-36);
        } else {
          CHECK_NEAR(got[i] / x, i == 5 ? 1 : 0, 0.01);
        }
      }
    }
  }
}

static void reads_every_byte(const RowsKernels& kernels) {
  std::vector<uint8_t> data(5000, 7);
  const uint64_t before = kernels.read(data.data(), data.size(), 1024);
  int changed = 0;
  for (size_t i = 0; i < data.size(); i += 97) {
    data[i] ^= 1;
    changed += kernels.read(data.data(), data.size(), 1024) != before;
    data[i] ^= 1;
  }
  CHECK(changed == 52);
}

int main() {
  test::for_each_isa([](Isa isa) {
    const RowsKernels& kernels = rows_kernels(isa);
    norm_matches_double(kernels);
    layer_norm_matches_double(kernels);
    scales_and_caps(kernels);
    activations_match_double(kernels);
    adds_and_gathers(kernels);
    rope_table_is_accurate(kernels);
    rope_writes(kernels);
    codes_of_strange_rows(kernels);
    reads_every_byte(kernels);
  });
  return test::report();
}
