// Adapters beside a product: near the definition in double, and the same bits whichever rows come together.
#include "../kernels/lora.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include "../kernels/linear.hpp"
#include "../platform/memory.hpp"
#include "test.hpp"

using namespace headrace;
using Floats = std::vector<float>;

static Floats normals(test::Random& random, int64_t count) {
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = random.normal();
  return values;
}

static float rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

static void put(std::vector<uint8_t>& to, int64_t at, float x, bool f32) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits >>= f32 ? 0 : 16;
  std::memcpy(to.data() + at * (f32 ? 4 : 2), &bits, f32 ? 4 : 2);
}

// One adapter of two weights with n outputs each.
struct Adapter {
  int64_t rank, n, k;
  bool f32;
  Floats a[2], b[2];
  std::vector<uint8_t> packed_a[2], packed_b[2];

  Adapter(test::Random& random, int64_t rank, int64_t n, int64_t k, bool f32) : rank(rank), n(n), k(k), f32(f32) {
    for (int i = 0; i < 2; ++i) {
      a[i] = normals(random, rank * k);
      b[i] = normals(random, n * rank);
      for (Floats* half : {&a[i], &b[i]}) {
        for (float& x : *half) x = rounded(x);
      }
      packed_a[i].resize(static_cast<size_t>(lora_a_bytes(f32, rank, k)));
      packed_b[i].resize(static_cast<size_t>(lora_b_bytes(f32, rank, n)));
      for (int64_t j = 0; j < rank; ++j) {
        const int64_t first = j / kLoraBlock * kLoraBlock, rows = std::min<int64_t>(kLoraBlock, rank - first);
        for (int64_t c = 0; c < k; ++c) {
          put(packed_a[i], first * lora_inputs(k) + (c / 32 * rows + j - first) * 32 + c % 32, a[i][static_cast<size_t>(j * k + c)], f32);
        }
        for (int64_t o = 0; o < n; ++o) {
          const int64_t panel = o / kPanel * kPanel * rank, column = o % kPanel;
          const int64_t at = f32 ? j * kPanel + column : (j / 2 * kPanel + column) * 2 + j % 2;
          put(packed_b[i], panel + at, b[i][static_cast<size_t>(o * rank + j)], f32);
        }
      }
    }
  }
};

struct Product {
  const LinearKernels& linear;
  const LoraKernels& lora;
  int64_t n, k;
  Buffer packed[2];
  std::vector<LoraPair> pairs;
  int64_t stride = 0;

  // y[2][rows, n] of rows with these adapters.
  Floats run(const Floats& x, const std::vector<int32_t>& adapters, int parts) const {
    const auto rows = static_cast<int64_t>(adapters.size());
    Floats y(static_cast<size_t>(2 * rows * n));
    Buffer scratch(linear.scratch_bytes(rows, k, set_of(Format::f32)));
    Buffer own(static_cast<size_t>(parts * lora_scratch_bytes(k)));
    std::vector<uint32_t> hidden(static_cast<size_t>(rows * stride + 1));
    std::vector<int32_t> order;
    for (int32_t adapter = 0; adapter < 3; ++adapter) {
      for (int32_t r = 0; r < rows; ++r) {
        if (adapters[static_cast<size_t>(r)] == adapter) order.push_back(r);
      }
    }
    const LoraRows beside{adapters.data(), pairs.data(), hidden.data(), stride};
    LoraShrinkArgs shrink;
    shrink.x = x.data();
    shrink.k = k;
    shrink.order = order.data();
    shrink.count = static_cast<int64_t>(order.size());
    shrink.weights = 2;
    shrink.rows = beside;
    shrink.hidden = hidden.data();
    shrink.scratch = own.data();
    FusedLinearArgs args;
    args.x = x.data();
    args.rows = rows;
    args.k = k;
    args.count = 2;
    args.lora = &beside;
    args.scratch = scratch.data();
    for (int i = 0; i < 2; ++i) {
      args.w[i] = {Format::f32, n, k, packed[i].data()};
      args.y[i] = y.data() + i * rows * n;
    }
    for (int part = 0; part < parts; ++part) lora.shrink(shrink, part, parts);
    for (int part = 0; part < parts; ++part) linear.prepare(args, part, parts);
    for (int part = 0; part < parts; ++part) linear.product(args, part, parts);
    return y;
  }
};

static void check(Isa isa, bool f32, int64_t n, int64_t k) {
  test::Random random(5);
  Product product{linear_kernels(isa), lora_kernels(isa), n, k, {}, {}};
  for (Buffer& packed : product.packed) {
    const Floats zeros(static_cast<size_t>(n * k));
    packed = Buffer(packed_bytes(Format::f32, n, k));
    CHECK(product.linear.pack(Format::f32, {}, zeros.data(), n, k, 0, (n + kPanel - 1) / kPanel, packed.data()) == -1);
  }
  std::vector<Adapter> adapters;
  for (const int64_t rank : {2, 12, 18}) adapters.emplace_back(random, rank, n, k, f32);
  for (const Adapter& one : adapters) {
    const auto words = static_cast<int32_t>(f32 ? one.rank : one.rank / 2);
    for (int i = 0; i < kMaxLinears; ++i) {
      LoraPair pair;
      if (i < 2) {
        pair = {static_cast<int32_t>(one.rank), f32 ? Format::f32 : Format::bf16, i * words, 0.5f, one.packed_a[i].data(), one.packed_b[i].data()};
      }
      product.pairs.push_back(pair);
    }
    product.stride = std::max<int64_t>(product.stride, 2 * words);
  }
  const std::vector<int32_t> of = {1, -1, 0, 2, 1, 1, 1, 1, 2, -1, 0};
  const auto rows = static_cast<int64_t>(of.size());
  const Floats x = normals(random, rows * k);
  const Floats y = product.run(x, of, 1);
  for (const int parts : {2, 5}) CHECK(test::same_bits(product.run(x, of, parts).data(), y.data(), y.size()));
  for (int64_t r = 0; r < rows; ++r) {
    const Floats row(x.begin() + r * k, x.begin() + (r + 1) * k);
    const Floats alone = product.run(row, {of[static_cast<size_t>(r)]}, 1);
    for (int i = 0; i < 2; ++i) {
      const float* got = y.data() + (i * rows + r) * n;
      CHECK(test::same_bits(got, alone.data() + i * n, static_cast<size_t>(n)));
      for (int64_t o = 0; o < n; ++o) {
        double sum = 0;
        if (const int32_t adapter = of[static_cast<size_t>(r)]; adapter >= 0) {
          const Adapter& one = adapters[static_cast<size_t>(adapter)];
          for (int64_t j = 0; j < one.rank; ++j) {
            double h = 0;
            for (int64_t c = 0; c < k; ++c) {
              const float in = f32 ? row[static_cast<size_t>(c)] : rounded(row[static_cast<size_t>(c)]);
              h += static_cast<double>(one.a[i][static_cast<size_t>(j * k + c)]) * in;
            }
            sum += h * 0.5 * one.b[i][static_cast<size_t>(o * one.rank + j)];
          }
        }
        const double allowed = (f32 ? 1e-4 : 2e-2) * std::sqrt(static_cast<double>(k)) * 5;
        CHECK(std::abs(got[o] - sum) <= allowed);
      }
    }
  }
}

int main() {
  test::for_each_isa([](Isa isa) {
    for (const bool f32 : {true, false}) {
      check(isa, f32, 70, 100);
      check(isa, f32, 32, 33);
    }
  });
  return test::report();
}
