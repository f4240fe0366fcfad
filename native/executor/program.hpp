// A program for the executor: values in an arena, weights, constants, KV layers and a list of
// instructions. check_program (verify/) refuses everything that could read or write out of bounds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../ops.hpp"
#include "../types.hpp"
#include "group.hpp"

namespace headrace {

// float32 [rows, columns] at `offset` bytes of the arena; rows: tokens of the step, or its output rows.
struct Value {
  bool of_output_rows = false;  // 'R' instead of 'T'
  int64_t columns = 0;
  int64_t offset = 0;
  bool shared = false;  // in the arena of the group
};

// After an instruction (-1: before all), where `to` is shared: the columns of `from`, this rank's, become those of `to` from
// `first` on; the other ranks write the rest. What a table of which this rank has some rows gave is exchanged by rows. Where
// `to` is this rank's alone, it gets its columns from those of `from` from `first` on.
struct Exchange {
  int instruction = 0;
  int from = -1, to = -1;
  int64_t first = 0;
};

// Which rows of a whole table a weight has.
struct TableShare {
  int weight = -1;
  int64_t first = 0, whole = 0;
};

// Recurrent memory: `width` numbers in each of the slots that fit into `bytes`.
struct State {
  float* data = nullptr;
  int64_t width = 0;
  int64_t bytes = 0;
};

struct Constant {
  const float* data = nullptr;
  int64_t size = 0;
};

// Operands as the op's line in ops.inl names them. Ids index the program's tables; -1: an operand that is absent.
struct Instruction {
  std::string name;
  std::vector<int> inputs, outputs, weights, constants, ints;
  std::vector<float> floats;
  Op op = Op::add;  // set by check_program
};

struct Program {
  uint8_t* arena = nullptr;
  int64_t arena_bytes = 0;
  std::vector<Value> values;
  std::vector<Weight> weights;
  std::vector<int64_t> weight_bytes;
  std::vector<Constant> constants;
  std::vector<KvLayer> kv;
  std::vector<std::pair<int64_t, int64_t>> kv_bytes;  // of k and v; 0 of v where the layer has none
  std::vector<State> states;
  int32_t max_tokens = 0;
  int32_t max_rows = 0;
  std::vector<Instruction> instructions;
  std::vector<int> inputs;  // values that the caller writes before each step: another process made them
  Group* group = nullptr;   // with which this is a share of a program, by as many threads in each rank; then also:
  int64_t shared_bytes = 0;            // of the values that are shared
  uint8_t* shared_scratch = nullptr;   // behind them, for the inputs of products; or null
  int64_t shared_scratch_bytes = 0;
  std::vector<Exchange> exchanges;  // in the order of their instructions
  std::vector<TableShare> table_shares;
  int64_t pages = 0;        // in every KV layer; set by check_program, as is
  int64_t state_slots = 0;  // of every state

  int64_t max_rows_of(const Value& value) const { return value.of_output_rows ? max_rows : max_tokens; }
  int64_t end_of(const Value& value) const {
    return value.offset + max_rows_of(value) * value.columns * static_cast<int64_t>(sizeof(float));
  }
  TableShare share_of(int weight) const {
    for (const TableShare& share : table_shares) {
      if (share.weight == weight) return share;
    }
    return {weight, 0, weights[static_cast<size_t>(weight)].n};
  }
};

// Throws std::invalid_argument with the cause and the numbers.
void check_program(Program& program);
void check_step(const Program& program, const Step& step);

// For every instruction: byte ranges of the arena that hold nothing that is still to be read. A value
// that no instruction reads is a result of the program and never dies.
std::vector<std::vector<std::pair<int64_t, int64_t>>> dead_ranges(const Program& program);

}  // namespace headrace
