// Several steps in one call: run, draw, feed what was drawn. Drafts are made so, and the tokens of models whose steps
// are short; texts that repeat themselves are guessed ahead meanwhile.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "../speculative/suffix_automaton.hpp"
#include "executor.hpp"
#include "../sample/sampler.hpp"

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

// Texts that grow with what is drawn, one for each sequence (null: not this one's), or none at all. Where one of them ends
// with tokens that stood in it before, depths[b][kind of the match] of the tokens that followed are
// checked in the next step, which has at most `room` tokens.
struct DraftPlan {
  std::vector<SuffixAutomaton*> texts;
  std::vector<int32_t> depths;  // [B][kMatchKinds]
  int32_t token_budget = 0;
};

// A draft that was checked; or, where `checked` is 0, the first tokens of all that were found and not checked.
struct DraftOutcome {
  int32_t sequence, kind;
  int32_t checked, right, wrong;  // tokens; of a draft `wrong` is 1 where what came was another one
};

struct MultiStepLimits {
  int32_t steps;       // at most
  int32_t lookahead_tokens;       // tokens of a sequence beyond those of the first step that may be computed: it has pages for them
  double seconds = 0;  // after which no other step begins; 0: however long it takes
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
// and so on, until every sequence has drawn a token that ends it, a limit is reached or `signal` (null: none) says so.
// The tokens are appended to the rows. std::invalid_argument where the step does not fit.
MultiStepResult run_multi_step(Executor& executor, int output, Sampler& sampler, const Step& first,
                               const std::vector<SampleRow*>& rows, const MultiStepLimits& limits, const DraftPlan& plan,
                               Signal* signal);

}  // namespace headrace
