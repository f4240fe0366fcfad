// A program for the executor: values in an arena, weights, constants, KV layers and a list of
// instructions. check_program (verify/) refuses everything that could read or write out of bounds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../types.hpp"

namespace headrace {

enum class Op {
  embed, embed_positions, embed_token_types, fused_linear, head_linear, rms_norm, layer_norm, rope, rope_kv_write, kv_write, attend, join,
  gather, pool, take_columns, add, scale, softcap, gated_act, act, route, moe, causal_conv, selective_scan
};

// float32 [rows, columns] at `offset` bytes of the arena; rows: tokens of the step, or its output rows.
struct Value {
  bool of_output_rows = false;  // 'R' instead of 'T'
  int64_t columns = 0;
  int64_t offset = 0;
};

// Recurrent memory: `width` numbers in each of the slots that `bytes` have room for.
struct State {
  float* data = nullptr;
  int64_t width = 0;
  int64_t bytes = 0;
};

struct Constant {
  const float* data = nullptr;
  int64_t size = 0;
};

// Ids index the program's tables; -1 stands for "none" where an operand is optional.
//   op             inputs                 outputs   weights  constants                 ints                    floats
//   embed                                 y         w
//   embed_positions                       y         w
//   embed_token_types                     y         w
//   fused_linear   x, residual|-1         y...      w...     norm|-1, bias_i|-1...     act                     eps
//   rms_norm       x                      y                  w                         runs                    eps
//   layer_norm     x                      y                  w, bias|-1                                        eps
//   rope_kv_write  q, k, v                q'                 inv_freq, q_norm, k_norm  layer, heads, rotary    eps, scale
//   rope           x                      y                  inv_freq                  head_dim, rotary        scale
//   kv_write       k, v|-1                                                             layer
//   attend         q                      y                  sinks|-1                  layer, heads, window, value_dim, ahead  scale, softcap
//   head_linear    x                      y         w                                  heads
//   join           a, b                   y                                            heads
//   gather         x                      y
//   pool           x                      y
//   take_columns   x                      y                                            order...
//   add            a, b                   y
//   scale          x                      y                                                                    by
//   softcap        x                      y                                                                    cap
//   gated_act      gate, up               y                                            act
//   act            x                      y                                            act
//   route          logits                 gates              bias|-1                   sigmoid, top_k,         scale
//                                                                                      groups, top_groups, normalize
//   moe            x, gates               y         gate,    gate_bias|-1,             act, top_k
//                                                   up,      up_bias|-1,
//                                                   down     down_bias|-1
//   causal_conv    x                      y                  w, bias|-1                state, taps, act
//   selective_scan x, bc, dt              y                  a_log, d, dt_bias         state, groups           smallest, largest dt
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
  int64_t pages = 0;        // in every KV layer; set by check_program, as is
  int64_t state_slots = 0;  // of every state

  int64_t max_rows_of(const Value& value) const { return value.of_output_rows ? max_rows : max_tokens; }
  int64_t end_of(const Value& value) const {
    return value.offset + max_rows_of(value) * value.columns * static_cast<int64_t>(sizeof(float));
  }
};

// Throws std::invalid_argument with the cause and the numbers.
void check_program(Program& program);
void check_step(const Program& program, const Step& step);

// For every instruction: byte ranges of the arena that hold nothing that is still to be read. A value
// that no instruction reads is a result of the program and never dies.
std::vector<std::vector<std::pair<int64_t, int64_t>>> dead_ranges(const Program& program);

}  // namespace headrace
