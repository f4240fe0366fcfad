// Tokens of drafts that were checked: drawn row after row for as long as the draft said the same.
#pragma once
#include <cstdint>
#include <vector>

#include "sampler.hpp"

namespace headrace {

// A sequence whose rows of logits start at `first`: its next token is drawn from there, what follows draft[i] from
// first + i + 1.
struct DraftRow {
  SampleRow* row;
  int64_t first;
  std::vector<int32_t> draft;
};

// Draws a token for each sequence, appends it to its row, and goes on where it is the draft's and no end: the tokens of
// each, and from where logits gave none its SampleFault, negated. Logits [., V] are overwritten.
std::vector<std::vector<int32_t>> sample_draft(Sampler& sampler, float* logits, const std::vector<DraftRow>& drafted);

}  // namespace headrace
