#include <algorithm>

#include "../executor/program.hpp"
#include "fault.hpp"
#include "recurrence.hpp"

namespace headrace {
namespace {

void check_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    refuse(std::string("step: ") + what + " " + text(value) + " is not in " + text(low) + " .. " + text(high));
  }
}

// Which ids of a step an instruction looks up in a table; none where it is no embedding.
struct Embedded {
  const char* name;  // null: none
  const int32_t* ids;
};
Embedded embedded_by(Op op, const Step& step) {
  if (op == Op::embed) return {"token", step.tokens};
  if (op == Op::embed_positions) return {"position", step.positions};
  if (op == Op::embed_token_types) return {"token type", step.token_types};
  return {nullptr, nullptr};
}

// How far beyond the keys of its sequence a token may be: the last tokens of an encoder's text may see the others
// and be seen by none. Every token must see a key, which a window bounds.
int64_t positions_beyond_keys(const Program& program) {
  int64_t beyond = program.max_tokens;
  bool attends = false;
  for (const Instruction& it : program.instructions) {
    if (it.op != Op::attend) continue;
    attends = true;
    const int64_t window = it.ints[2];
    if (it.ints[4] == 0) return 0;
    if (window > 0 && window - 1 < beyond) beyond = window - 1;
  }
  return attends ? beyond : 0;
}

void check_sequences(const Program& program, const Step& step) {
  const int64_t beyond = positions_beyond_keys(program);
  check_range("first query start", step.query_starts[0], 0, 0);
  check_range("last query start", step.query_starts[step.B], step.T, step.T);
  for (int b = 0; b < step.B; ++b) {
    check_range("query start", step.query_starts[b + 1], step.query_starts[b], step.T);
    if (program.kv.empty()) continue;
    check_range("length", step.lengths[b], 1, static_cast<int64_t>(step.max_pages) * kPageTokens);
    const int used = (step.lengths[b] + kPageTokens - 1) / kPageTokens;
    for (int page = 0; page < used; ++page) {
      check_range("page id", step.block_tables[static_cast<int64_t>(b) * step.max_pages + page], 0, program.pages - 1);
    }
    for (int t = step.query_starts[b]; t < step.query_starts[b + 1]; ++t) {
      check_range("position", step.positions[t], 0, step.lengths[b] - 1 + beyond);
    }
  }
}

// Whether keys have a bias of their own (relative attention), which only rows of this step have.
bool has_key_bias(const Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& it) { return it.op == Op::attend && it.inputs[2] >= 0; });
}

void check_whole_sequences(const Step& step) {
  for (int b = 0; b < step.B; ++b) {
    const int start = step.query_starts[b], rows = step.query_starts[b + 1] - start;
    check_range("length of a sequence that must be whole", step.lengths[b], rows, rows);
    for (int i = 0; i < rows; ++i) check_range("position in a sequence that must be whole", step.positions[start + i], i, i);
  }
}

}  // namespace

void check_step(const Program& program, const Step& step) {
  check_range("number of tokens", step.T, 1, program.max_tokens);
  check_range("number of output rows", step.R, 0, program.max_rows);
  for (const Instruction& instruction : program.instructions) {
    const Embedded embedded = embedded_by(instruction.op, step);
    if (embedded.name == nullptr) continue;
    if (embedded.ids == nullptr) refuse("step: it has no token types, which the program looks up");
    const int64_t rows = program.share_of(instruction.weights[0]).whole;
    for (int t = 0; t < step.T; ++t) check_range(embedded.name, embedded.ids[t], 0, rows - 1);
  }
  for (int r = 0; r < step.R; ++r) check_range("output row", step.rows[r], 0, step.T - 1);
  if (program.kv.empty() && program.states.empty()) return;
  check_sequences(program, step);
  if (has_key_bias(program)) check_whole_sequences(step);
  if (!program.states.empty()) {
    const std::string fault = fault_of_state_slots(program, step);
    if (!fault.empty()) refuse("step: " + fault);
  }
  if (program.kv.empty()) return;
  for (int t = 0; t < step.T; ++t) check_range("slot", step.slots[t], 0, program.pages * kPageTokens - 1);
}

}  // namespace headrace
