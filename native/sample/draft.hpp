// Verification of drafts: tokens are drawn row after row, as long as they equal the draft.
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

// Draws a token for each sequence and appends it to its row. Continues with the next row while the token equals the
// draft's and does not end the sequence. Returns the tokens of each; the first row without a valid token gives its negated
// SampleFault. Logits [., V] are overwritten.
std::vector<std::vector<int32_t>> sample_draft(Sampler& sampler, float* logits, const std::vector<DraftRow>& drafted);

}  // namespace headrace
