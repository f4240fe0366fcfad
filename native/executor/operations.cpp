// What the executor does for each op (ops.inl) that is more than a kernel on rows.
#include <cstring>

#include "executor.hpp"
#include "head_linear.hpp"
#include "max_linear.hpp"

namespace headrace {

// What RowOpArgs has places for.
#define HEADRACE_ROW_OP(name, ...)                                                                              \
  static_assert(form_of(Op::name).inputs.count <= 2 && form_of(Op::name).inputs.optional == 0 &&                \
                form_of(Op::name).outputs.count == 1 && form_of(Op::name).weights.count == 0 &&                 \
                form_of(Op::name).constants.count <= 2, #name " has more operands than a kernel on rows takes");
#include "../ops.inl"

void Executor::plan_row_ops() {
  row_ops_.resize(program_.instructions.size());
  for (size_t n = 0; n < row_ops_.size(); ++n) {
    const Instruction& it = program_.instructions[n];
    if (!form_of(it.op).on_rows) continue;
    RowOpArgs& args = row_ops_[n];
    for (size_t i = 0; i < it.inputs.size(); ++i) args.x[i] = value(it.inputs[i]);
    args.y = value(it.outputs[0]);
    args.columns = program_.values[static_cast<size_t>(it.outputs[0])].columns;
    for (size_t i = 0; i < it.constants.size(); ++i) args.constants[i] = constant(it.constants[i]);
    if (!it.constants.empty()) args.constant_size = program_.constants[static_cast<size_t>(it.constants[0])].size;
    args.ints = it.ints.data();
    args.floats = it.floats.data();
  }
}

RowOpArgs Executor::row_op(const Call& call) const {
  RowOpArgs args = row_ops_[static_cast<size_t>(&call.it - program_.instructions.data())];
  args.rows = call.rows;
  args.step = &call.step;
  return args;
}

void Executor::embed(const Call& call) { look_up(call, call.step.tokens); }
void Executor::embed_positions(const Call& call) { look_up(call, call.step.positions); }
void Executor::embed_token_types(const Call& call) { look_up(call, call.step.token_types); }

void Executor::look_up(const Call& call, const int32_t* ids) {
  const Weight& table = weight(call.it, 0);
  const int64_t first = program_.share_of(call.it.weights[0]).first;
  float* out = value(call.it.outputs[0]);
  for (int64_t t = call.rows * call.part / call.parts; t < call.rows * (call.part + 1) / call.parts; ++t) {
    const int64_t row = ids[t] - first;
    if (row >= 0 && row < table.n) linear_.unpack_row(table, row, out + t * table.k);
  }
}

void Executor::fused_linear(const Call& call) {
  const Instruction& it = call.it;
  FusedLinearArgs args;
  args.x = value(it.inputs[0]);
  args.rows = call.rows;
  args.k = in(it, 0).columns;
  args.norm_weight = constant(it.constants[0]);
  args.norm_eps = it.floats[0];
  args.count = static_cast<int32_t>(it.weights.size());
  for (size_t i = 0; i < it.weights.size(); ++i) {
    args.w[i] = weight(it, i);
    args.bias[i] = constant(it.constants[i + 1]);
  }
  for (size_t i = 0; i < it.outputs.size(); ++i) args.y[i] = value(it.outputs[i]);
  args.act = static_cast<Act>(it.ints[0]);
  args.residual = it.inputs[1] < 0 ? nullptr : value(it.inputs[1]);
  args.scratch = call.together ? program_.shared_scratch : linear_scratch_.data();
  LoraRows lora;
  if (!active_adapters_.empty() && is_adapted(static_cast<size_t>(&it - program_.instructions.data()))) {
    lora = shrink(call, args);
    args.lora = &lora;
  }
  if (call.phase == kWhole) {
    args.scratch += static_cast<size_t>(call.part) * single_row_scratch_bytes_;
    linear_.prepare(args, 0, 1);
  }
  if (call.together && call.phase == 0) {
    const Group& group = *program_.group;
    return linear_.prepare(args, group.rank() * call.parts + call.part, group.ranks() * call.parts);
  }
  (call.phase == 0 ? linear_.prepare : linear_.product)(args, call.part, call.parts);
}

void Executor::rope_kv_write(const Call& call) {
  const Instruction& it = call.it;
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
  args.step = &call.step;
  rows_.rope_kv_write(args, call.part, call.parts);
}

void Executor::head_linear(const Call& call) {
  const Instruction& it = call.it;
  HeadLinearArgs args;
  args.x = value(it.inputs[0]);
  args.rows = call.rows;
  args.w = weight(it, 0);
  args.heads = it.ints[0];
  args.y = value(it.outputs[0]);
  args.scratch = head_scratch_.data();
  headrace::head_linear(linear_, args, call.part, call.parts);
}

void Executor::max_linear(const Call& call) {
  const Instruction& it = call.it;
  MaxLinearArgs args;
  args.x = value(it.inputs[0]);
  args.w = weight(it, 0);
  args.bias = constant(it.constants[0]);
  args.y = value(it.outputs[0]);
  args.step = &call.step;
  args.scratch = max_scratch_.data();
  headrace::max_linear(linear_, args, program_.max_tokens, call.part, call.parts);
}

void Executor::rope(const Call& call) {
  const Instruction& it = call.it;
  const RopeTable& table = rope_table(it);
  RopeKvWriteArgs args;  // without keys and values
  args.q = value(it.inputs[0]);
  args.q_out = value(it.outputs[0]);
  args.heads = static_cast<int32_t>(in(it, 0).columns / it.ints[0]);
  args.cos = table.cos;
  args.sin = table.sin;
  args.rotary_dim = it.ints[1];
  args.kv.head_dim = it.ints[0];
  args.step = &call.step;
  rows_.rope_kv_write(args, call.part, call.parts);
}

void Executor::join(const Call& call) {
  const Instruction& it = call.it;
  const int64_t heads = it.ints[0];
  const int64_t a = in(it, 0).columns / heads;
  const int64_t b = in(it, 1).columns / heads;
  const float *from_a = value(it.inputs[0]), *from_b = value(it.inputs[1]);
  float* to = value(it.outputs[0]);
  for (int64_t i = call.rows * heads * call.part / call.parts; i < call.rows * heads * (call.part + 1) / call.parts; ++i) {
    std::memcpy(to + i * (a + b), from_a + i * a, static_cast<size_t>(a) * sizeof(float));
    std::memcpy(to + i * (a + b) + a, from_b + i * b, static_cast<size_t>(b) * sizeof(float));
  }
}

void Executor::kv_write(const Call& call) {
  const Instruction& it = call.it;
  RopeKvWriteArgs args;  // without queries and without a rotation
  args.k = value(it.inputs[0]);
  args.v = it.inputs[1] < 0 ? nullptr : value(it.inputs[1]);
  args.kv = program_.kv[static_cast<size_t>(it.ints[0])];
  args.step = &call.step;
  rows_.rope_kv_write(args, call.part, call.parts);
}

void Executor::attend(const Call& call) {
  const Instruction& it = call.it;
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
  if (it.inputs[1] >= 0) args.bias_q = value(it.inputs[1]);
  if (it.inputs[2] >= 0) args.bias_k = value(it.inputs[2]);
  args.bias = constant(it.constants[1]);
  args.buckets = it.ints[5];
  if (it.ints.size() > 6) {
    args.bucket_of = it.ints.data() + 6;
    args.reach = static_cast<int32_t>(it.ints.size() - 7) / 2;
  }
  args.kv = program_.kv[static_cast<size_t>(it.ints[0])];
  args.step = &call.step;
  args.scratch = attention_scratch_.data();
  attention_.attend(args, call.part, call.parts);
}

void Executor::route(const Call& call) {
  const Instruction& it = call.it;
  RouteArgs args;
  args.logits = value(it.inputs[0]);
  args.bias = constant(it.constants[0]);
  args.gates = value(it.outputs[0]);
  args.rows = call.rows;
  args.experts = static_cast<int32_t>(in(it, 0).columns);
  args.sigmoid = it.ints[0] != 0;
  args.top_k = it.ints[1];
  args.groups = it.ints[2];
  args.top_groups = it.ints[3];
  args.normalize = it.ints[4] != 0;
  args.scale = it.floats[0];
  moe_kernels(active_isa()).route(args, call.part, call.parts);
}

MoeShape Executor::moe_shape(const Instruction& it) const {
  const Value& x = in(it, 0);
  const Value& gates = in(it, 1);
  const Weight& down = weight(it, 2);
  return {program_.max_rows_of(x), static_cast<int32_t>(gates.columns), it.ints[1], x.columns, down.k, formats_of(it)};
}

void Executor::moe(const Call& call) {
  const Instruction& it = call.it;
  MoeArgs args;
  args.shape = moe_shape(it);
  args.rows = call.rows;
  args.x = value(it.inputs[0]);
  args.gates = value(it.inputs[1]);
  args.y = value(it.outputs[0]);
  args.gate = weight(it, 0);
  args.up = weight(it, 1);
  args.down = weight(it, 2);
  args.gate_bias = constant(it.constants[0]);
  args.up_bias = constant(it.constants[1]);
  args.down_bias = constant(it.constants[2]);
  args.act = static_cast<Act>(it.ints[0]);
  args.scratch = moe_scratch_.data();
  moe_.run(args, call.phase, call.part, call.parts);
}

void Executor::causal_conv(const Call& call) {
  const Instruction& it = call.it;
  CausalConvArgs args;
  args.x = value(it.inputs[0]);
  args.y = value(it.outputs[0]);
  args.channels = in(it, 0).columns;
  args.taps = it.ints[1];
  args.w = constant(it.constants[0]);
  args.bias = constant(it.constants[1]);
  args.act = static_cast<Act>(it.ints[2]);
  args.state = program_.states[static_cast<size_t>(it.ints[0])].data;
  args.step = &call.step;
  recurrence_.causal_conv(args, call.part, call.parts);
}

void Executor::selective_scan(const Call& call) {
  const Instruction& it = call.it;
  const auto columns = [&](size_t i) { return in(it, i).columns; };
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
  args.step = &call.step;
  recurrence_.selective_scan(args, call.part, call.parts);
}

}  // namespace headrace
