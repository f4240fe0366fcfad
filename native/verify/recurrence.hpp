// What makes a recurrent instruction, a state or a step's state slots unfit: the cause, or an empty string.
#pragma once
#include <string>

#include "../executor/program.hpp"

namespace headrace {

std::string fault_of_conv(const Program& program, const Instruction& instruction);
std::string fault_of_scan(const Program& program, const Instruction& instruction);

// All states have as many slots; sets Program::state_slots.
std::string fault_of_states(Program& program);
std::string fault_of_state_slots(const Program& program, const Step& step);

}  // namespace headrace
