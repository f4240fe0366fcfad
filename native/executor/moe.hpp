// A mixture of experts in phases: which rows go to which expert, the experts' products, their weighted sum.
#pragma once
#include <cstddef>
#include <cstdint>

#include "../kernels/arguments.hpp"
#include "../kernels/linear.hpp"
#include "../kernels/moe.hpp"
#include "../kernels/rows.hpp"
#include "program.hpp"

namespace headrace {

// Sizes in numbers; experts' matrices lie one below the other: gate and up [experts * inner, outer], down
// [experts * outer, inner].
struct MoeShape {
  int64_t rows = 0;   // of the largest step
  int32_t experts = 0;
  int32_t top_k = 0;  // gates that are not 0 in a row, at most
  int64_t outer = 0;  // columns of x and y
  int64_t inner = 0;  // columns between the products
  FormatSet formats = 0;  // of all weights
};

// y[t] = sum over e of gates[t][e] * down_e(act(gate_e(x[t]), up_e(x[t]))), see src/headrace/ops/moe.py.
struct MoeArgs {
  MoeShape shape;
  int64_t rows = 0;  // of this step
  const float* x = nullptr;
  const float* gates = nullptr;  // [rows, experts]
  float* y = nullptr;
  Weight gate, up, down;
  const float* gate_bias = nullptr;  // or null, as the next two
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  Act act = Act::silu;
  uint8_t* scratch = nullptr;  // moe_scratch_bytes(...), 64-byte aligned, shared by all threads
};

// Products, a call for each expert that has rows: only their weights are read. Rows of an expert may begin
// inside a panel: the whole panel is computed, and its other columns are left aside. Every number is made from
// its own row alone and the sum over a row's experts runs in ascending order, so bits depend neither on the
// other rows nor on the number of threads.
class Moe {
 public:
  static constexpr int kPhases = 7;

  explicit Moe(Isa isa) : linear_(linear_kernels(isa)), rows_(rows_kernels(isa)), moe_(moe_kernels(isa)) {}

  size_t scratch_bytes(const MoeShape& shape) const;
  void run(const MoeArgs& args, int phase, int part, int parts) const;  // phases in order, 0 .. kPhases - 1

 private:
  struct Scratch;
  Scratch scratch_of(uint8_t* base, const MoeShape& shape) const;
  void sort(const MoeArgs& args, const Scratch& scratch) const;
  void inward(const MoeArgs& args, const Scratch& scratch, bool prepare, int part, int parts) const;
  void activate(const MoeArgs& args, const Scratch& scratch, int part, int parts) const;
  void outward(const MoeArgs& args, const Scratch& scratch, bool prepare, int part, int parts) const;
  void combine(const MoeArgs& args, const Scratch& scratch, int part, int parts) const;

  const LinearKernels& linear_;
  const RowsKernels& rows_;
  const MoeKernels& moe_;
};

}  // namespace headrace
