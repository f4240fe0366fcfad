// What an executor works out once: memory for scratch and rotations, the stages of a step.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "executor.hpp"
#include "head_linear.hpp"
#include "max_linear.hpp"

namespace headrace {

FormatSet Executor::formats_of(const Instruction& it) const {
  FormatSet formats = 0;
  for (const int32_t w : it.weights) formats |= set_of(program_.weights[static_cast<size_t>(w)].format);
  return formats;
}

void Executor::plan_scratch() {
  size_t linear = 0, head = 0, max = 0, attend = 0, moe = 0;
  for (const Instruction& it : program_.instructions) {
    if (it.op == Op::fused_linear) {
      const Value& x = program_.values[static_cast<size_t>(it.inputs[0])];
      const FormatSet formats = formats_of(it);
      linear = std::max(linear, linear_.scratch_bytes(program_.max_rows_of(x), x.columns, formats));
      single_row_scratch_bytes_ = std::max(single_row_scratch_bytes_, linear_.scratch_bytes(1, x.columns, formats));
    } else if (it.op == Op::head_linear) {
      const Weight& w = program_.weights[static_cast<size_t>(it.weights[0])];
      const int64_t rows = program_.max_rows_of(program_.values[static_cast<size_t>(it.inputs[0])]);
      head = std::max(head, head_linear_scratch_bytes(linear_, w, it.ints[0], rows) * static_cast<size_t>(pool_.threads()));
    } else if (it.op == Op::max_linear) {
      const Weight& w = program_.weights[static_cast<size_t>(it.weights[0])];
      const size_t own = max_linear_scratch_bytes(linear_, w, program_.max_tokens);
      max = std::max(max, own * static_cast<size_t>(pool_.threads()));
    } else if (it.op == Op::attend) {
      const KvLayer& kv = program_.kv[static_cast<size_t>(it.ints[0])];
      attend = std::max(attend, attention_.scratch_bytes(pool_.threads(), it.ints[1], kv.kv_heads, kv.head_dim));
    } else if (it.op == Op::moe) {
      moe = std::max(moe, moe_.scratch_bytes(moe_shape(it)));
    }
  }
  if (program_.shared_scratch != nullptr && program_.shared_scratch_bytes < static_cast<int64_t>(linear)) {
    throw std::invalid_argument("the group's scratch has " + std::to_string(program_.shared_scratch_bytes) + " bytes where " +
                                std::to_string(linear) + " are needed");
  }
  linear_scratch_ = Buffer(std::max(linear, single_row_scratch_bytes_ * static_cast<size_t>(pool_.threads())));
  head_scratch_ = Buffer(head);
  max_scratch_ = Buffer(max);
  attention_scratch_ = Buffer(attend);
  moe_scratch_ = Buffer(moe);
}

Executor::RopeTable Executor::rotation_of(const Instruction& it) {
  const bool alone = it.op == Op::rope;
  if (!alone && it.op != Op::rope_kv_write) return {};
  return {it.constants[0], alone ? it.ints[1] : it.ints[2], alone ? it.floats[0] : it.floats[1], nullptr, nullptr};
}

const Executor::RopeTable& Executor::rope_table(const Instruction& it) const {
  const RopeTable wanted = rotation_of(it);
  const auto found = std::find_if(rope_tables_.begin(), rope_tables_.end(), [&](const RopeTable& table) {
    return table.constant == wanted.constant && table.rotary_dim == wanted.rotary_dim && table.rope_scale == wanted.rope_scale;
  });
  static const RopeTable none;
  return found == rope_tables_.end() ? none : *found;
}

void Executor::plan_rope_tables() {
  int64_t floats = 0;
  for (const Instruction& it : program_.instructions) {
    const RopeTable wanted = rotation_of(it);
    if (wanted.rotary_dim == 0 || rope_table(it).constant >= 0) continue;
    rope_tables_.push_back(wanted);
    floats += static_cast<int64_t>(wanted.rotary_dim) * program_.max_tokens;
  }
  rope_memory_ = Buffer(static_cast<size_t>(floats) * sizeof(float));
  float* at = reinterpret_cast<float*>(rope_memory_.data());
  for (RopeTable& table : rope_tables_) {
    const int64_t size = static_cast<int64_t>(table.rotary_dim / 2) * program_.max_tokens;
    table.cos = at;
    table.sin = at + size;
    at += 2 * size;
  }
}

void Executor::add_exchanges(std::vector<Stage>& stages, int instruction) const {
  const size_t at = static_cast<size_t>(std::max(instruction, 0));
  bool gathers = false;  // until the ranks have met
  for (size_t n = 0; n < program_.exchanges.size(); ++n) {
    const Exchange& exchange = program_.exchanges[n];
    if (exchange.instruction != instruction) continue;
    const bool to_all = program_.values[static_cast<size_t>(exchange.to)].shared;
    if (gathers && !to_all) stages.push_back({Stage::Kind::meet, at});
    stages.push_back({Stage::Kind::exchange, at, static_cast<int>(n)});
    gathers = to_all;
  }
  if (gathers) stages.push_back({Stage::Kind::meet, at});
}

std::vector<Executor::Stage> Executor::stages_of(Rows rows) const {
  std::vector<Stage> stages{{Stage::Kind::start}};
  add_exchanges(stages, -1);
  bool reads_scratch = false;  // since the ranks have met
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const Op op = program_.instructions[i].op;
    if (rows == Rows::one && op == Op::fused_linear) {
      stages.push_back({Stage::Kind::execute, i, kWhole});
    } else if (rows == Rows::many && op == Op::fused_linear) {
      if (reads_scratch) stages.push_back({Stage::Kind::meet, i});
      stages.push_back({Stage::Kind::execute, i, 0, true});
      stages.push_back({Stage::Kind::meet, i});
      stages.push_back({Stage::Kind::execute, i, 1, true});
      reads_scratch = true;
    } else {
      const int phases = op == Op::moe ? Moe::kPhases : (op == Op::fused_linear ? 2 : 1);
      for (int phase = 0; phase < phases; ++phase) stages.push_back({Stage::Kind::execute, i, phase});
    }
    if (!dead_.empty()) stages.push_back({Stage::Kind::poison, i});
    add_exchanges(stages, static_cast<int>(i));
    if (stages.back().kind == Stage::Kind::meet) reads_scratch = false;
  }
  // What the last exchange gave is read to its end before the next step writes over it.
  if (program_.group != nullptr) stages.push_back({Stage::Kind::meet, program_.instructions.size() - 1});
  return stages;
}

const std::vector<Executor::Stage>& Executor::stages_for(const Step& step) const {
  if (step.T == 1 && step.R <= 1) return single_row_stages_;
  return step.T >= kManyRows && !stages_together_.empty() ? stages_together_ : stages_;
}

}  // namespace headrace
