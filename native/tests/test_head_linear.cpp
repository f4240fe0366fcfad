// Products of heads with weights of their own: the bits of `linear` on each head alone, for every format, sizes
// that begin inside a panel, any number of rows and parts.
#include "../executor/head_linear.hpp"

#include <cmath>
#include <vector>

#include "../platform/memory.hpp"
#include "test.hpp"

using namespace headrace;
using Floats = std::vector<float>;

struct Shape {
  int heads;
  int64_t k, size, rows;
};

static Floats normals(test::Random& random, int64_t count) {
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = random.normal();
  return values;
}

static Floats linear(const LinearKernels& kernels, const Weight& w, const Floats& x, int64_t rows) {
  Floats y(static_cast<size_t>(rows * w.n));
  Buffer scratch(kernels.scratch_bytes(rows, w.k, set_of(w.format)));
  FusedLinearArgs args;
  args.x = x.data();
  args.rows = rows;
  args.k = w.k;
  args.count = 1;
  args.w[0] = w;
  args.y[0] = y.data();
  args.scratch = scratch.data();
  kernels.prepare(args, 0, 1);
  kernels.product(args, 0, 1);
  return y;
}

static void equals_linear(const LinearKernels& kernels, Format format, const Shape& shape) {
  test::Random random(7);
  const int64_t n = shape.heads * shape.size;
  const Floats source = normals(random, n * shape.k), x = normals(random, shape.rows * shape.heads * shape.k);
  Buffer packed(packed_bytes(format, n, shape.k));
  const Weight w{format, n, shape.k, packed.data()};
  CHECK(kernels.pack(format, {}, source.data(), n, shape.k, 0, (n + kPanel - 1) / kPanel, packed.data()) == -1);
  for (const int parts : {1, 2, 7}) {
    Floats y(static_cast<size_t>(shape.rows * n), NAN);
    Buffer scratch(head_linear_scratch_bytes(kernels, w, shape.heads, shape.rows) * static_cast<size_t>(parts));
    const HeadLinearArgs args{x.data(), shape.rows, w, shape.heads, y.data(), scratch.data()};
    for (int part = 0; part < parts; ++part) head_linear(kernels, args, part, parts);
    for (int head = 0; head < shape.heads; ++head) {
      Floats own;
      for (int64_t r = 0; r < shape.rows; ++r) {
        const auto from = x.begin() + (r * shape.heads + head) * shape.k;
        own.insert(own.end(), from, from + shape.k);
      }
      const Floats all = linear(kernels, w, own, shape.rows);
      for (int64_t r = 0; r < shape.rows; ++r) {
        const int64_t at = r * n + head * shape.size;
        CHECK(test::same_bits(&y[static_cast<size_t>(at)], &all[static_cast<size_t>(at)], static_cast<size_t>(shape.size)));
      }
    }
  }
}

int main() {
  test::for_each_isa([](Isa isa) {
    const LinearKernels& kernels = linear_kernels(isa);
    for (const Format format : {Format::f32, Format::f16, Format::bf16, Format::int8, Format::int4}) {
      for (const Shape& shape : {Shape{4, 12, 20, 5}, Shape{3, 32, 64, 1}, Shape{2, 40, 100, 130}, Shape{9, 33, 7, 3}}) {
        equals_linear(kernels, format, shape);
      }
    }
  });
  return test::report();
}
