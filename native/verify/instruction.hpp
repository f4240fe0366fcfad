// What an instruction must be like.
#pragma once
#include <cstddef>

#include "../executor/program.hpp"

namespace headrace {

// Checks the instruction, number `index` of the program, and sets its op; std::invalid_argument.
void check_instruction(const Program& program, Instruction& instruction, size_t index);

}  // namespace headrace
