// What makes an instruction of a mixture of experts unfit, its ids in range: the cause, or an empty string.
#pragma once
#include <string>

#include "../executor/program.hpp"

namespace headrace {

std::string fault_of_route(const Program& program, const Instruction& instruction);
std::string fault_of_moe(const Program& program, const Instruction& instruction);

}  // namespace headrace
