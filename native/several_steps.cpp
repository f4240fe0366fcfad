#include "several_steps.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

// The arrays of steps with one token for each sequence.
class SingleTokens {
 public:
  // Where nothing is `kept` there are no pages, and slots mean nothing.
  SingleTokens(const Step& first, bool kept)
      : first_(first), kept_(kept), lengths_(first.lengths, first.lengths + first.B) {
    const auto count = static_cast<size_t>(first.B);
    for (int32_t b = 0; b <= first.B; ++b) starts_.push_back(b);
    tokens_.resize(count);
    positions_.resize(count);
    slots_.resize(count);
  }

  // The step that computes the last token of each sequence.
  Step next(const std::vector<int32_t>& last) {
    for (size_t b = 0; b < lengths_.size(); ++b) {
      const int32_t position = lengths_[b]++;
      const int32_t* pages = first_.block_tables + b * static_cast<size_t>(first_.max_pages);
      tokens_[b] = last[b] < 0 ? 0 : last[b];
      positions_[b] = position;
      slots_[b] = kept_ ? pages[position / kPageTokens] * kPageTokens + position % kPageTokens : 0;
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
  bool kept_;
  std::vector<int32_t> lengths_, starts_, tokens_, positions_, slots_;
};

void check(const Step& first, size_t rows, int32_t steps, bool kept) {
  if (steps < 1 || first.R != first.B || rows != static_cast<size_t>(first.B)) {
    throw std::invalid_argument(std::to_string(steps) + " steps in one call with " + std::to_string(first.R) +
                                " rows of logits and " + std::to_string(rows) + " sampling rows for " +
                                std::to_string(first.B) + " sequences");
  }
  for (int32_t b = 0; kept && b < first.B; ++b) {
    if ((first.lengths[b] + steps - 2) / kPageTokens >= first.max_pages) {
      throw std::invalid_argument("sequence " + std::to_string(b) + " has no pages for its tokens");
    }
  }
}

}  // namespace

std::vector<int32_t> run_several(Executor& executor, int output, Sampler& sampler, const Step& first,
                                 const std::vector<SampleRow*>& rows, int32_t steps, const Watch& watch,
                                 Signal* signal) {
  const bool kept = !executor.program().kv.empty();
  check(first, rows.size(), steps, kept);
  if (!watch.texts.empty() && watch.texts.size() != rows.size()) {
    throw std::invalid_argument(std::to_string(watch.texts.size()) + " texts are watched for " +
                                std::to_string(rows.size()) + " sequences");
  }
  const std::vector<const uint32_t*> masks(rows.size(), nullptr);
  std::vector<SampleResult> results(rows.size());
  std::vector<int32_t> drawn, last(rows.size(), 0);
  std::vector<bool> ended(rows.size(), false);
  SingleTokens singles(first, kept);
  for (int32_t at = 0; at < steps; ++at) {
    executor.run(at == 0 ? first : singles.next(last));
    sampler.sample(executor.value(output), first.B, rows.data(), masks.data(), results.data());
    bool found = false;
    for (size_t b = 0; b < rows.size(); ++b) {
      if (last[b] < 0) continue;
      const int32_t fault = static_cast<int32_t>(results[b].fault);
      last[b] = fault > 0 ? -fault : results[b].token;
      ended[b] = ended[b] || fault > 0 || rows[b]->ends_with(last[b]);
      if (fault > 0) continue;
      rows[b]->append(last[b]);
      SuffixAutomaton* text = watch.texts.empty() ? nullptr : watch.texts[b];
      if (text == nullptr) continue;
      text->push(last[b]);
      found = found || (!ended[b] && text->match_length() >= watch.least);
    }
    drawn.insert(drawn.end(), last.begin(), last.end());
    if (signal != nullptr && signal->stops_after_step()) break;
    if (found) break;
    if (std::find(ended.begin(), ended.end(), false) == ended.end()) break;
  }
  return drawn;
}

}  // namespace headrace
