// The sampling state of one sequence: its parameters, its position, the tokens that penalties count.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace {

using TokenList = std::vector<int32_t>;
using TokenLists = std::vector<TokenList>;
using TokenBiases = std::vector<std::pair<int32_t, float>>;

struct SampleSettings {
#define HEADRACE_SETTING(type, name, default_value) type name = default_value;
#include "settings.inl"
};

class SampleRow {
 public:
  struct Seen {
    int32_t token;
    int32_t count;    // times in all that is looked at
    int32_t outputs;  // of these, times in the output
  };

  // `prompt` is what the repetition penalty counts of it, `history` what DRY looks at, with kBreak in the place of
  // tokens in which a sequence breaker ends.
  SampleRow(SampleSettings settings, const int32_t* prompt, size_t prompt_tokens, const int32_t* history = nullptr,
            size_t history_tokens = 0);

  static constexpr int32_t kBreak = -1;

  void append(int32_t token, bool breaks = false);
  // The bound of surprise that mirostat has if `token` is what is appended next.
  void expect(int32_t token, double mu);

  // A copy for drawing drafts with the same random numbers.
  SampleRow for_drafts() const {
    SampleRow copy = *this;
    copy.settings_.logprobs = -1;
    return copy;
  }

  // Whether the sequence is over with this token.
  bool ends_with(int32_t token) const {
    return std::binary_search(settings_.ends.begin(), settings_.ends.end(), token);
  }

  const SampleSettings& settings() const { return settings_; }
  uint64_t position() const { return outputs_.size(); }  // tokens generated so far
  double mu() const { return mu_; }
  // Distinct tokens that a penalty touches; empty where all penalties are off.
  const std::vector<Seen>& seen() const { return seen_; }
  // What DRY takes off the logits of tokens.
  const std::vector<std::pair<int32_t, float>>& dry() const { return dry_; }
  // Tokens that would complete a bad word.
  const std::vector<int32_t>& banned() const { return banned_; }

 private:
  void count(int32_t token, int32_t outputs);
  void forget_oldest();
  void find_dry();
  void find_banned();

  SampleSettings settings_;
  bool repetition_;
  bool penalized_;
  std::vector<int32_t> outputs_;
  std::vector<Seen> seen_;
  std::unordered_map<int32_t, size_t> index_;        // token -> place in seen_
  std::deque<std::pair<int32_t, int32_t>> window_;   // (token, outputs) of the last repeat_last_n, if limited
  std::vector<int32_t> history_, repeats_;
  std::vector<std::pair<int32_t, float>> dry_;
  std::vector<int32_t> banned_;
  double mu_;
  int32_t expected_ = -1;
  double expected_mu_ = 0;
};

}  // namespace headrace
