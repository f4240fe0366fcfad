#include "instruction.hpp"

#include <algorithm>

#include "../kernels/arguments.hpp"
#include "../kernels/attention.hpp"
#include "../kernels/linear.hpp"
#include "fault.hpp"
#include "mixture.hpp"
#include "recurrence.hpp"

namespace headrace {
namespace {

// Checks one instruction; the members are what its checks have in common.
class Checker {
 public:
  Checker(const Program& program, Instruction& instruction, size_t index)
      : program_(program), it_(instruction), where_("instruction " + text(static_cast<int64_t>(index)) + " (" + instruction.name + "): ") {}

  void check() {
    check_form();
    check_ids();
    switch (it_.op) {
#define HEADRACE_OP(name, in_place, check, ...) \
  case Op::name:                                \
    check_##check();                            \
    break;
#define HEADRACE_ROW_OP HEADRACE_OP
#include "../ops.inl"
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
    expect(expected == Operands::kAnyNumber || got == static_cast<size_t>(expected),
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
    const auto form = std::find_if(std::begin(kOpForms), std::end(kOpForms), [&](const OpForm& f) { return it_.name == f.name; });
    expect(form != std::end(kOpForms), "there is no such instruction");
    it_.op = form->op;
    expect_count("inputs", it_.inputs.size(), form->inputs.count);
    expect_count("outputs", it_.outputs.size(), form->outputs.count);
    expect_count("weights", it_.weights.size(), form->weights.count);
    expect_count("constants", it_.constants.size(), form->constants.count);
    expect_count("ints", it_.ints.size(), form->ints.count);
    expect_count("floats", it_.floats.size(), form->floats.count);
  }

  void check_table(const char* what, const std::vector<int>& ids, size_t size, const Operands& operands) const {
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool none = ids[i] == -1 && operands.is_optional(i);
      expect(none || (ids[i] >= 0 && id(ids[i]) < size),
             std::string(what) + " id " + text(ids[i]) + " is not in 0 .. " + text(static_cast<int64_t>(size) - 1));
    }
  }
  void check_ids() const {
    const OpForm& form = form_of(it_.op);
    check_table("input", it_.inputs, program_.values.size(), form.inputs);
    check_table("output", it_.outputs, program_.values.size(), form.outputs);
    check_table("weight", it_.weights, program_.weights.size(), form.weights);
    check_table("constant", it_.constants, program_.constants.size(), form.constants);
  }

  void check_same_shape() const {
    for (size_t i = 0; i < it_.inputs.size(); ++i) {
      expect_same_rows(in(i), out(0));
      expect_columns(in(i), out(0).columns);
    }
  }
  void check_activation() const {
    check_act();
    check_same_shape();
  }
  void check_embedding() const {
    expect(!out(0).of_output_rows, "embeds tokens: its output must have rows 'T'");
    expect_columns(out(0), program_.weights[id(it_.weights[0])].k);
  }
  void check_gather() const {
    expect(!in(0).of_output_rows && out(0).of_output_rows, "gathers from rows 'T' to rows 'R'");
    expect_columns(out(0), in(0).columns);
  }
  void check_pool() const {
    expect(!program_.kv.empty(), "pools sequences, which only steps of programs with KV layers have");
    expect(it_.ints[0] == 0 || it_.ints[0] == 1, "there is no pooling " + text(it_.ints[0]));
    check_gather();
  }
  void check_take_columns() const {
    expect_same_rows(in(0), out(0));
    expect_columns(out(0), static_cast<int64_t>(it_.ints.size()));
    for (const int column : it_.ints) {
      expect(column >= 0 && column < in(0).columns, "takes column " + text(column) + " of " + text(in(0).columns));
    }
  }
  void check_join() const {
    expect_heads(it_.ints[0], in(0).columns);
    expect_heads(it_.ints[0], in(1).columns);
    for (size_t i = 0; i < 2; ++i) expect_same_rows(in(i), out(0));
    expect_columns(out(0), in(0).columns + in(1).columns);
  }
  void check_route() const { expect_none(fault_of_route(program_, it_)); }
  void check_moe() const { expect_none(fault_of_moe(program_, it_)); }
  void check_causal_conv() const {
    check_act(2);
    expect_none(fault_of_conv(program_, it_));
  }
  void check_selective_scan() const { expect_none(fault_of_scan(program_, it_)); }

  void check_act(size_t place = 0) const {
    const int act = it_.ints[place];
    expect(act >= static_cast<int>(Act::none) && act < static_cast<int>(Act::swiglu_clamped), "there is no activation " + text(act));
  }

  void check_fused_linear() const {
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

  void check_max_linear() const {
    expect(!program_.kv.empty(), "pools sequences, which only steps of programs with KV layers have");
    expect(!in(0).of_output_rows && out(0).of_output_rows, "pools from rows 'T' to rows 'R'");
    const Weight& weight = program_.weights[id(it_.weights[0])];
    expect_columns(in(0), weight.k);
    expect_columns(out(0), weight.n);
    expect_constant(it_.constants[0], weight.n);
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
    check_bias();
  }
  // Of relative attention: the table of buckets is there exactly where a bias is, and names only buckets there are.
  void check_bias() const {
    const size_t fixed = 6;
    expect(it_.ints.size() >= fixed, "needs the number of buckets");
    const int64_t buckets = it_.ints[5], numbers = it_.ints[1] * buckets;
    const bool biased = it_.inputs[1] >= 0 || it_.inputs[2] >= 0 || it_.constants[1] >= 0;
    expect(biased == (it_.ints.size() > fixed) && biased == (buckets > 0), "a bias needs buckets, and they need a bias");
    if (!biased) return;
    expect(it_.ints.size() % 2 == 1, "the buckets of distances to both sides and of 0 are an odd number");
    for (size_t i = fixed; i < it_.ints.size(); ++i) {
      expect(it_.ints[i] >= 0 && it_.ints[i] < buckets, "there is no bucket " + text(it_.ints[i]));
    }
    for (size_t i = 1; i < 3; ++i) {
      if (it_.inputs[i] >= 0) expect_columns(in(i), numbers);
    }
    expect_constant(it_.constants[1], numbers);
  }

  void check_layer_norm() const {
    expect_same_rows(in(0), out(0));
    expect_columns(out(0), in(0).columns);
    for (const int constant : it_.constants) expect_constant(constant, in(0).columns);
  }
  void check_rms_norm() const {
    expect_same_rows(in(0), out(0));
    expect_columns(out(0), in(0).columns);
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

  void check_kv_write() const {
    check_kv_index();
    expect_tokens();
    expect((it_.inputs[1] >= 0) == (layer().v != nullptr), "writes values where the layer has them, and only there");
    for (size_t i = 0; i < 2; ++i) {
      if (it_.inputs[i] >= 0) expect_columns(in(i), kv_columns());
    }
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

  // Whether an output may be an input: where every thread has read what it overwrites.
  bool may_alias(size_t input, size_t output) const {
    switch (form_of(it_.op).in_place) {
      case InPlace::none:
        return false;
      case InPlace::first:
        return input == 0 && output == 0;
      case InPlace::second:
        return input == 1 && output == 0;
      case InPlace::every:
        return true;
    }
    return false;
  }
  bool overlap(const Value& a, const Value& b) const {
    return a.shared == b.shared && a.offset < program_.end_of(b) && b.offset < program_.end_of(a);
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
