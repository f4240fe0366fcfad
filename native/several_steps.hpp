// Several steps in one call: run, draw, feed what was drawn. Drafts are made so, and the tokens of models whose steps
// are short.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "draft/suffix_automaton.hpp"
#include "executor.hpp"
#include "sample/sampler.hpp"

namespace headrace {

// Between a call of several steps and other threads.
class Signal {
 public:
  // Ends calls after the step that is running, until it is reset.
  void stop() { stopped_.store(true, std::memory_order_relaxed); }
  void reset() { stopped_.store(false, std::memory_order_relaxed); }
  // Steps of all calls so far.
  int64_t steps() const { return steps_.load(std::memory_order_relaxed); }

  bool stops_after_step() {
    steps_.fetch_add(1, std::memory_order_relaxed);
    return stopped_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> stopped_{false};
  std::atomic<int64_t> steps_{0};
};

// Texts that grow with what is drawn (one for each sequence, null: not this one's; or none at all): where one of them comes
// to end with `least` tokens that stood in it before, a draft is at hand.
struct Watch {
  std::vector<SuffixAutomaton*> texts;
  int32_t least = 0;
};

// Runs `first`, which has one row of logits for each of its B sequences (its value `output`), draws a token for each,
// and so on for `steps` steps, or fewer where every sequence has drawn a token that ends it, `watch` has found something or
// `signal` (null: none) says so: the tokens step by step, B each, and from where a sequence's logits gave none its SampleFault, negated.
// The tokens are appended to the rows. `first.block_tables` must have the pages for `steps - 1` more tokens.
// std::invalid_argument where the step does not fit.
std::vector<int32_t> run_several(Executor& executor, int output, Sampler& sampler, const Step& first,
                                 const std::vector<SampleRow*>& rows, int32_t steps, const Watch& watch,
                                 Signal* signal);

}  // namespace headrace
