#include "multi_step.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "../sample/draft.hpp"

namespace headrace {
namespace {

using Tokens = std::vector<int32_t>;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The sequences that continue, and the arrays of their next step.
class Ragged {
 public:
  // Where nothing is `kept` there are no pages, and slots mean nothing.
  Ragged(const Step& first, bool kept) : first_(first), kept_(kept), lengths_(first.lengths, first.lengths + first.B) {
    for (int32_t b = 0; b < first.B; ++b) {
      active_.push_back(b);
      last_.push_back(first.tokens[first.query_starts[b + 1] - 1]);
    }
  }

  const std::vector<int32_t>& active() const { return active_; }
  int32_t length(int32_t b) const { return lengths_[static_cast<size_t>(b)]; }

  void take(int32_t b, const Tokens& drawn) {
    lengths_[static_cast<size_t>(b)] += static_cast<int32_t>(drawn.size());
    last_[static_cast<size_t>(b)] = drawn.back();
  }
  void keep_only(const std::vector<int32_t>& active) { active_ = active; }

  // Computes each sequence's last token, then its draft, with logits of all.
  Step next(const std::vector<Tokens>& drafts) {
    tokens_.clear(), positions_.clear(), slots_.clear(), rows_.clear(), counts_.clear(), tables_.clear();
    states_.clear(), adapters_.clear();
    starts_.assign(1, 0);
    for (const int32_t b : active_) add(b, drafts[static_cast<size_t>(b)]);
    for (int32_t row = 0; row < starts_.back(); ++row) rows_.push_back(row);
    Step step = first_;
    step.B = static_cast<int32_t>(active_.size());
    step.T = step.R = starts_.back();
    step.tokens = tokens_.data();
    step.positions = positions_.data();
    step.slots = slots_.data();
    step.query_starts = starts_.data();
    step.rows = rows_.data();
    step.lengths = counts_.data();
    step.block_tables = tables_.data();
    if (first_.state_slots != nullptr) step.state_slots = states_.data();
    if (first_.adapters != nullptr) step.adapters = adapters_.data();
    return step;
  }

 private:
  void add(int32_t b, const Tokens& draft) {
    const int32_t* pages = first_.block_tables + static_cast<int64_t>(b) * first_.max_pages;
    int32_t position = length(b) - 1;
    const auto compute = [&](int32_t token) {
      tokens_.push_back(token);
      positions_.push_back(position);
      slots_.push_back(kept_ ? pages[position / kPageTokens] * kPageTokens + position % kPageTokens : 0);
      ++position;
    };
    compute(last_[static_cast<size_t>(b)]);
    for (const int32_t token : draft) compute(token);
    starts_.push_back(static_cast<int32_t>(tokens_.size()));
    counts_.push_back(position);
    tables_.insert(tables_.end(), pages, pages + first_.max_pages);
    if (first_.state_slots != nullptr) states_.push_back(first_.state_slots[b]);
    if (first_.adapters != nullptr) adapters_.push_back(first_.adapters[b]);
  }

  const Step& first_;
  bool kept_;
  std::vector<int32_t> active_, lengths_, last_;
  std::vector<int32_t> tokens_, positions_, slots_, rows_, starts_, counts_, tables_, states_, adapters_;
};

// Drafts from the texts, and their outcomes.
class LookupDrafter {
 public:
  LookupDrafter(const DraftPlan& plan, size_t sequences)
      : plan_(plan), drafts_(sequences), kinds_(sequences, -1), unchecked_(sequences, -1), silent_(sequences, false) {}

  const std::vector<Tokens>& drafts() const { return drafts_; }

  // Drafts for a step of the active sequences, the best first as far as the token budget allows, each with at most most(b) tokens;
  // whether there are any.
  template <class Most>
  bool draft(const std::vector<int32_t>& active, const Most& most) {
    int32_t budget = plan_.token_budget - static_cast<int32_t>(active.size());
    bool any = false;
    for (const int32_t b : active) find(b);
    for (int kind = kMatchKinds - 1; kind >= 0; --kind) {
      for (const int32_t b : active) {
        const auto at = static_cast<size_t>(b);
        if (kinds_[at] != kind) continue;
        const int32_t depth = silent_[at] ? 0 : plan_.depths[at * kMatchKinds + static_cast<size_t>(kind)];
        const int32_t count = std::min({depth, budget, most(b)});
        const Tokens found = plan_.texts[at]->draft(static_cast<size_t>(std::max(count, 1)));
        if (found.empty()) continue;
        if (count < 1) {
          unchecked_[at] = found[0];
          continue;
        }
        drafts_[at] = found;
        budget -= static_cast<int32_t>(found.size());
        any = true;
      }
    }
    return any;
  }

  // Takes the next tokens of a sequence. A text whose draft was all wrong gives no more drafts in this call.
  void learn(int32_t b, const Tokens& came, std::vector<DraftOutcome>& outcomes) {
    const auto at = static_cast<size_t>(b);
    Tokens& draft = drafts_[at];
    if (!draft.empty()) {
      const auto most = std::min(draft.size(), came.size());
      const auto right = std::mismatch(draft.begin(), draft.begin() + static_cast<int64_t>(most), came.begin()).first - draft.begin();
      outcomes.push_back({b, kinds_[at], static_cast<int32_t>(draft.size()), static_cast<int32_t>(right),
                         right < static_cast<int64_t>(most) ? 1 : 0});
      silent_[at] = right == 0;
    } else if (unchecked_[at] >= 0) {
      DraftOutcome& seen = seen_[kinds_[at]];
      (unchecked_[at] == came[0] ? seen.right : seen.wrong) += 1;
    }
    draft.clear();
    unchecked_[at] = -1;
    if (SuffixAutomaton* text = text_of(b); text != nullptr) {
      for (const int32_t token : came) {
        if (token >= 0) text->push(token);
      }
    }
  }

  // What was found and not checked, too.
  void end(std::vector<DraftOutcome>& outcomes) const {
    for (int kind = 0; kind < kMatchKinds; ++kind) {
      if (seen_[kind].right + seen_[kind].wrong > 0) outcomes.push_back({-1, kind, 0, seen_[kind].right, seen_[kind].wrong});
    }
  }

 private:
  SuffixAutomaton* text_of(int32_t b) const {
    return plan_.texts.empty() ? nullptr : plan_.texts[static_cast<size_t>(b)];
  }
  void find(int32_t b) {
    const SuffixAutomaton* text = text_of(b);
    kinds_[static_cast<size_t>(b)] = text == nullptr ? -1 : text->match_kind();
  }

  const DraftPlan& plan_;
  std::vector<Tokens> drafts_;
  std::vector<int> kinds_;
  Tokens unchecked_;  // the first token of what was found and is not checked, or -1
  std::vector<bool> silent_;
  DraftOutcome seen_[kMatchKinds] = {};
};

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

void check(const Step& first, size_t rows, const MultiStepLimits& limits, const DraftPlan& plan, bool kept) {
  if (limits.steps < 1 || limits.lookahead_tokens < 0 || first.R != first.B || rows != static_cast<size_t>(first.B)) {
    refuse(std::to_string(limits.steps) + " steps in one call with " + std::to_string(first.R) + " rows of logits, " +
           std::to_string(rows) + " sampling rows and " + std::to_string(limits.lookahead_tokens) + " lookahead tokens for " +
           std::to_string(first.B) + " sequences");
  }
  for (int32_t b = 0; b < first.B; ++b) {
    const int32_t end = first.query_starts[b + 1];
    if (end < 1 || end > first.T) refuse("sequence " + std::to_string(b) + " has no last token");
    if (kept && (first.lengths[b] + limits.lookahead_tokens - 1) / kPageTokens >= first.max_pages) {
      refuse("sequence " + std::to_string(b) + " has no pages for its tokens");
    }
  }
  const size_t texts = plan.texts.size();
  if (texts != 0 && (texts != rows || plan.depths.size() != rows * kMatchKinds)) {
    refuse(std::to_string(texts) + " texts and " + std::to_string(plan.depths.size()) + " depths for " +
           std::to_string(rows) + " sequences");
  }
}

}  // namespace

MultiStepResult run_multi_step(Executor& executor, int output, Sampler& sampler, const Step& first,
                               const std::vector<SampleRow*>& rows, const MultiStepLimits& limits, const DraftPlan& plan,
                               Signal* signal) {
  const bool kept = !executor.program().kv.empty();
  check(first, rows.size(), limits, plan, kept);
  MultiStepResult result;
  result.tokens.resize(rows.size());
  Ragged ragged(first, kept);
  LookupDrafter drafter(plan, rows.size());
  const Clock::time_point began = Clock::now();
  const auto left = [&](int32_t b) { return first.lengths[b] + limits.lookahead_tokens - ragged.length(b); };
  while (result.steps < limits.steps && !ragged.active().empty()) {
    const Clock::time_point step_began = Clock::now();
    const std::vector<int32_t> active = ragged.active();
    const bool drafted = (result.steps > 0 || first.T == first.B) && drafter.draft(active, left);
    const Step step = result.steps > 0 || drafted ? ragged.next(drafter.drafts()) : first;
    executor.run(step);
    std::vector<DraftRow> drawn;
    int64_t row = 0;
    for (const int32_t b : active) {
      const auto at = static_cast<size_t>(b);
      drawn.push_back({rows[at], row, drafter.drafts()[at]});
      row += 1 + static_cast<int64_t>(drafter.drafts()[at].size());
    }
    const std::vector<Tokens> came = sample_draft(sampler, executor.value(output), drawn);
    std::vector<int32_t> continuing;
    bool pages_left = true;
    for (size_t i = 0; i < active.size(); ++i) {
      const int32_t b = active[i];
      const auto at = static_cast<size_t>(b);
      result.tokens[at].insert(result.tokens[at].end(), came[i].begin(), came[i].end());
      drafter.learn(b, came[i], result.drafts);
      ragged.take(b, came[i]);
      if (came[i].back() < 0 || rows[at]->ends_with(came[i].back())) continue;
      continuing.push_back(b);
      pages_left = pages_left && left(b) >= 0;
    }
    ragged.keep_only(continuing);
    ++result.steps;
    const double seconds = seconds_since(step_began);
    if (drafted) {
      result.draft_steps.push_back({step.T, seconds});
    } else if (step.T == first.B) {
      ++result.plain_steps;
      result.plain_seconds += seconds;
    }
    if (signal != nullptr && signal->stops_after_step()) break;
    if (!pages_left || (limits.seconds > 0 && seconds_since(began) >= limits.seconds)) break;
  }
  drafter.end(result.drafts);
  return result;
}

}  // namespace headrace
