#include "mixture.hpp"

#include <algorithm>
#include <limits>

#include "../executor/moe.hpp"
#include "../kernels/arguments.hpp"
#include "fault.hpp"

namespace headrace {
namespace {

bool has_size(const Program& program, int constant, int64_t size) {
  return constant < 0 || program.constants[static_cast<size_t>(constant)].size == size;
}

}  // namespace

std::string fault_of_route(const Program& program, const Instruction& it) {
  const Value& logits = program.values[static_cast<size_t>(it.inputs[0])];
  const Value& gates = program.values[static_cast<size_t>(it.outputs[0])];
  const int64_t experts = logits.columns;
  const int top_k = it.ints[1], groups = it.ints[2], top_groups = it.ints[3];
  if (experts > kMaxExperts) return text(experts) + " experts are more than " + text(kMaxExperts);
  if (gates.columns != experts || gates.of_output_rows != logits.of_output_rows) return "its gates have another shape than its logits";
  if (it.ints[0] < 0 || it.ints[0] > 1) return "there is no kind " + text(it.ints[0]);
  if (top_k < 1 || top_k > experts) return "chooses " + text(top_k) + " of " + text(experts) + " experts";
  if (groups < 1 || experts % groups != 0 || top_groups < 1 || top_groups > groups) {
    return "chooses " + text(top_groups) + " of " + text(groups) + " groups of " + text(experts) + " experts";
  }
  return has_size(program, it.constants[0], experts) ? "" : "its bias has another size than its logits";
}

std::string fault_of_moe(const Program& program, const Instruction& it) {
  const auto value = [&](int id) { return program.values[static_cast<size_t>(id)]; };
  const auto weight = [&](size_t i) { return program.weights[static_cast<size_t>(it.weights[i])]; };
  const Value x = value(it.inputs[0]), gates = value(it.inputs[1]), y = value(it.outputs[0]);
  const int64_t experts = gates.columns, outer = x.columns, inner = weight(2).k;
  const int top_k = it.ints[1];
  if (it.ints[0] < static_cast<int>(Act::silu) || it.ints[0] > static_cast<int>(Act::swiglu_clamped)) {
    return "there is no activation " + text(it.ints[0]);
  }
  const auto makes_gates = [&](const Instruction& other) {
    return other.name == "route" && other.outputs == std::vector<int>{it.inputs[1]} && other.ints.size() == 5 && other.ints[1] == top_k;
  };
  if (std::none_of(program.instructions.begin(), program.instructions.end(), makes_gates)) {
    return "its gates are not those of a route to " + text(top_k) + " experts";
  }
  if (top_k < 1 || top_k > experts || experts > kMaxExperts) return "uses " + text(top_k) + " of " + text(experts) + " experts";
  if (program.max_rows_of(x) * top_k > std::numeric_limits<int32_t>::max()) return "has too many rows";
  if (x.of_output_rows != gates.of_output_rows || x.of_output_rows != y.of_output_rows) return "mixes rows 'T' and 'R'";
  if (y.columns != outer) return "makes " + text(y.columns) + " columns of " + text(outer);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t n = experts * (i == 2 ? outer : inner), k = i == 2 ? inner : outer;
    if (weight(i).n != n || weight(i).k != k) {
      return "weight " + text(it.weights[i]) + " has shape [" + text(weight(i).n) + ", " + text(weight(i).k) + "] where [" +
             text(n) + ", " + text(k) + "] is needed";
    }
    if (!has_size(program, it.constants[i], n)) return "constant " + text(it.constants[i]) + " has not " + text(n) + " numbers";
  }
  return "";
}

}  // namespace headrace
