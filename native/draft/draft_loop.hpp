// Several steps of a draft model in one call: run, draw, feed what was drawn.
#pragma once
#include <cstdint>
#include <vector>

#include "../executor.hpp"
#include "../sample/sampler.hpp"

namespace headrace {

// Runs `first`, which has one row of logits for each of its B sequences (its value `output`), draws a token for each,
// and so on until `depth` are drawn: [B, depth], -1 from where a sequence's logits gave none. The rows are left as
// they are: copies of them draw, with the same random numbers. `first.block_tables` must have the pages for
// `depth - 1` more tokens. std::invalid_argument where the step does not fit.
std::vector<int32_t> draft_tokens(Executor& executor, int output, Sampler& sampler, const Step& first,
                                  const std::vector<SampleRow*>& rows, int32_t depth);

}  // namespace headrace
