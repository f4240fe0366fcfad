#include "../executor/program.hpp"

#include "../formats/kv_page.hpp"
#include "../kernels/attention.hpp"
#include "../kernels/linear.hpp"
#include "fault.hpp"
#include "instruction.hpp"
#include "recurrence.hpp"

namespace headrace {
namespace {

void check_values(const Program& program) {
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    const std::string name = "value " + text(static_cast<int64_t>(i));
    if (value.columns < 1 || value.columns > (int64_t{1} << 32)) refuse(name + " has " + text(value.columns) + " columns");
    if (value.offset < 0 || value.offset % 4 != 0) refuse(name + " has offset " + text(value.offset));
    const int64_t bytes = value.shared ? program.shared_bytes : program.arena_bytes;
    if (value.offset > bytes || program.end_of(value) > bytes) {
      refuse(name + " ends at byte " + text(program.end_of(value)) + " of an arena of " + text(bytes));
    }
  }
}

void check_weights(const Program& program) {
  for (size_t i = 0; i < program.weights.size(); ++i) {
    const Weight& weight = program.weights[i];
    const std::string name = "weight " + text(static_cast<int64_t>(i));
    constexpr int64_t kMaxSize = int64_t{1} << 31;
    if (weight.n < 1 || weight.k < 1 || weight.n > kMaxSize || weight.k > kMaxSize ||
        weight.k % block_inputs(weight.format) != 0) {
      refuse(name + " has shape [" + text(weight.n) + ", " + text(weight.k) + "]");
    }
    const int64_t needed = static_cast<int64_t>(packed_bytes(weight.format, weight.n, weight.k));
    if (program.weight_bytes[i] < needed) {
      refuse(name + " has " + text(program.weight_bytes[i]) + " bytes where its format needs " + text(needed));
    }
    if (reinterpret_cast<uintptr_t>(weight.data) % 64 != 0) refuse(name + " is not aligned to 64 bytes");
  }
}

void check_kv(Program& program) {
  for (size_t i = 0; i < program.kv.size(); ++i) {
    const KvLayer& layer = program.kv[i];
    const std::string name = "KV layer " + text(static_cast<int64_t>(i));
    if (layer.kv_heads < 1 || layer.head_dim < 2 || layer.head_dim > kMaxHeadDim || layer.head_dim % 2 != 0) {
      refuse(name + " has " + text(layer.kv_heads) + " heads of dimension " + text(layer.head_dim) +
             "; dimensions are even, 2 to " + text(kMaxHeadDim));
    }
    const int32_t multiple = dims_multiple(layer.type);
    if (is_coded(layer.type) && (layer.v == nullptr || layer.head_dim % multiple != 0)) {
      refuse(name + " keeps codes, which need values of their own and a head dimension that is a multiple of " + text(multiple));
    }
    const int64_t k_page = page_bytes(layer.type, Part::keys, layer.head_dim) * layer.kv_heads;
    const int64_t v_page = page_bytes(layer.type, Part::values, layer.head_dim) * layer.kv_heads;
    const auto [k_bytes, v_bytes] = program.kv_bytes[i];
    const int64_t pages = k_bytes / k_page;
    if ((layer.v != nullptr && v_bytes != pages * v_page) || k_bytes % k_page != 0 || k_bytes == 0) {
      refuse(name + ": k has " + text(k_bytes) + " and v " + text(v_bytes) + " bytes; both must be the same number of pages of " +
             text(k_page) + " and " + text(v_page) + " bytes, or v absent");
    }
    if (i > 0 && pages != program.pages) {
      refuse(name + " has " + text(pages) + " pages, those before it " + text(program.pages));
    }
    program.pages = pages;
  }
}

void check_made_by_exchanges(const Program& program, int instruction, std::vector<bool>& made) {
  for (const Exchange& exchange : program.exchanges) {
    if (exchange.instruction != instruction) continue;
    if (!made[static_cast<size_t>(exchange.from)]) refuse("value " + text(exchange.from) + " is exchanged before it is made");
    if (made[static_cast<size_t>(exchange.to)]) refuse("value " + text(exchange.to) + " is made twice");
    made[static_cast<size_t>(exchange.to)] = true;
  }
}

void check_order(const Program& program) {
  std::vector<bool> made(program.values.size(), false);
  for (const int v : program.inputs) {
    if (v < 0 || static_cast<size_t>(v) >= made.size()) refuse("there is no value " + text(v) + " to be given");
    made[static_cast<size_t>(v)] = true;
  }
  check_made_by_exchanges(program, -1, made);
  for (const Instruction& instruction : program.instructions) {
    for (const int v : instruction.inputs) {
      if (v >= 0 && !made[static_cast<size_t>(v)]) refuse("value " + text(v) + " is read before it is made");
    }
    for (const int v : instruction.outputs) {
      if (made[static_cast<size_t>(v)]) refuse("value " + text(v) + " is made twice");
      if (program.values[static_cast<size_t>(v)].shared) refuse("value " + text(v) + " is shared, which only exchanges write");
      made[static_cast<size_t>(v)] = true;
    }
    check_made_by_exchanges(program, static_cast<int>(&instruction - program.instructions.data()), made);
  }
}

bool is_id(int64_t id, size_t count) { return id >= 0 && static_cast<size_t>(id) < count; }

void check_group(const Program& program) {
  if (program.group == nullptr) {
    if (!program.exchanges.empty() || !program.table_shares.empty() || program.shared_bytes != 0) {
      refuse("exchanges and shares of tables need a group");
    }
    return;
  }
  for (const TableShare& share : program.table_shares) {
    if (!is_id(share.weight, program.weights.size())) refuse("there is no weight " + text(share.weight) + " to be a share");
    const int64_t n = program.weights[static_cast<size_t>(share.weight)].n;
    if (share.first < 0 || share.whole < n || share.first > share.whole - n) {
      refuse("weight " + text(share.weight) + " of " + text(n) + " rows is no share of " + text(share.whole) + " from " + text(share.first));
    }
  }
  for (const Exchange& exchange : program.exchanges) {
    if (exchange.instruction != -1 && !is_id(exchange.instruction, program.instructions.size())) {
      refuse("an exchange follows no instruction");
    }
    if (!is_id(exchange.from, program.values.size()) || !is_id(exchange.to, program.values.size())) refuse("an exchange has no values");
    const Value& from = program.values[static_cast<size_t>(exchange.from)];
    const Value& to = program.values[static_cast<size_t>(exchange.to)];
    if ((from.shared && to.shared) || from.of_output_rows != to.of_output_rows) {
      refuse("an exchange goes from a process's rows to the same ones of the group, or back");
    }
    const int64_t part = to.shared ? from.columns : to.columns, whole = to.shared ? to.columns : from.columns;
    if (exchange.first < 0 || exchange.first > whole - part) {
      refuse("an exchange of " + text(part) + " columns from " + text(exchange.first) + " on, of " + text(whole));
    }
    if (!from.shared && !to.shared && from.offset < program.end_of(to) && to.offset < program.end_of(from)) {
      refuse("an exchange lies over what it takes");
    }
    if (to.shared && part == whole) {  // by the rows of a table
      const bool follows = exchange.instruction >= 0 && program.instructions[static_cast<size_t>(exchange.instruction)].op == Op::embed;
      if (!follows || program.instructions[static_cast<size_t>(exchange.instruction)].outputs[0] != exchange.from) {
        refuse("an exchange of whole rows follows no table");
      }
    }
  }
}

}  // namespace

void check_program(Program& program) {
  if (program.max_tokens < 1 || program.max_rows < 1) refuse("max_tokens and max_rows must be positive");
  check_values(program);
  check_weights(program);
  check_kv(program);
  const std::string fault = fault_of_states(program);
  if (!fault.empty()) refuse(fault);
  for (size_t i = 0; i < program.instructions.size(); ++i) check_instruction(program, program.instructions[i], i);
  check_group(program);
  check_order(program);
}

}  // namespace headrace
