// Errors of the checks.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace headrace {

[[noreturn]] inline void refuse(const std::string& message) { throw std::invalid_argument(message); }

inline std::string text(int64_t number) { return std::to_string(number); }

}  // namespace headrace
