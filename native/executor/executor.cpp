#include "executor.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace headrace {

Executor::Executor(Pool& pool, Program program, bool poison)
    : pool_(pool),
      program_(std::move(program)),
      linear_(linear_kernels(active_isa())),
      rows_(rows_kernels(active_isa())),
      attention_(attention_kernels(active_isa())),
      moe_(active_isa()),
      recurrence_(recurrence_kernels(active_isa())),
      lora_(lora_kernels(active_isa())) {
  check_program(program_);
  if (poison) dead_ = dead_ranges(program_);
  plan_scratch();
  plan_rope_tables();
  plan_row_ops();
  stages_ = stages_of(Rows::few);
  single_row_stages_ = stages_of(Rows::one);
  if (program_.shared_scratch != nullptr) stages_together_ = stages_of(Rows::many);
}

float* Executor::value(int id) const {
  if (id < 0 || static_cast<size_t>(id) >= program_.values.size()) {
    throw std::invalid_argument("there is no value " + std::to_string(id) + "; the program has " +
                                std::to_string(program_.values.size()));
  }
  const Value& value = program_.values[static_cast<size_t>(id)];
  return reinterpret_cast<float*>((value.shared ? program_.group->arena() : program_.arena) + value.offset);
}

void Executor::run(const Step& step) {
  check_step(program_, step);
  const std::lock_guard<std::mutex> turn(turn_);
  plan_adapted_rows(step);
  const std::vector<Stage>& stages = stages_for(step);
  pool_.run_phases(static_cast<int>(stages.size()), [&](int i, int part, int parts) {
    run_stage(stages[static_cast<size_t>(i)], step, part, parts);
  });
  check_group();
}

std::vector<double> Executor::run_timed(const Step& step) {
  check_step(program_, step);
  const std::lock_guard<std::mutex> turn(turn_);
  plan_adapted_rows(step);
  std::vector<double> seconds(program_.instructions.size() + 1);
  for (const Stage& stage : stages_for(step)) {
    const auto begin = std::chrono::steady_clock::now();
    pool_.run_phases(1, [&](int, int part, int parts) { run_stage(stage, step, part, parts); });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds[stage.kind == Stage::Kind::start ? 0 : stage.instruction + 1] += took.count();
  }
  check_group();
  return seconds;
}

void Executor::check_group() const {
  if (is_lost_) throw std::runtime_error("a process of the group is lost");
}

void Executor::run_stage(const Stage& stage, const Step& step, int part, int parts) {
  if (is_lost_) return;  // as the last meeting has found
  switch (stage.kind) {
    case Stage::Kind::start:
      if (!dead_.empty() && part == 0) poison({{0, program_.arena_bytes}});
      return fill_rope_tables(step, part, parts);
    case Stage::Kind::execute: {
      const Instruction& it = program_.instructions[stage.instruction];
      return execute({it, step, rows_of(it, step), stage.phase, part, parts, stage.together});
    }
    case Stage::Kind::poison:
      if (part == 0) poison(dead_[stage.instruction]);
      return;
    case Stage::Kind::exchange:
      return exchange(program_.exchanges[static_cast<size_t>(stage.phase)], step, part, parts);
    case Stage::Kind::meet:
      if (part == 0) is_lost_ = !program_.group->meet();
  }
}

void Executor::exchange(const Exchange& exchange, const Step& step, int part, int parts) {
  const Value& from = program_.values[static_cast<size_t>(exchange.from)];
  const Value& to = program_.values[static_cast<size_t>(exchange.to)];
  const float* source = value(exchange.from) + (to.shared ? 0 : exchange.first);
  float* target = value(exchange.to) + (to.shared ? exchange.first : 0);
  const size_t bytes = static_cast<size_t>(std::min(from.columns, to.columns)) * sizeof(float);
  int64_t first = 0, end = std::numeric_limits<int64_t>::max();  // ids whose rows are this rank's
  const bool by_rows = to.shared && from.columns == to.columns;
  if (by_rows) {
    const int table = program_.instructions[static_cast<size_t>(exchange.instruction)].weights[0];
    first = program_.share_of(table).first;
    end = first + program_.weights[static_cast<size_t>(table)].n;
  }
  const int64_t rows = from.of_output_rows ? step.R : step.T;
  for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) {
    if (by_rows && (step.tokens[row] < first || step.tokens[row] >= end)) continue;
    std::memcpy(target + row * to.columns, source + row * from.columns, bytes);
  }
}

// An instruction without outputs works on all tokens.
int64_t Executor::rows_of(const Instruction& it, const Step& step) const {
  const bool output_rows = !it.outputs.empty() && program_.values[static_cast<size_t>(it.outputs[0])].of_output_rows;
  return output_rows ? step.R : step.T;
}

void Executor::fill_rope_tables(const Step& step, int part, int parts) {
  for (const RopeTable& table : rope_tables_) {
    RopeTableArgs args;
    args.inv_freq = constant(table.constant);
    args.half = table.rotary_dim / 2;
    args.rope_scale = table.rope_scale;
    args.cos = table.cos;
    args.sin = table.sin;
    args.step = &step;
    rows_.rope_table(args, part, parts);
  }
}

void Executor::execute(const Call& call) {
  if (call.rows == 0) return;
  switch (call.it.op) {
#define HEADRACE_OP(name, ...) \
  case Op::name:               \
    return name(call);
#define HEADRACE_ROW_OP(name, ...) \
  case Op::name:                   \
    return rows_.name(row_op(call), call.part, call.parts);
#include "../ops.inl"
  }
}

void Executor::poison(const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  for (const auto& [begin, end] : ranges) {
    std::fill(reinterpret_cast<float*>(program_.arena + begin), reinterpret_cast<float*>(program_.arena + end / 4 * 4),
              std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace headrace
