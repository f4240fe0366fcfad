// Which memory of the arena holds nothing that is still to be read.
#include <algorithm>

#include "program.hpp"

namespace headrace {

std::vector<std::vector<std::pair<int64_t, int64_t>>> dead_ranges(const Program& program) {
  constexpr int kUnused = -1;
  const int count = static_cast<int>(program.instructions.size());
  std::vector<int> made(program.values.size(), kUnused), last_read(program.values.size(), kUnused);
  for (int i = 0; i < count; ++i) {
    const Instruction& instruction = program.instructions[static_cast<size_t>(i)];
    for (const int v : instruction.outputs) made[static_cast<size_t>(v)] = i;
    for (const int v : instruction.inputs) {
      if (v >= 0) last_read[static_cast<size_t>(v)] = i;
    }
  }
  std::vector<std::vector<std::pair<int64_t, int64_t>>> dead(program.instructions.size());
  for (int i = 0; i < count; ++i) {
    std::vector<std::pair<int64_t, int64_t>> alive;
    for (size_t v = 0; v < program.values.size(); ++v) {
      const bool result = last_read[v] == kUnused;
      if (made[v] == kUnused || made[v] > i || (!result && last_read[v] <= i)) continue;
      alive.emplace_back(program.values[v].offset, program.end_of(program.values[v]));
    }
    std::sort(alive.begin(), alive.end());
    int64_t free_from = 0;
    for (const auto& [begin, end] : alive) {
      if (begin > free_from) dead[static_cast<size_t>(i)].emplace_back(free_from, begin);
      free_from = std::max(free_from, end);
    }
    if (free_from < program.arena_bytes) dead[static_cast<size_t>(i)].emplace_back(free_from, program.arena_bytes);
  }
  return dead;
}

}  // namespace headrace
