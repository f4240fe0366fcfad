// Each thread has panels of the weight of its own and takes the rows in blocks: what it works on stays in its cache.
#include "max_linear.hpp"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

constexpr int64_t kBlockRows = 128, kBlockPanels = 16;

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t product_bytes(int64_t rows) { return aligned(std::min(rows, kBlockRows) * kBlockPanels * kPanel * 4); }

// The larger of y and each row of the product; the first block is copied first.
void fold(const float* product, int64_t rows, int64_t columns, bool first, float* y) {
  int64_t row = 0;
  if (first) {
    std::memcpy(y, product, static_cast<size_t>(columns) * sizeof(float));
    row = 1;
  }
  for (; row < rows; ++row) {
    const float* x = product + row * columns;
    for (int64_t i = 0; i < columns; ++i) y[i] = x[i] <= y[i] || y[i] != y[i] ? y[i] : x[i];
  }
}

}  // namespace

size_t max_linear_scratch_bytes(const LinearKernels& kernels, const Weight& w, int64_t rows) {
  const size_t linear = kernels.scratch_bytes(std::min(rows, kBlockRows), w.k, set_of(w.format));
  return static_cast<size_t>(product_bytes(rows) + aligned(static_cast<int64_t>(linear)));
}

void max_linear(const LinearKernels& kernels, const MaxLinearArgs& args, int64_t rows, int part, int parts) {
  const Step& step = *args.step;
  const int64_t panels = (args.w.n + kPanel - 1) / kPanel;
  const int64_t from = panels * part / parts, to = panels * (part + 1) / parts;
  if (from == to) return;
  uint8_t* scratch = args.scratch + static_cast<size_t>(part) * max_linear_scratch_bytes(kernels, args.w, rows);
  float* product = reinterpret_cast<float*>(scratch);
  const size_t panel_bytes = packed_bytes(args.w.format, kPanel, args.w.k);
  int b = 0;
  for (int64_t r = 0; r < step.R; ++r) {
    if (step.query_starts[b] > step.rows[r]) b = 0;
    while (step.query_starts[b + 1] <= step.rows[r]) ++b;
    const int64_t begin = step.query_starts[b], end = int64_t{step.rows[r]} + 1;
    for (int64_t row = begin; row < end; row += kBlockRows) {
      FusedLinearArgs linear;
      linear.x = args.x + row * args.w.k;
      linear.rows = std::min(kBlockRows, end - row);
      linear.k = args.w.k;
      linear.count = 1;
      linear.w[0] = args.w;
      linear.y[0] = product;
      linear.scratch = scratch + product_bytes(rows);
      kernels.prepare(linear, 0, 1);
      for (int64_t panel = from; panel < to; panel += kBlockPanels) {
        const int64_t column = panel * kPanel;
        const int64_t columns = std::min(std::min(panel + kBlockPanels, to) * kPanel, args.w.n) - column;
        linear.w[0] = {args.w.format, columns, args.w.k, args.w.data + static_cast<size_t>(panel) * panel_bytes};
        linear.bias[0] = args.bias == nullptr ? nullptr : args.bias + column;
        kernels.product(linear, 0, 1);
        fold(product, linear.rows, columns, row == begin, args.y + r * args.w.n + column);
      }
    }
  }
}

}  // namespace headrace
