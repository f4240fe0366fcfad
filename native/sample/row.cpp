// Incremental token counts: appending a token is O(1), whatever the history; with DRY it is linear in what that
// looks at.
#include "row.hpp"

#include <algorithm>
#include <unordered_map>

namespace headrace {
namespace {

constexpr double kMaxDryPenalty = 1e30;

float dry_penalty(const SampleSettings& settings, int64_t length) {
  double penalty = settings.dry_multiplier;
  for (int64_t i = settings.dry_allowed_length; i < length; ++i) {
    penalty *= settings.dry_base;
    if (penalty >= kMaxDryPenalty) return static_cast<float>(kMaxDryPenalty);
    if (settings.dry_base == 1) break;
  }
  return static_cast<float>(penalty);
}

}  // namespace

SampleRow::SampleRow(SampleSettings settings, const int32_t* prompt, size_t prompt_tokens, const int32_t* history,
                     size_t history_tokens)
    : settings_(std::move(settings)),
      repetition_(settings_.repetition_penalty != 1),
      penalized_(repetition_ || settings_.presence_penalty != 0 || settings_.frequency_penalty != 0),
      mu_(2 * settings_.mirostat_tau) {
  if (repetition_) {  // the other penalties look at the output only
    for (size_t i = 0; i < prompt_tokens; ++i) count(prompt[i], 0);
  }
  if (settings_.dry_multiplier != 0) {
    history_.assign(history, history + history_tokens);
    find_dry();
  }
  find_banned();
}

void SampleRow::append(int32_t token, bool breaks) {
  outputs_.push_back(token);
  if (penalized_) count(token, 1);
  if (settings_.dry_multiplier != 0) {
    history_.push_back(breaks ? kBreak : token);
    find_dry();
  }
  find_banned();
  if (token == expected_) mu_ = expected_mu_;
  expected_ = -1;
}

void SampleRow::expect(int32_t token, double mu) {
  expected_ = token;
  expected_mu_ = mu;
}

void SampleRow::count(int32_t token, int32_t outputs) {
  if (settings_.repeat_last_n == 0) return;
  const auto [entry, fresh] = index_.try_emplace(token, seen_.size());
  if (fresh) seen_.push_back({token, 0, 0});
  Seen& seen = seen_[entry->second];
  seen.count += 1;
  seen.outputs += outputs;
  if (settings_.repeat_last_n < 0) return;
  window_.emplace_back(token, outputs);
  if (static_cast<int64_t>(window_.size()) > settings_.repeat_last_n) forget_oldest();
}

void SampleRow::forget_oldest() {
  const auto [token, outputs] = window_.front();
  window_.pop_front();
  const auto entry = index_.find(token);
  const size_t place = entry->second;
  Seen& seen = seen_[place];
  seen.outputs -= outputs;
  if (--seen.count > 0) return;
  index_[seen_.back().token] = place;
  index_.erase(token);
  seen = seen_.back();
  seen_.pop_back();
}

// How far what led to each token repeats at the end: Z function (Gusfield 1997) of the reversed history.
void SampleRow::find_dry() {
  dry_.clear();
  const int64_t all = static_cast<int64_t>(history_.size());
  const int64_t n = settings_.dry_penalty_last_n < 0 ? all : std::min(all, settings_.dry_penalty_last_n);
  const auto token = [&](int64_t back) { return history_[static_cast<size_t>(all - 1 - back)]; };
  if (n < 2 || token(0) == kBreak) return;
  repeats_.assign(static_cast<size_t>(n), 0);
  std::unordered_map<int32_t, int64_t> longest;
  int64_t left = 0, right = 0;
  for (int64_t i = 1; i < n; ++i) {
    int64_t length = i < right ? std::min<int64_t>(right - i, repeats_[static_cast<size_t>(i - left)]) : 0;
    while (i + length < n && token(length) != kBreak && token(length) == token(i + length)) ++length;
    repeats_[static_cast<size_t>(i)] = static_cast<int32_t>(length);
    if (i + length > right) {
      left = i;
      right = i + length;
    }
    const int32_t next = token(i - 1);
    if (length < settings_.dry_allowed_length || next == kBreak) continue;
    int64_t& most = longest[next];
    most = std::max(most, length);
  }
  for (const auto& [next, length] : longest) dry_.emplace_back(next, dry_penalty(settings_, length));
}

void SampleRow::find_banned() {
  banned_.clear();
  for (const std::vector<int32_t>& word : settings_.bad_words) {
    const size_t before = word.size() - 1;
    if (before <= outputs_.size() && std::equal(word.begin(), word.end() - 1, outputs_.end() - static_cast<ptrdiff_t>(before))) {
      banned_.push_back(word.back());
    }
  }
}

}  // namespace headrace
