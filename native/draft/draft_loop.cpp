#include "draft_loop.hpp"

#include <stdexcept>
#include <string>

namespace headrace {
namespace {

// The arrays of steps with one token for each sequence.
class SingleTokens {
 public:
  explicit SingleTokens(const Step& first) : first_(first), lengths_(first.lengths, first.lengths + first.B) {
    const auto count = static_cast<size_t>(first.B);
    for (int32_t b = 0; b <= first.B; ++b) starts_.push_back(b);
    tokens_.resize(count);
    positions_.resize(count);
    slots_.resize(count);
  }

  // The step that computes a token for each sequence, after all before it.
  Step next(const int32_t* drawn, int32_t stride) {
    for (size_t b = 0; b < lengths_.size(); ++b) {
      const int32_t token = drawn[b * static_cast<size_t>(stride)];
      const int32_t position = lengths_[b]++;
      const int32_t* pages = first_.block_tables + b * static_cast<size_t>(first_.max_pages);
      tokens_[b] = token < 0 ? 0 : token;
      positions_[b] = position;
      slots_[b] = pages[position / kPageTokens] * kPageTokens + position % kPageTokens;
    }
    Step step = first_;
    step.T = step.R = first_.B;
    step.tokens = tokens_.data();
    step.positions = positions_.data();
    step.slots = slots_.data();
    step.query_starts = step.rows = starts_.data();
    step.lengths = lengths_.data();
    return step;
  }

 private:
  const Step& first_;
  std::vector<int32_t> lengths_, starts_, tokens_, positions_, slots_;
};

void check(const Step& first, size_t rows, int32_t depth) {
  if (depth < 1 || first.R != first.B || rows != static_cast<size_t>(first.B)) {
    throw std::invalid_argument("a draft of " + std::to_string(depth) + " tokens with " + std::to_string(first.R) +
                                " rows of logits and " + std::to_string(rows) + " sampling rows for " +
                                std::to_string(first.B) + " sequences");
  }
  for (int32_t b = 0; b < first.B; ++b) {
    if ((first.lengths[b] + depth - 2) / kPageTokens >= first.max_pages) {
      throw std::invalid_argument("sequence " + std::to_string(b) + " has no pages for its draft");
    }
  }
}

}  // namespace

std::vector<int32_t> draft_tokens(Executor& executor, int output, Sampler& sampler, const Step& first,
                                  const std::vector<SampleRow*>& rows, int32_t depth) {
  check(first, rows.size(), depth);
  std::vector<SampleRow> copies;
  for (const SampleRow* row : rows) copies.push_back(row->without_logprobs());
  std::vector<SampleRow*> drawing;
  for (SampleRow& row : copies) drawing.push_back(&row);
  const std::vector<const uint32_t*> masks(rows.size(), nullptr);
  std::vector<SampleResult> results(rows.size());
  std::vector<int32_t> drawn(rows.size() * static_cast<size_t>(depth), -1);
  SingleTokens singles(first);
  for (int32_t at = 0; at < depth; ++at) {
    executor.run(at == 0 ? first : singles.next(drawn.data() + at - 1, depth));
    sampler.sample(executor.value(output), first.B, drawing.data(), masks.data(), results.data());
    for (size_t b = 0; b < rows.size(); ++b) {
      const bool goes_on = at == 0 || drawn[b * static_cast<size_t>(depth) + static_cast<size_t>(at) - 1] >= 0;
      if (!goes_on || results[b].fault != SampleFault::none) continue;
      drawn[b * static_cast<size_t>(depth) + static_cast<size_t>(at)] = results[b].token;
      copies[b].append(results[b].token);
    }
  }
  return drawn;
}

}  // namespace headrace
