// Products: every format, awkward shapes, row counts around each kernel's limits, any number of threads.
#include <thread>
#include <vector>

#include "../formats/grouped.hpp"
#include "../formats/int4.hpp"
#include "../kernels/linear.hpp"
#include "../kernels/rows.hpp"
#include "test.hpp"

namespace {

using namespace headrace;
using test::Random;

constexpr Format kFormats[] = {Format::f32, Format::f16, Format::bf16, Format::int8, Format::int4};
constexpr int kFirstGrouped = static_cast<int>(Format::q4_0);

// Memory on a 64-byte boundary, of exactly the size, so that a sanitizer sees a step beyond.
struct Bytes {
  explicit Bytes(size_t size) : data(static_cast<uint8_t*>(::operator new(size, std::align_val_t{64}))), size(size) {
    std::memset(data, 0xee, size);
  }
  ~Bytes() { ::operator delete(data, std::align_val_t{64}); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  uint8_t* data;
  size_t size;
};

std::vector<float> normals(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = random.normal();
  return values;
}

void run(const LinearKernels& kernels, FusedLinearArgs args, int parts) {
  const Bytes scratch(kernels.scratch_bytes(args.rows, args.k, formats_of(args)));
  args.scratch = scratch.data;
  // Parts after one another: slices must not need each other.
  for (int part = 0; part < parts; ++part) kernels.prepare(args, part, parts);
  for (int part = 0; part < parts; ++part) kernels.product(args, part, parts);
}

struct Packed {
  Packed(const LinearKernels& kernels, Format format, int64_t n, int64_t k, const std::vector<float>& source)
      : bytes(packed_bytes(format, n, k)), weight{format, n, k, bytes.data} {
    const int64_t panels = (n + kPanel - 1) / kPanel;
    CHECK(kernels.pack(format, Format::f32, source.data(), n, k, 0, panels, bytes.data) == -1);
  }
  Bytes bytes;
  Weight weight;
};

std::vector<float> multiply(const LinearKernels& kernels, const Weight& w, const float* x, int64_t rows, int parts) {
  std::vector<float> y(static_cast<size_t>(rows * w.n), -1.0f);
  FusedLinearArgs args;
  args.x = x;
  args.rows = rows;
  args.k = w.k;
  args.count = 1;
  args.w[0] = w;
  args.y[0] = y.data();
  run(kernels, args, parts);
  return y;
}

// act(x gate) * (x up).
std::vector<float> multiply_gated(const LinearKernels& kernels, const Weight& gate, const Weight& up, const float* x,
                                  int64_t rows, int parts, Act act = Act::silu) {
  std::vector<float> y(static_cast<size_t>(rows * gate.n));
  FusedLinearArgs args;
  args.x = x;
  args.rows = rows;
  args.k = gate.k;
  args.count = 2;
  args.w[0] = gate;
  args.w[1] = up;
  args.act = act;
  args.y[0] = y.data();
  run(kernels, args, parts);
  return y;
}

// Largest error an output may have, in units of |x| |w|: roundings of inputs to 8 bits (bf16: of mantissa).
double allowed(Format format, int64_t k) {
  if (format == Format::f32 || format == Format::f16) return 1e-6;
  return format == Format::bf16 ? 4e-3 : 0.02 + 0.02 / std::sqrt(static_cast<double>(k));
}

void check_against_double(const LinearKernels& kernels, const Weight& w, const std::vector<float>& x, int64_t rows,
                          const std::vector<float>& y) {
  std::vector<float> row(static_cast<size_t>(w.k));
  for (int64_t n = 0; n < w.n; ++n) {
    kernels.unpack_row(w, n, row.data());
    for (int64_t t = 0; t < rows; ++t) {
      double sum = 0, xx = 0, ww = 0;
      for (int64_t i = 0; i < w.k; ++i) {
        const double a = x[static_cast<size_t>(t * w.k + i)], b = row[static_cast<size_t>(i)];
        sum += a * b;
        xx += a * a;
        ww += b * b;
      }
      CHECK_NEAR(y[static_cast<size_t>(t * w.n + n)], sum, allowed(w.format, w.k) * std::sqrt(xx * ww) + 1e-30);
    }
  }
}

void test_shape(const LinearKernels& kernels, Format format, int64_t n, int64_t k) {
  constexpr int64_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 33, 64, 70};
  Random random(static_cast<uint64_t>(n * 1000 + k));
  const Packed packed(kernels, format, n, k, normals(random, n * k));
  const std::vector<float> x = normals(random, 70 * k);
  const std::vector<float> all = multiply(kernels, packed.weight, x.data(), 70, 1);
  check_against_double(kernels, packed.weight, x, 70, all);
  for (const int64_t rows : kRows) {
    for (int parts = 1; parts <= 3; ++parts) {
      const std::vector<float> y = multiply(kernels, packed.weight, x.data(), rows, parts);
      CHECK(test::same_bits(y.data(), all.data(), y.size()));
    }
  }
  const std::vector<float> last = multiply(kernels, packed.weight, x.data() + 69 * k, 1, 2);
  CHECK(test::same_bits(last.data(), all.data() + 69 * n, last.size()));
}

// Long rows, so that sums go through memory between chunks, and many, so that there are several blocks.
void test_large(const LinearKernels& kernels, Format format) {
  const int64_t n = 40, k = 1216, rows = 600;
  Random random(3);
  const Packed packed(kernels, format, n, k, normals(random, n * k));
  const std::vector<float> x = normals(random, rows * k);
  const std::vector<float> all = multiply(kernels, packed.weight, x.data(), rows, 2);
  for (const int64_t row : {int64_t{0}, int64_t{299}, int64_t{599}}) {
    const std::vector<float> y = multiply(kernels, packed.weight, x.data() + row * k, 1, 1);
    CHECK(test::same_bits(y.data(), all.data() + row * n, y.size()));
    check_against_double(kernels, packed.weight, std::vector<float>(x.begin() + row * k, x.begin() + (row + 1) * k), 1, y);
  }
}

// Weights of all forms at once, bias, residual in place; then gate and up; any number of parts.
void test_fused(const LinearKernels& kernels) {
  const int64_t k = 172, rows = 5;
  Random random(9);
  const Packed a(kernels, Format::int4, 70, k, normals(random, 70 * k));
  const Packed b(kernels, Format::f16, 33, k, normals(random, 33 * k));
  const Packed c(kernels, Format::bf16, 70, k, normals(random, 70 * k));
  const std::vector<float> x = normals(random, rows * k), norm = normals(random, k), bias = normals(random, 70);
  const std::vector<float> residual = normals(random, rows * 70);
  std::vector<float> first[3], gated;
  for (int parts = 1; parts <= 6; ++parts) {
    std::vector<float> y[3] = {residual, std::vector<float>(rows * 33), std::vector<float>(rows * 70)};
    FusedLinearArgs args;
    args.x = x.data();
    args.rows = rows;
    args.k = k;
    args.norm_weight = norm.data();
    args.norm_eps = 1e-5f;
    args.count = 3;
    const Weight weights[] = {a.weight, b.weight, c.weight};
    for (int i = 0; i < 3; ++i) {
      args.w[i] = weights[i];
      args.y[i] = y[i].data();
    }
    args.bias[0] = bias.data();
    args.residual = y[0].data();
    run(kernels, args, parts);
    for (int i = 0; i < 3; ++i) {
      if (parts == 1) first[i] = y[i];
      CHECK(test::same_bits(y[i].data(), first[i].data(), y[i].size()));
    }
    args.count = 2;
    args.w[1] = c.weight;
    args.act = Act::silu;
    args.residual = nullptr;
    run(kernels, args, parts);
    if (parts == 1) gated = y[0];
    CHECK(test::same_bits(y[0].data(), gated.data(), gated.size()));
  }
  for (size_t i = 0; i < gated.size(); ++i) {
    const double gate = static_cast<double>(first[0][i]) - residual[i];
    CHECK_NEAR(gated[i], gate / (1 + std::exp(-gate)) * first[2][i], 2e-5 * (1 + std::fabs(gate * first[2][i])));
  }
}

// What follows a gated product is what the operation alone makes of the two products, bit for bit, far from zero too.
void test_activations(const LinearKernels& kernels, const RowsKernels& alone) {
  const int64_t n = 45, k = 64, rows = 19;
  Random random(21);
  const Packed gate(kernels, Format::f32, n, k, normals(random, n * k)), up(kernels, Format::f32, n, k, normals(random, n * k));
  std::vector<float> x = normals(random, rows * k);
  for (size_t i = 0; i < x.size() / 2; ++i) x[i] *= 5;
  const std::vector<float> gates = multiply(kernels, gate.weight, x.data(), rows, 1);
  const std::vector<float> ups = multiply(kernels, up.weight, x.data(), rows, 1);
  for (const Act act : {Act::silu, Act::gelu, Act::gelu_tanh}) {
    std::vector<float> wanted(gates.size());
    const int kind = static_cast<int>(act);
    alone.gated_act({.x = {gates.data(), ups.data()}, .y = wanted.data(), .rows = rows, .columns = n, .ints = &kind}, 0, 1);
    const std::vector<float> y = multiply_gated(kernels, gate.weight, up.weight, x.data(), rows, 2, act);
    CHECK(test::same_bits(y.data(), wanted.data(), y.size()));
  }
}

// Gate and up of integers: many rows, of which no number is a whole one of registers or blocks, get what each gets alone.
void test_gated_integers(const LinearKernels& kernels) {
  const int64_t n = 200, k = 160;
  Random random(11);
  const Packed gate(kernels, Format::int4, n, k, normals(random, n * k));
  const Packed up(kernels, Format::int8, n, k, normals(random, n * k));
  const std::vector<float> x = normals(random, 300 * k);
  const auto gated = [&](int64_t row, int64_t rows, int parts) {
    return multiply_gated(kernels, gate.weight, up.weight, x.data() + row * k, rows, parts);
  };
  std::vector<float> alone;
  for (int64_t row = 0; row < 300; ++row) {
    const std::vector<float> y = gated(row, 1, 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (const int64_t rows : {2, 5, 15, 18, 21, 50, 225, 250, 300}) {
    for (const int parts : {1, 3}) {
      const std::vector<float> y = gated(0, rows, parts);
      CHECK(test::same_bits(y.data(), alone.data(), y.size()));
    }
  }
}

// Matrix registers give the very bits that AVX-512 gives.
void test_matrix_registers() {
  if (!isa_usable(Isa::amx)) return;
  const int64_t n = 70, k = 2272, rows = 45;  // more than one chunk, and half a register behind
  for (const Format format : {Format::int4, Format::int8}) {
    Random random(12);
    const std::vector<float> w = normals(random, n * k), x = normals(random, rows * k);
    const LinearKernels &matrix = linear_kernels(Isa::amx), &vector = linear_kernels(Isa::avx512);
    const Packed packed(vector, format, n, k, w);
    const std::vector<float> y = multiply(matrix, packed.weight, x.data(), rows, 2);
    const std::vector<float> wanted = multiply(vector, packed.weight, x.data(), rows, 2);
    CHECK(test::same_bits(y.data(), wanted.data(), y.size()));
  }
}

// Any bytes as blocks. What is refused as no number is multiplied nevertheless: no bit pattern may do harm.
void test_any_blocks(const LinearKernels& kernels, Format format) {
  const int64_t n = 33, rows = 14;
  for (const int64_t k : {int64_t{256}, 19 * int64_t{256}, block_inputs(format), 3 * block_inputs(format)}) {
    Random random(static_cast<uint64_t>(k) * 32 + static_cast<uint64_t>(format));
    const Bytes source(static_cast<size_t>(n * source_row_bytes(format, k)));
    for (size_t i = 0; i < source.size; ++i) source.data[i] = static_cast<uint8_t>(random.bits());
    const Bytes packed(packed_bytes(format, n, k));
    kernels.pack(format, format, source.data, n, k, 0, 2, packed.data);
    for (int64_t panel = 0; panel < 2; ++panel) {  // a refusal stops at its panel
      const uint8_t* from = source.data + panel * 32 * source_row_bytes(format, k);
      kernels.pack(format, format, from, n, k, panel, panel + 1, packed.data);
    }
    const Weight w{format, n, k, packed.data};
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t r = 0; r < n; ++r) kernels.unpack_row(w, r, row.data());
    const std::vector<float> x = normals(random, rows * k);
    const std::vector<float> all = multiply(kernels, w, x.data(), rows, 2);
    const std::vector<float> one = multiply(kernels, w, x.data() + 13 * k, 1, 1);
    for (int64_t c = 0; c < n; ++c) {
      const float a = all[static_cast<size_t>(13 * n + c)], b = one[static_cast<size_t>(c)];
      CHECK((std::isnan(a) && std::isnan(b)) || test::same_bits(&a, &b, 1));
    }
    const Bytes floats(packed_bytes(Format::f32, n, k));
    kernels.pack(Format::f32, format, source.data, n, k, 0, 2, floats.data);
  }
}

// Blocks of small bytes, which make finite scales.
struct Blocks {
  Blocks(const LinearKernels& kernels, Format format, int64_t n, int64_t k) : bytes(packed_bytes(format, n, k)), weight{format, n, k, bytes.data} {
    Random random(static_cast<uint64_t>(format));
    const Bytes source(static_cast<size_t>(n * source_row_bytes(format, k)));
    for (size_t i = 0; i < source.size; ++i) source.data[i] = static_cast<uint8_t>(random.below(48));
    CHECK(kernels.pack(format, format, source.data, n, k, 0, (n + kPanel - 1) / kPanel, bytes.data) == -1);
  }
  Bytes bytes;
  Weight weight;
};

// Products near the sum in double, the same for few rows and many.
void test_blocks(const LinearKernels& kernels, Format format) {
  const int64_t n = 70, k = 1280, rows = 70;
  Random random(static_cast<uint64_t>(format) + 1);
  const Blocks blocks(kernels, format, n, k);
  const std::vector<float> x = normals(random, rows * k);
  const std::vector<float> all = multiply(kernels, blocks.weight, x.data(), rows, 3);
  check_against_double(kernels, blocks.weight, x, rows, all);
  for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 24, 33}) {
    const std::vector<float> y = multiply(kernels, blocks.weight, x.data() + k, count, 2);
    CHECK(test::same_bits(y.data(), all.data() + n, y.size()));
  }
}

// Rows in several blocks, gate and up of two types: as alone, and matrix registers as AVX-512.
void test_many_blocks(const LinearKernels& kernels, Format gate, Format up) {
  const int64_t n = 33, k = 1280, rows = 301;
  Random random(77);
  const Blocks weights[] = {{kernels, gate, n, k}, {kernels, up, n, k}};
  const std::vector<float> x = normals(random, rows * k);
  const auto gated = [&](const LinearKernels& with, int64_t first, int64_t count) {
    return multiply_gated(with, weights[0].weight, weights[1].weight, x.data() + first * k, count, 2);
  };
  const std::vector<float> all = gated(kernels, 0, rows);
  for (const int64_t row : {int64_t{0}, int64_t{255}, int64_t{300}}) {
    CHECK(test::same_bits(gated(kernels, row, 1).data(), all.data() + row * n, static_cast<size_t>(n)));
  }
  if (isa_usable(Isa::amx)) {
    const std::vector<float> amx = gated(linear_kernels(Isa::amx), 0, rows), avx512 = gated(linear_kernels(Isa::avx512), 0, rows);
    CHECK(test::same_bits(amx.data(), avx512.data(), amx.size()));
  }
}

// The largest codes, or the smallest, by the largest inputs of one sign: sums in few bits on the way must not saturate.
void test_extremes(const LinearKernels& kernels, Format format, uint8_t codes, uint8_t multiplier = 17) {
  const int64_t n = 32, k = 1280, rows = 14;
  const Bytes bytes(packed_bytes(format, n, k));
  const Weight w{format, n, k, bytes.data};
  const bool by_row = format == Format::int8 || format == Format::int4;
  if (by_row) {
    const std::vector<float> ones(static_cast<size_t>(n * k), 1.0f);
    CHECK(kernels.pack(format, Format::f32, ones.data(), n, k, 0, 1, bytes.data) == -1);
  } else {
    const Blocks blocks(kernels, format, n, k);
    std::memcpy(bytes.data, blocks.bytes.data, bytes.size);
  }
  for (int64_t group = 0; group < k / kGroup; ++group) {
    if (format == Format::int8) {
      std::memset(bytes.data + kScaleBytes + group * kGroup * kPanel, codes == 0 ? 1 : 255, kGroup * kPanel);
    } else if (format == Format::int4) {
      uint8_t* head = bytes.data + kScaleBytes + group * kGroupBytes;
      std::memset(head, multiplier, kPanel);
      std::memset(head + kPanel, 255 - 15 * multiplier, kPanel);
      std::memset(head + 2 * kPanel, codes, kGroup * kPanel / 2);
    } else {
      const Grouped g = grouped(format);
      std::memset(bytes.data + group_start(g, group) + head_bytes(g.scales), codes, static_cast<size_t>(code_bytes(g)));
    }
  }
  for (const float sign : {1.0f, -1.0f}) {
    std::vector<float> x(static_cast<size_t>(rows * k), by_row ? 0.0f : sign);
    // Rotated, the first unit vector is the same number everywhere.
    for (size_t i = 0; by_row && i < x.size(); i += kMaxRotation) x[i] = sign;
    for (const int64_t count : {1, 2, 3, 4, 5, 6, 14}) {
      check_against_double(kernels, w, x, count, multiply(kernels, w, x.data(), count, 1));
    }
  }
}

void test_refused_values(const LinearKernels& kernels) {
  for (const Format format : kFormats) {
    std::vector<float> w(70 * 40, 1.0f);
    w[65 * 40 + 39] = float(INFINITY);
    const Bytes packed(packed_bytes(format, 70, 40));
    CHECK(kernels.pack(format, Format::f32, w.data(), 70, 40, 0, 3, packed.data) == 65);
    CHECK(kernels.pack(format, Format::f32, w.data(), 70, 40, 0, 2, packed.data) == -1);
  }
}

}  // namespace

int main() {
  test::for_each_isa([](Isa isa) {
    const LinearKernels& kernels = linear_kernels(isa);
    for (const Format format : kFormats) {
      for (const int64_t n : {1, 31, 33, 100}) {
        for (const int64_t k : {1, 2, 31, 64, 172}) test_shape(kernels, format, n, k);
      }
      for (const int64_t k : {96, 540, 896}) test_shape(kernels, format, 33, k);  // 3, 17, 28 groups
      test_large(kernels, format);
    }
    for (int format = static_cast<int>(Format::int8); format < kFormatCount; ++format) {
      if (format == static_cast<int>(Format::e4m3_g32)) continue;  // whose largest bytes are no numbers
      for (const uint8_t codes : {uint8_t{0}, uint8_t{255}}) test_extremes(kernels, static_cast<Format>(format), codes);
    }
    for (const uint8_t multiplier : {uint8_t{0}, uint8_t{1}}) test_extremes(kernels, Format::int4, 255, multiplier);
    for (int format = kFirstGrouped; format < kFormatCount; ++format) {
      test_blocks(kernels, static_cast<Format>(format));
      test_any_blocks(kernels, static_cast<Format>(format));
    }
    constexpr Format kPairs[][2] = {{Format::q4_0, Format::q8_0},    {Format::q4_k, Format::q6_k}, {Format::q2_k, Format::q3_k},
                                    {Format::iq4_nl, Format::mxfp4}, {Format::q5_1, Format::e2m1_g16}, {Format::u4_g32, Format::s8_g32}};
    for (const auto& [gate, up] : kPairs) test_many_blocks(kernels, gate, up);
    test_fused(kernels);
    test_gated_integers(kernels);
    test_activations(kernels, rows_kernels(isa));
    test_refused_values(kernels);
  });
  test_matrix_registers();
  return test::report();
}
