// The longest repeated end of random texts against a search by hand.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "../speculative/suffix_automaton.hpp"
#include "test.hpp"

namespace {

using headrace::SuffixAutomaton;

int32_t longest_repeated_end(const std::vector<int32_t>& text) {
  int32_t best = 0;
  for (size_t end = 0; end + 1 < text.size(); ++end) {
    int32_t length = 0;
    while (static_cast<size_t>(length) <= end && text[end - static_cast<size_t>(length)] == text[text.size() - 1 - static_cast<size_t>(length)]) {
      ++length;
    }
    best = std::max(best, length);
  }
  return best;
}

void drafts_follow_an_earlier_occurrence(const std::vector<int32_t>& text, const SuffixAutomaton& automaton) {
  const std::vector<int32_t> draft = automaton.draft(5);
  const auto length = static_cast<size_t>(automaton.match_length());
  if (length == 0) {
    CHECK(draft.empty());
    return;
  }
  std::vector<int32_t> longer = text;
  longer.insert(longer.end(), draft.begin(), draft.end());
  bool found = false;
  for (size_t start = 0; start + length < text.size() && !found; ++start) {
    found = true;
    for (size_t i = 0; i < length && found; ++i) found = text[start + i] == text[text.size() - length + i];
    for (size_t i = 0; i < draft.size() && found; ++i) found = longer[start + length + i] == draft[i];
  }
  CHECK(found);
}

}  // namespace

int main() {
  std::mt19937 random(7);
  for (int trial = 0; trial < 60; ++trial) {
    const int32_t alphabet = 1 + static_cast<int32_t>(random() % 4);
    SuffixAutomaton automaton;
    std::vector<int32_t> text;
    for (int i = 0; i < 120; ++i) {
      text.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(alphabet)));
      automaton.push(text.back());
      CHECK(automaton.match_length() == longest_repeated_end(text));
      drafts_follow_an_earlier_occurrence(text, automaton);
    }
  }
  SuffixAutomaton parted;
  for (const int32_t token : {1, 2, 3, -1, 1, 2}) parted.push(token);
  CHECK(parted.match_length() == 2);
  CHECK(parted.draft(4) == std::vector<int32_t>{3});
  return headrace::test::report();
}
