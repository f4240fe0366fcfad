// Several steps in one call: run, sample, feed back the tokens. Draft models run so, and models whose steps are short.
// In between, prompt lookup drafts tokens of texts that repeat themselves.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "../sample/sampler.hpp"
#include "../speculative/suffix_automaton.hpp"
#include "executor.hpp"

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

// One text for each sequence (null: no drafts for it), or none at all; sampled tokens are appended to them. Where the end of
// a text has occurred in it before, the next step verifies depths[b][kind of the match] of the tokens that followed then. A
// step has at most `token_budget` tokens.
struct DraftPlan {
  std::vector<SuffixAutomaton*> texts;
  std::vector<int32_t> depths;  // [B][kMatchKinds]
  int32_t token_budget = 0;
};

// A draft that was checked; or, where `checked` is 0, the first tokens of all that were found and not checked.
struct DraftOutcome {
  int32_t sequence, kind;
  int32_t checked, right, wrong;  // tokens; of a draft `wrong` is 1 where the sampled token was another one
};

struct MultiStepLimits {
  int32_t steps;             // at most
  int32_t lookahead_tokens;  // of a sequence, beyond those of the first step: it has pages for so many
  double seconds = 0;        // after which no other step begins; 0: no limit
};

struct MultiStepResult {
  std::vector<std::vector<int32_t>> tokens;  // by sequence; negated SampleFault where its logits gave none
  int32_t steps = 0;
  std::vector<DraftOutcome> drafts;
  struct Timed {
    int32_t tokens;
    double seconds;
  };
  std::vector<Timed> draft_steps;  // each step that checked some
  int32_t plain_steps = 0;         // those with one token of each sequence, and what they took
  double plain_seconds = 0;
};

// Runs `first`, which has one row of logits for each of its B sequences (its value `output`), draws a token for each,
// and so on, until every sequence has drawn a token that ends it, a limit is reached or `signal` (null: none) stops it.
// The tokens are appended to the rows. std::invalid_argument where the step does not fit.
MultiStepResult run_multi_step(Executor& executor, int output, Sampler& sampler, const Step& first,
                               const std::vector<SampleRow*>& rows, const MultiStepLimits& limits, const DraftPlan& plan,
                               Signal* signal);

}  // namespace headrace
