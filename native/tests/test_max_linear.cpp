// Products of which only maxima are kept: the bits of `linear` on all rows and of a maximum in their order, for every
// format, panels that are not full, rows of several blocks, several output rows of one sequence, any number of parts.
#include "../executor/max_linear.hpp"

#include <cmath>
#include <vector>

#include "../platform/memory.hpp"
#include "test.hpp"

using namespace headrace;
using Floats = std::vector<float>;

static Floats normals(test::Random& random, int64_t count) {
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = random.normal();
  return values;
}

static Floats linear(const LinearKernels& kernels, const Weight& w, const Floats& x, const float* bias, int64_t rows) {
  Floats y(static_cast<size_t>(rows * w.n));
  Buffer scratch(kernels.scratch_bytes(rows, w.k, set_of(w.format)));
  FusedLinearArgs args;
  args.x = x.data();
  args.rows = rows;
  args.k = w.k;
  args.count = 1;
  args.w[0] = w;
  args.bias[0] = bias;
  args.y[0] = y.data();
  args.scratch = scratch.data();
  kernels.prepare(args, 0, 1);
  kernels.product(args, 0, 1);
  return y;
}

static void equals_linear(const LinearKernels& kernels, Format format, int64_t k, int64_t n, bool biased) {
  test::Random random(7);
  const std::vector<int32_t> starts{0, 3, 4, 4, 304}, outputs{2, 3, 303, 130, 1};
  const int64_t rows = starts.back();
  const Floats source = normals(random, n * k), x = normals(random, rows * k), bias = normals(random, n);
  Buffer packed(packed_bytes(format, n, k));
  const Weight w{format, n, k, packed.data()};
  CHECK(kernels.pack(format, {}, source.data(), n, k, 0, (n + kPanel - 1) / kPanel, packed.data()) == -1);
  const float* added = biased ? bias.data() : nullptr;
  const Floats all = linear(kernels, w, x, added, rows);
  Step step;
  step.query_starts = starts.data();
  step.rows = outputs.data();
  step.R = static_cast<int32_t>(outputs.size());
  const std::vector<int64_t> begins{0, 3, 4, 4, 0};
  for (const int parts : {1, 2, 7}) {
    Floats y(outputs.size() * static_cast<size_t>(n), NAN);
    Buffer scratch(max_linear_scratch_bytes(kernels, w, rows) * static_cast<size_t>(parts));
    const MaxLinearArgs args{x.data(), w, added, y.data(), &step, scratch.data()};
    for (int part = 0; part < parts; ++part) max_linear(kernels, args, rows, part, parts);
    for (size_t r = 0; r < outputs.size(); ++r) {
      Floats expected(all.begin() + begins[r] * n, all.begin() + (begins[r] + 1) * n);
      for (int64_t row = begins[r] + 1; row <= outputs[r]; ++row) {
        for (int64_t i = 0; i < n; ++i) {
          const float other = all[static_cast<size_t>(row * n + i)];
          if (other > expected[static_cast<size_t>(i)]) expected[static_cast<size_t>(i)] = other;
        }
      }
      CHECK(test::same_bits(&y[r * static_cast<size_t>(n)], expected.data(), static_cast<size_t>(n)));
    }
  }
}

int main() {
  test::for_each_isa([](Isa isa) {
    const LinearKernels& kernels = linear_kernels(isa);
    for (const Format format : {Format::f32, Format::f16, Format::bf16, Format::int8, Format::int4}) {
      equals_linear(kernels, format, 40, 1100, true);
      equals_linear(kernels, format, 33, 7, false);
    }
  });
  return test::report();
}
