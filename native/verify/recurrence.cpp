#include "recurrence.hpp"

#include <vector>

#include "../kernels/arguments.hpp"
#include "fault.hpp"

namespace headrace {
namespace {

int64_t columns(const Program& program, int value) { return program.values[static_cast<size_t>(value)].columns; }

std::string fault_of_place(const Program& program, const Instruction& it, int64_t width) {
  for (const std::vector<int>* ids : {&it.inputs, &it.outputs}) {
    for (const int id : *ids) {
      if (program.values[static_cast<size_t>(id)].of_output_rows) return "works on rows 'T' only";
    }
  }
  const int64_t in = columns(program, it.inputs[0]), out = columns(program, it.outputs[0]);
  if (in != out) return "makes " + text(out) + " columns of " + text(in);
  if (it.ints[0] < 0 || it.ints[0] >= static_cast<int>(program.states.size())) return "there is no state " + text(it.ints[0]);
  const int64_t got = program.states[static_cast<size_t>(it.ints[0])].width;
  if (got != width) return "state " + text(it.ints[0]) + " has " + text(got) + " numbers where " + text(width) + " are needed";
  return {};
}

std::string fault_of_constants(const Program& program, const Instruction& it, int64_t first, int64_t others) {
  for (size_t i = 0; i < it.constants.size(); ++i) {
    if (it.constants[i] < 0) continue;
    const int64_t got = program.constants[static_cast<size_t>(it.constants[i])].size, needed = i == 0 ? first : others;
    if (got != needed) {
      return "constant " + text(it.constants[i]) + " has " + text(got) + " numbers where " + text(needed) + " are needed";
    }
  }
  return {};
}

}  // namespace

std::string fault_of_conv(const Program& program, const Instruction& it) {
  const int64_t channels = columns(program, it.inputs[0]), taps = it.ints[1];
  if (taps < 2 || taps > kMaxTaps) return "has " + text(taps) + " taps; 2 to " + text(kMaxTaps) + " are possible";
  const std::string fault = fault_of_place(program, it, (taps - 1) * channels);
  return fault.empty() ? fault_of_constants(program, it, taps * channels, channels) : fault;
}

std::string fault_of_scan(const Program& program, const Instruction& it) {
  const int64_t inner = columns(program, it.inputs[0]), pairs = columns(program, it.inputs[1]);
  const int64_t heads = columns(program, it.inputs[2]), groups = it.ints[1];
  if (groups < 1 || heads % groups != 0 || inner % heads != 0 || pairs % (2 * groups) != 0) {
    return "cannot divide " + text(inner) + " columns into " + text(heads) + " heads and " + text(pairs) + " into " +
           text(groups) + " groups of B and C";
  }
  if (!(it.floats[0] >= 0 && it.floats[0] <= it.floats[1])) return "the limits of the time step are not in order";
  const std::string fault = fault_of_place(program, it, inner * (pairs / (2 * groups)));
  return fault.empty() ? fault_of_constants(program, it, heads, heads) : fault;
}

std::string fault_of_states(Program& program) {
  for (size_t i = 0; i < program.states.size(); ++i) {
    const State& state = program.states[i];
    const std::string name = "state " + text(static_cast<int64_t>(i));
    if (state.width < 1 || state.width > (int64_t{1} << 32)) return name + " has " + text(state.width) + " numbers";
    const int64_t slot_bytes = state.width * static_cast<int64_t>(sizeof(float));
    if (state.bytes == 0 || state.bytes % slot_bytes != 0) {
      return name + " has " + text(state.bytes) + " bytes, which must be a number of slots of " + text(slot_bytes) + " bytes";
    }
    const int64_t slots = state.bytes / slot_bytes;
    if (i > 0 && slots != program.state_slots) {
      return name + " has " + text(slots) + " slots, those before it " + text(program.state_slots);
    }
    program.state_slots = slots;
  }
  return {};
}

std::string fault_of_state_slots(const Program& program, const Step& step) {
  std::vector<bool> taken(static_cast<size_t>(program.state_slots), false);
  for (int b = 0; b < step.B; ++b) {
    const int32_t slot = step.state_slots[b];
    if (slot < 0 || slot >= program.state_slots) {
      return "state slot " + text(slot) + " is not in 0 .. " + text(program.state_slots - 1);
    }
    // Threads work on different sequences at the same time.
    if (taken[static_cast<size_t>(slot)]) return "state slot " + text(slot) + " is of two sequences";
    taken[static_cast<size_t>(slot)] = true;
  }
  return {};
}

}  // namespace headrace
