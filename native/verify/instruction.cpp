#include "instruction.hpp"

#include <algorithm>

#include "../kernels/arguments.hpp"
#include "../kernels/attention.hpp"
#include "../kernels/linear.hpp"
#include "mixture.hpp"
#include "recurrence.hpp"
#include "fault.hpp"

namespace headrace {
namespace {

struct Form {
  const char* name;
  Op op;
  int inputs, outputs, weights, constants, ints, floats;  // -1: checked by the op itself
};
constexpr Form kForms[] = {
    {"embed", Op::embed, 0, 1, 1, 0, 0, 0},
    {"embed_positions", Op::embed_positions, 0, 1, 1, 0, 0, 0},
    {"embed_token_types", Op::embed_token_types, 0, 1, 1, 0, 0, 0},
    {"fused_linear", Op::fused_linear, 2, -1, -1, -1, 1, 1},
    {"head_linear", Op::head_linear, 1, 1, 1, 0, 1, 0},
    {"rms_norm", Op::rms_norm, 1, 1, 0, 1, 1, 1},
    {"layer_norm", Op::layer_norm, 1, 1, 0, 2, 0, 1},
    {"rope_kv_write", Op::rope_kv_write, 3, 1, 0, 3, 3, 2},
    {"kv_write", Op::kv_write, 2, 0, 0, 0, 1, 0},
    {"rope", Op::rope, 1, 1, 0, 1, 2, 1},
    {"attend", Op::attend, 1, 1, 0, 1, 5, 2},
    {"join", Op::join, 2, 1, 0, 0, 1, 0},
    {"gather", Op::gather, 1, 1, 0, 0, 0, 0},
    {"pool", Op::pool, 1, 1, 0, 0, 0, 0},
    {"take_columns", Op::take_columns, 1, 1, 0, 0, -1, 0},
    {"add", Op::add, 2, 1, 0, 0, 0, 0},
    {"scale", Op::scale, 1, 1, 0, 0, 0, 1},
    {"softcap", Op::softcap, 1, 1, 0, 0, 0, 1},
    {"gated_act", Op::gated_act, 2, 1, 0, 0, 1, 0},
    {"act", Op::act, 1, 1, 0, 0, 1, 0},
    {"route", Op::route, 1, 1, 0, 1, 5, 1},
    {"moe", Op::moe, 2, 1, 3, 3, 2, 0},
    {"causal_conv", Op::causal_conv, 1, 1, 0, 2, 3, 0},
    {"selective_scan", Op::selective_scan, 3, 1, 0, 3, 2, 2},
};

// Checks one instruction; the members are what its checks have in common.
class Checker {
 public:
  Checker(const Program& program, Instruction& instruction, size_t index)
      : program_(program), it_(instruction), where_("instruction " + text(static_cast<int64_t>(index)) + " (" + instruction.name + "): ") {}

  void check() {
    check_form();
    check_ids();
    switch (it_.op) {
      case Op::embed:
      case Op::embed_positions:
      case Op::embed_token_types:
        expect(!out(0).of_output_rows, "embeds tokens: its output must have rows 'T'");
        expect_columns(out(0), program_.weights[id(it_.weights[0])].k);
        break;
      case Op::fused_linear:
        check_linear();
        break;
      case Op::rms_norm:
        expect_same_rows(in(0), out(0));
        expect_columns(out(0), in(0).columns);
        check_norm_width();
        break;
      case Op::layer_norm:
        expect_same_rows(in(0), out(0));
        expect_columns(out(0), in(0).columns);
        for (const int constant : it_.constants) expect_constant(constant, in(0).columns);
        break;
      case Op::rope_kv_write:
        check_rope_kv_write();
        break;
      case Op::head_linear:
        check_head_linear();
        break;
      case Op::rope:
        check_rope();
        break;
      case Op::kv_write:
        check_kv_index();
        expect_tokens();
        expect((it_.inputs[1] >= 0) == (layer().v != nullptr), "writes values where the layer has them, and only there");
        for (size_t i = 0; i < 2; ++i) {
          if (it_.inputs[i] >= 0) expect_columns(in(i), kv_columns());
        }
        break;
      case Op::attend:
        check_attend();
        break;
      case Op::join:
        expect_heads(it_.ints[0], in(0).columns);
        expect_heads(it_.ints[0], in(1).columns);
        for (size_t i = 0; i < 2; ++i) expect_same_rows(in(i), out(0));
        expect_columns(out(0), in(0).columns + in(1).columns);
        break;
      case Op::gather:
      case Op::pool:
        expect(it_.op == Op::gather || !program_.kv.empty(), "pools sequences, which only steps of programs with KV layers have");
        expect(!in(0).of_output_rows && out(0).of_output_rows, "gathers from rows 'T' to rows 'R'");
        expect_columns(out(0), in(0).columns);
        break;
      case Op::route:
        expect_none(fault_of_route(program_, it_));
        break;
      case Op::moe:
        expect_none(fault_of_moe(program_, it_));
        break;
      case Op::causal_conv:
        check_act(2);
        expect_none(fault_of_conv(program_, it_));
        break;
      case Op::selective_scan:
        expect_none(fault_of_scan(program_, it_));
        break;
      case Op::take_columns:
        expect_same_rows(in(0), out(0));
        expect_columns(out(0), static_cast<int64_t>(it_.ints.size()));
        for (const int column : it_.ints) {
          expect(column >= 0 && column < in(0).columns, "takes column " + text(column) + " of " + text(in(0).columns));
        }
        break;
      case Op::gated_act:
      case Op::act:
        check_act();
        [[fallthrough]];
      case Op::scale:
      case Op::softcap:
      case Op::add:
        for (size_t i = 0; i < it_.inputs.size(); ++i) {
          expect_same_rows(in(i), out(0));
          expect_columns(in(i), out(0).columns);
        }
        break;
    }
    check_overlaps();
  }

 private:
  static size_t id(int i) { return static_cast<size_t>(i); }
  const Value& in(size_t i) const { return program_.values[id(it_.inputs[i])]; }
  const Value& out(size_t i) const { return program_.values[id(it_.outputs[i])]; }

  void expect(bool good, const std::string& message) const {
    if (!good) refuse(where_ + message);
  }
  void expect_none(const std::string& fault) const { expect(fault.empty(), fault); }
  void expect_count(const char* what, size_t got, int expected) const {
    expect(expected < 0 || got == static_cast<size_t>(expected),
           "needs " + text(expected) + " " + what + ", has " + text(static_cast<int64_t>(got)));
  }
  void expect_columns(const Value& value, int64_t columns) const {
    expect(value.columns == columns,
           "a value has " + text(value.columns) + " columns where " + text(columns) + " are needed");
  }
  void expect_same_rows(const Value& a, const Value& b) const {
    expect(a.of_output_rows == b.of_output_rows, "mixes rows 'T' and 'R'");
  }
  void expect_tokens() const {
    for (size_t i = 0; i < it_.inputs.size(); ++i) {
      expect(it_.inputs[i] < 0 || !in(i).of_output_rows, "works on rows 'T' only");
    }
    for (size_t i = 0; i < it_.outputs.size(); ++i) expect(!out(i).of_output_rows, "works on rows 'T' only");
  }
  void expect_constant(int constant, int64_t size) const {
    if (constant < 0) return;
    const int64_t got = program_.constants[id(constant)].size;
    expect(got == size, "constant " + text(constant) + " has " + text(got) + " numbers where " + text(size) + " are needed");
  }

  void check_form() {
    const auto form = std::find_if(std::begin(kForms), std::end(kForms), [&](const Form& f) { return it_.name == f.name; });
    expect(form != std::end(kForms), "there is no such instruction");
    it_.op = form->op;
    expect_count("inputs", it_.inputs.size(), form->inputs);
    expect_count("outputs", it_.outputs.size(), form->outputs);
    expect_count("weights", it_.weights.size(), form->weights);
    expect_count("constants", it_.constants.size(), form->constants);
    expect_count("ints", it_.ints.size(), form->ints);
    expect_count("floats", it_.floats.size(), form->floats);
  }

  void check_table(const char* what, const std::vector<int>& ids, size_t size, bool (*optional)(Op, size_t)) const {
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool none = ids[i] == -1 && optional(it_.op, i);
      expect(none || (ids[i] >= 0 && id(ids[i]) < size),
             std::string(what) + " id " + text(ids[i]) + " is not in 0 .. " + text(static_cast<int64_t>(size) - 1));
    }
  }
  void check_ids() const {
    const auto never = [](Op, size_t) { return false; };
    check_table("input", it_.inputs, program_.values.size(),
                [](Op op, size_t i) { return (op == Op::fused_linear || op == Op::kv_write) && i == 1; });
    check_table("output", it_.outputs, program_.values.size(), never);
    check_table("weight", it_.weights, program_.weights.size(), never);
    check_table("constant", it_.constants, program_.constants.size(),
                [](Op op, size_t i) {
                  return op == Op::fused_linear || op == Op::rope_kv_write || op == Op::attend || op == Op::route ||
                         op == Op::moe || ((op == Op::layer_norm || op == Op::causal_conv) && i == 1);
                });
  }

  void check_act(size_t place = 0) const {
    const int act = it_.ints[place];
    expect(act >= static_cast<int>(Act::none) && act <= static_cast<int>(Act::gelu_tanh), "there is no activation " + text(act));
  }

  void check_linear() const {
    check_act();
    const bool gated = it_.ints[0] != static_cast<int>(Act::none);
    const size_t count = it_.weights.size();
    expect(count >= 1 && count <= kMaxLinears, "takes 1 to " + text(kMaxLinears) + " weights");
    expect(!gated || count == 2, "with an activation takes two weights, gate and up");
    expect_count("outputs", it_.outputs.size(), gated ? 1 : static_cast<int>(count));
    expect_count("constants", it_.constants.size(), static_cast<int>(count) + 1);
    const int64_t k = in(0).columns;
    expect_constant(it_.constants[0], k);
    for (size_t i = 0; i < count; ++i) {
      const Weight& weight = program_.weights[id(it_.weights[i])];
      expect(weight.k == k, "weight " + text(it_.weights[i]) + " takes " + text(weight.k) + " inputs, x has " + text(k));
      expect_constant(it_.constants[i + 1], weight.n);
      const Value& y = out(gated ? 0 : i);
      expect_columns(y, weight.n);
      expect_same_rows(in(0), y);
    }
    if (it_.inputs[1] < 0) return;
    expect(!gated, "takes no residual with an activation");
    expect_columns(in(1), out(0).columns);
    expect_same_rows(in(1), out(0));
  }

  void expect_heads(int heads, int64_t columns) const {
    expect(heads > 0 && columns % heads == 0, text(columns) + " columns are not those of " + text(heads) + " heads");
  }
  void check_head_linear() const {
    const Weight& weight = program_.weights[id(it_.weights[0])];
    const int heads = it_.ints[0];
    expect_heads(heads, weight.n);
    expect_columns(in(0), heads * weight.k);
    expect_columns(out(0), weight.n);
    expect_same_rows(in(0), out(0));
  }

  void check_attend() const {
    check_layer();
    expect(it_.ints[2] >= 0 && it_.ints[4] >= 0 && it_.floats[1] >= 0, "window, ahead and softcap must not be negative");
    const int value_dim = it_.ints[3], head_dim = layer().head_dim;
    expect(value_dim == head_dim || (layer().v == nullptr && value_dim > 0 && value_dim < head_dim),
           "values of " + text(value_dim) + " entries do not belong to keys of " + text(head_dim));
    expect_constant(it_.constants[0], it_.ints[1]);
    expect_columns(in(0), query_columns());
    expect_columns(out(0), static_cast<int64_t>(it_.ints[1]) * value_dim);
    expect_tokens();
  }

  void check_norm_width() const {
    const int64_t width = program_.constants[id(it_.constants[0])].size;
    expect(width > 0 && in(0).columns % width == 0,
           "x has " + text(in(0).columns) + " columns, no multiple of the weight's " + text(width));
    const int runs = it_.ints[0];
    expect(runs > 0 && width % runs == 0, text(width) + " entries cannot be normed in " + text(runs) + " runs");
  }

  const KvLayer& layer() const { return program_.kv[id(it_.ints[0])]; }
  int64_t query_columns() const { return static_cast<int64_t>(it_.ints[1]) * layer().head_dim; }
  int64_t kv_columns() const { return static_cast<int64_t>(layer().kv_heads) * layer().head_dim; }
  void check_kv_index() const {
    const int count = static_cast<int>(program_.kv.size());
    expect(it_.ints[0] >= 0 && it_.ints[0] < count, "there is no KV layer " + text(it_.ints[0]));
  }
  void check_layer() const {
    check_kv_index();
    expect(it_.ints[1] > 0 && it_.ints[1] % layer().kv_heads == 0,
           text(it_.ints[1]) + " query heads are no multiple of " + text(layer().kv_heads) + " KV heads");
  }

  void check_rope_kv_write() const {
    check_layer();
    expect_tokens();
    expect_columns(in(0), query_columns());
    expect_columns(in(1), kv_columns());
    expect_columns(in(2), kv_columns());
    expect_columns(out(0), query_columns());
    expect(layer().v != nullptr, "writes values to a layer that has none");
    check_rotation(it_.ints[2], layer().head_dim);
    expect_constant(it_.constants[1], layer().head_dim);
    expect_constant(it_.constants[2], layer().head_dim);
  }
  void check_rope() const {
    expect_tokens();
    expect(it_.ints[0] > 0 && it_.ints[0] <= kMaxHeadDim && in(0).columns % it_.ints[0] == 0,
           text(in(0).columns) + " columns are not heads of " + text(it_.ints[0]));
    expect_columns(out(0), in(0).columns);
    check_rotation(it_.ints[1], it_.ints[0]);
  }
  void check_rotation(int rotary, int head_dim) const {
    expect(rotary >= 0 && rotary % 2 == 0 && rotary <= head_dim,
           "rotary dimension " + text(rotary) + " is odd or above the head's " + text(head_dim));
    expect(rotary == 0 || it_.constants[0] >= 0, "needs inverse frequencies");
    expect_constant(it_.constants[0], rotary / 2);
  }

  // An output may be an input only where every thread has read what it overwrites.
  bool may_alias(size_t input, size_t output) const {
    switch (it_.op) {
      case Op::fused_linear:
        return input == 1 && output == 0;
      case Op::rope_kv_write:
        return input == 0;
      case Op::embed:
      case Op::gather:
      case Op::pool:
      case Op::route:
      case Op::moe:
      case Op::causal_conv:
      case Op::selective_scan:
      case Op::take_columns:
      case Op::head_linear:
        return false;
      default:
        return true;
    }
  }
  bool overlap(const Value& a, const Value& b) const {
    return a.offset < program_.end_of(b) && b.offset < program_.end_of(a);
  }
  void check_overlaps() const {
    for (size_t o = 0; o < it_.outputs.size(); ++o) {
      for (size_t i = 0; i < it_.inputs.size(); ++i) {
        if (it_.inputs[i] < 0 || !overlap(in(i), out(o))) continue;
        const bool same = in(i).offset == out(o).offset && in(i).columns == out(o).columns;
        expect(same && may_alias(i, o), "output " + text(it_.outputs[o]) + " lies over input " + text(it_.inputs[i]));
      }
      for (size_t other = 0; other < o; ++other) {
        expect(!overlap(out(o), out(other)), "two outputs lie over each other");
      }
    }
  }

  const Program& program_;
  Instruction& it_;
  std::string where_;
};

}  // namespace

void check_instruction(const Program& program, Instruction& instruction, size_t index) {
  Checker(program, instruction, index).check();
}

}  // namespace headrace
