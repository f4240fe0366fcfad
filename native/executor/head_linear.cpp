// Each head is a small product of its own, done by one thread with the kernels of `linear`.
//
// Its outputs need not begin or end at a panel of the packed weight: all panels that hold one are multiplied
// and what belongs to other heads is dropped. Sizes of real models are multiples of a panel.
#include "head_linear.hpp"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

constexpr int64_t kBlockRows = 128;  // at once: what a thread works on stays in its cache

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// One thread's memory: dense rows of x and of y, and the products' own.
struct Scratch {
  float *x, *y;
  uint8_t* linear;
  size_t total;
};

Scratch scratch_of(const LinearKernels& kernels, uint8_t* base, const Weight& w, int heads, int64_t rows) {
  rows = std::min(rows, kBlockRows);
  const int64_t x_bytes = aligned(rows * w.k * 4);
  const int64_t y_bytes = aligned(rows * (w.n / heads + 2 * kPanel) * 4);
  const size_t linear = static_cast<size_t>(aligned(static_cast<int64_t>(kernels.scratch_bytes(rows, w.k, set_of(w.format)))));
  return {reinterpret_cast<float*>(base), reinterpret_cast<float*>(base + x_bytes), base + x_bytes + y_bytes,
          static_cast<size_t>(x_bytes + y_bytes) + linear};
}

// Panels [first, last) of the weight and those of their outputs, [begin, end), to be computed.
struct Piece {
  int64_t first, last, begin, end;
};

Piece piece_of(const HeadLinearArgs& args, int64_t head, int64_t index, int64_t count) {
  const int64_t size = args.w.n / args.heads, begin = head * size, end = begin + size;
  const int64_t first = begin / kPanel, panels = (end + kPanel - 1) / kPanel - first;
  Piece piece{first + panels * index / count, first + panels * (index + 1) / count, 0, 0};
  piece.begin = std::max(begin, piece.first * kPanel);
  piece.end = std::min(end, piece.last * kPanel);
  return piece;
}

void multiply(const LinearKernels& kernels, const HeadLinearArgs& args, const Scratch& scratch, int64_t head,
              const Piece& piece, int64_t row0, int64_t rows) {
  const int64_t k = args.w.k, columns = (piece.last - piece.first) * kPanel;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(scratch.x + r * k, args.x + ((row0 + r) * args.heads + head) * k, static_cast<size_t>(k) * 4);
  }
  const size_t panel_bytes = packed_bytes(args.w.format, kPanel, k);
  FusedLinearArgs linear;
  linear.x = scratch.x;
  linear.rows = rows;
  linear.k = k;
  linear.count = 1;
  linear.w[0] = {args.w.format, columns, k, args.w.data + static_cast<size_t>(piece.first) * panel_bytes};
  linear.y[0] = scratch.y;
  linear.scratch = scratch.linear;
  kernels.prepare(linear, 0, 1);
  kernels.product(linear, 0, 1);
  const float* from = scratch.y + (piece.begin - piece.first * kPanel);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(args.y + (row0 + r) * args.w.n + piece.begin, from + r * columns,
                static_cast<size_t>(piece.end - piece.begin) * 4);
  }
}

}  // namespace

size_t head_linear_scratch_bytes(const LinearKernels& kernels, const Weight& w, int heads, int64_t rows) {
  return scratch_of(kernels, nullptr, w, heads, rows).total;
}

void head_linear(const LinearKernels& kernels, const HeadLinearArgs& args, int part, int parts) {
  const size_t own = head_linear_scratch_bytes(kernels, args.w, args.heads, args.rows);
  const Scratch scratch =
      scratch_of(kernels, args.scratch + static_cast<size_t>(part) * own, args.w, args.heads, args.rows);
  const int64_t pieces = (parts + args.heads - 1) / args.heads, units = args.heads * pieces;
  for (int64_t unit = units * part / parts; unit < units * (part + 1) / parts; ++unit) {
    const Piece piece = piece_of(args, unit / pieces, unit % pieces, pieces);
    if (piece.first == piece.last) continue;
    for (int64_t row = 0; row < args.rows; row += kBlockRows) {
      multiply(kernels, args, scratch, unit / pieces, piece, row, std::min(kBlockRows, args.rows - row));
    }
  }
}

}  // namespace headrace
