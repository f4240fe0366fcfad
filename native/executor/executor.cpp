#include "executor.hpp"
#include "head_linear.hpp"

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
      recurrence_(recurrence_kernels(active_isa())) {
  check_program(program_);
  if (poison) dead_ = dead_ranges(program_);
  plan_scratch();
  plan_rope_tables();
  stages_ = stages_of(false);
  single_row_stages_ = stages_of(true);
}

float* Executor::value(int id) const {
  if (id < 0 || static_cast<size_t>(id) >= program_.values.size()) {
    throw std::invalid_argument("there is no value " + std::to_string(id) + "; the program has " +
                                std::to_string(program_.values.size()));
  }
  return reinterpret_cast<float*>(program_.arena + program_.values[static_cast<size_t>(id)].offset);
}

void Executor::run(const Step& step) {
  check_step(program_, step);
  const std::lock_guard<std::mutex> turn(turn_);
  const std::vector<Stage>& stages = stages_for(step);
  pool_.run_phases(static_cast<int>(stages.size()), [&](int i, int part, int parts) {
    run_stage(stages[static_cast<size_t>(i)], step, part, parts);
  });
}

std::vector<double> Executor::run_timed(const Step& step) {
  check_step(program_, step);
  const std::lock_guard<std::mutex> turn(turn_);
  std::vector<double> seconds(program_.instructions.size() + 1);
  for (const Stage& stage : stages_for(step)) {
    const auto begin = std::chrono::steady_clock::now();
    pool_.run_phases(1, [&](int, int part, int parts) { run_stage(stage, step, part, parts); });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds[stage.kind == Stage::Kind::start ? 0 : stage.instruction + 1] += took.count();
  }
  return seconds;
}

void Executor::run_stage(const Stage& stage, const Step& step, int part, int parts) {
  switch (stage.kind) {
    case Stage::Kind::start:
      if (!dead_.empty() && part == 0) poison({{0, program_.arena_bytes}});
      return fill_rope_tables(step, part, parts);
    case Stage::Kind::execute:
      return execute(program_.instructions[stage.instruction], stage.phase, step, part, parts);
    case Stage::Kind::poison:
      if (part == 0) poison(dead_[stage.instruction]);
  }
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

void Executor::execute(const Instruction& it, int phase, const Step& step, int part, int parts) {
  if (it.op == Op::kv_write) return kv_write(it, step, part, parts);  // the one without an output
  const Value& y = program_.values[static_cast<size_t>(it.outputs[0])];
  const int64_t rows = y.of_output_rows ? step.R : step.T;
  if (rows == 0) return;
  const auto in = [&](size_t i) { return value(it.inputs[i]); };
  float* out = value(it.outputs[0]);
  switch (it.op) {
    case Op::embed:
      return embed(it, step.tokens, rows, part, parts);
    case Op::embed_positions:
      return embed(it, step.positions, rows, part, parts);
    case Op::embed_token_types:
      return embed(it, step.token_types, rows, part, parts);
    case Op::fused_linear:
      return fused_linear(it, phase, rows, part, parts);
    case Op::head_linear:
      return head_linear(it, rows, part, parts);
    case Op::rope:
      return rope(it, step, part, parts);
    case Op::join:
      return join(it, rows, part, parts);
    case Op::rms_norm: {
      const Constant& w = program_.constants[static_cast<size_t>(it.constants[0])];
      const int64_t runs = it.ints[0], size = w.size / runs;
      return rows_.rms_norm(in(0), w.data, runs, it.floats[0], rows * (y.columns / size), size, out, part, parts);
    }
    case Op::layer_norm:
      return rows_.layer_norm(in(0), constant(it.constants[0]), constant(it.constants[1]), it.floats[0], rows,
                              y.columns, out, part, parts);
    case Op::kv_write:
      return;  // done above
    case Op::rope_kv_write:
      return rope_kv_write(it, step, part, parts);
    case Op::attend:
      return attend(it, step, part, parts);
    case Op::gather:
      return rows_.gather(in(0), step.rows, rows, y.columns, out, part, parts);
    case Op::pool:
      return rows_.pool(in(0), step, y.columns, out, part, parts);
    case Op::take_columns:
      return rows_.take_columns(in(0), it.ints.data(), rows, y.columns, out, part, parts);
    case Op::add:
      return rows_.add(in(0), in(1), rows * y.columns, out, part, parts);
    case Op::scale:
      return rows_.scale(in(0), it.floats[0], rows * y.columns, out, part, parts);
    case Op::softcap:
      return rows_.softcap(in(0), it.floats[0], rows * y.columns, out, part, parts);
    case Op::gated_act:
      return rows_.gated_act(static_cast<Act>(it.ints[0]), in(0), in(1), rows * y.columns, out, part, parts);
    case Op::route:
      return route(it, rows, part, parts);
    case Op::moe:
      return moe(it, phase, rows, part, parts);
    case Op::act:
      return rows_.act(static_cast<Act>(it.ints[0]), in(0), rows * y.columns, out, part, parts);
    case Op::causal_conv:
      return causal_conv(it, step, part, parts);
    case Op::selective_scan:
      return selective_scan(it, step, part, parts);
  }
}

void Executor::embed(const Instruction& it, const int32_t* ids, int64_t rows, int part, int parts) {
  const Weight& weight = program_.weights[static_cast<size_t>(it.weights[0])];
  float* out = value(it.outputs[0]);
  for (int64_t t = rows * part / parts; t < rows * (part + 1) / parts; ++t) {
    linear_.unpack_row(weight, ids[t], out + t * weight.k);
  }
}

void Executor::fused_linear(const Instruction& it, int phase, int64_t rows, int part, int parts) {
  FusedLinearArgs args;
  args.x = value(it.inputs[0]);
  args.rows = rows;
  args.k = program_.values[static_cast<size_t>(it.inputs[0])].columns;
  args.norm_weight = constant(it.constants[0]);
  args.norm_eps = it.floats[0];
  args.count = static_cast<int32_t>(it.weights.size());
  for (size_t i = 0; i < it.weights.size(); ++i) {
    args.w[i] = program_.weights[static_cast<size_t>(it.weights[i])];
    args.bias[i] = constant(it.constants[i + 1]);
  }
  for (size_t i = 0; i < it.outputs.size(); ++i) args.y[i] = value(it.outputs[i]);
  args.act = static_cast<Act>(it.ints[0]);
  args.residual = it.inputs[1] < 0 ? nullptr : value(it.inputs[1]);
  args.scratch = linear_scratch_.data();
  if (phase == kWhole) {
    args.scratch += static_cast<size_t>(part) * single_row_scratch_bytes_;
    linear_.prepare(args, 0, 1);
  }
  (phase == 0 ? linear_.prepare : linear_.product)(args, part, parts);
}

void Executor::rope_kv_write(const Instruction& it, const Step& step, int part, int parts) {
  const RopeTable& table = rope_table(it);
  RopeKvWriteArgs args;
  args.q = value(it.inputs[0]);
  args.k = value(it.inputs[1]);
  args.v = value(it.inputs[2]);
  args.q_out = value(it.outputs[0]);
  args.heads = it.ints[1];
  args.q_norm = constant(it.constants[1]);
  args.k_norm = constant(it.constants[2]);
  args.norm_eps = it.floats[0];
  args.cos = table.cos;
  args.sin = table.sin;
  args.rotary_dim = it.ints[2];
  args.kv = program_.kv[static_cast<size_t>(it.ints[0])];
  args.step = &step;
  rows_.rope_kv_write(args, part, parts);
}

void Executor::head_linear(const Instruction& it, int64_t rows, int part, int parts) {
  HeadLinearArgs args;
  args.x = value(it.inputs[0]);
  args.rows = rows;
  args.w = program_.weights[static_cast<size_t>(it.weights[0])];
  args.heads = it.ints[0];
  args.y = value(it.outputs[0]);
  args.scratch = head_scratch_.data();
  headrace::head_linear(linear_, args, part, parts);
}

void Executor::rope(const Instruction& it, const Step& step, int part, int parts) {
  const RopeTable& table = rope_table(it);
  RopeKvWriteArgs args;  // without keys and values
  args.q = value(it.inputs[0]);
  args.q_out = value(it.outputs[0]);
  args.heads = static_cast<int32_t>(program_.values[static_cast<size_t>(it.inputs[0])].columns / it.ints[0]);
  args.cos = table.cos;
  args.sin = table.sin;
  args.rotary_dim = it.ints[1];
  args.kv.head_dim = it.ints[0];
  args.step = &step;
  rows_.rope_kv_write(args, part, parts);
}

void Executor::join(const Instruction& it, int64_t rows, int part, int parts) {
  const int64_t heads = it.ints[0];
  const int64_t a = program_.values[static_cast<size_t>(it.inputs[0])].columns / heads;
  const int64_t b = program_.values[static_cast<size_t>(it.inputs[1])].columns / heads;
  const float *from_a = value(it.inputs[0]), *from_b = value(it.inputs[1]);
  float* to = value(it.outputs[0]);
  for (int64_t i = rows * heads * part / parts; i < rows * heads * (part + 1) / parts; ++i) {
    std::memcpy(to + i * (a + b), from_a + i * a, static_cast<size_t>(a) * sizeof(float));
    std::memcpy(to + i * (a + b) + a, from_b + i * b, static_cast<size_t>(b) * sizeof(float));
  }
}

void Executor::kv_write(const Instruction& it, const Step& step, int part, int parts) {
  RopeKvWriteArgs args;  // without queries and without a rotation
  args.k = value(it.inputs[0]);
  args.v = it.inputs[1] < 0 ? nullptr : value(it.inputs[1]);
  args.kv = program_.kv[static_cast<size_t>(it.ints[0])];
  args.step = &step;
  rows_.rope_kv_write(args, part, parts);
}

void Executor::attend(const Instruction& it, const Step& step, int part, int parts) {
  AttendArgs args;
  args.q = value(it.inputs[0]);
  args.y = value(it.outputs[0]);
  args.sinks = constant(it.constants[0]);
  args.heads = it.ints[1];
  args.value_dim = it.ints[3];
  args.scale = it.floats[0];
  args.window = it.ints[2];
  args.ahead = it.ints[4];
  args.softcap = it.floats[1];
  args.kv = program_.kv[static_cast<size_t>(it.ints[0])];
  args.step = &step;
  args.scratch = attention_scratch_.data();
  attention_.attend(args, part, parts);
}

void Executor::route(const Instruction& it, int64_t rows, int part, int parts) {
  RouteArgs args;
  args.logits = value(it.inputs[0]);
  args.bias = constant(it.constants[0]);
  args.gates = value(it.outputs[0]);
  args.rows = rows;
  args.experts = static_cast<int32_t>(program_.values[static_cast<size_t>(it.inputs[0])].columns);
  args.sigmoid = it.ints[0] != 0;
  args.top_k = it.ints[1];
  args.groups = it.ints[2];
  args.top_groups = it.ints[3];
  args.normalize = it.ints[4] != 0;
  args.scale = it.floats[0];
  moe_kernels(active_isa()).route(args, part, parts);
}

MoeShape Executor::moe_shape(const Instruction& it) const {
  const Value& x = program_.values[static_cast<size_t>(it.inputs[0])];
  const Value& gates = program_.values[static_cast<size_t>(it.inputs[1])];
  const Weight& down = program_.weights[static_cast<size_t>(it.weights[2])];
  return {program_.max_rows_of(x), static_cast<int32_t>(gates.columns), it.ints[1], x.columns, down.k, formats_of(it)};
}

void Executor::moe(const Instruction& it, int phase, int64_t rows, int part, int parts) {
  MoeArgs args;
  args.shape = moe_shape(it);
  args.rows = rows;
  args.x = value(it.inputs[0]);
  args.gates = value(it.inputs[1]);
  args.y = value(it.outputs[0]);
  args.gate = program_.weights[static_cast<size_t>(it.weights[0])];
  args.up = program_.weights[static_cast<size_t>(it.weights[1])];
  args.down = program_.weights[static_cast<size_t>(it.weights[2])];
  args.gate_bias = constant(it.constants[0]);
  args.up_bias = constant(it.constants[1]);
  args.down_bias = constant(it.constants[2]);
  args.act = static_cast<Act>(it.ints[0]);
  args.scratch = moe_scratch_.data();
  moe_.run(args, phase, part, parts);
}

void Executor::causal_conv(const Instruction& it, const Step& step, int part, int parts) {
  CausalConvArgs args;
  args.x = value(it.inputs[0]);
  args.y = value(it.outputs[0]);
  args.channels = program_.values[static_cast<size_t>(it.inputs[0])].columns;
  args.taps = it.ints[1];
  args.w = constant(it.constants[0]);
  args.bias = constant(it.constants[1]);
  args.act = static_cast<Act>(it.ints[2]);
  args.state = program_.states[static_cast<size_t>(it.ints[0])].data;
  args.step = &step;
  recurrence_.causal_conv(args, part, parts);
}

void Executor::selective_scan(const Instruction& it, const Step& step, int part, int parts) {
  const auto columns = [&](size_t i) { return program_.values[static_cast<size_t>(it.inputs[i])].columns; };
  SelectiveScanArgs args;
  args.x = value(it.inputs[0]);
  args.bc = value(it.inputs[1]);
  args.dt = value(it.inputs[2]);
  args.y = value(it.outputs[0]);
  args.heads = columns(2);
  args.head_dim = columns(0) / args.heads;
  args.groups = it.ints[1];
  args.entries = columns(1) / (2 * args.groups);
  args.a_log = constant(it.constants[0]);
  args.d = constant(it.constants[1]);
  args.dt_bias = constant(it.constants[2]);
  args.smallest_dt = it.floats[0];
  args.largest_dt = it.floats[1];
  args.state = program_.states[static_cast<size_t>(it.ints[0])].data;
  args.step = &step;
  recurrence_.selective_scan(args, part, parts);
}

void Executor::poison(const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  for (const auto& [begin, end] : ranges) {
    std::fill(reinterpret_cast<float*>(program_.arena + begin), reinterpret_cast<float*>(program_.arena + end / 4 * 4),
              std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace headrace
