// What sampling remembers of one sequence: its parameters, its position, the tokens that penalties count.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace {

// As SamplingParams in headrace/sample/params.py.
struct SampleSettings {
  double temperature = 1;
  int64_t top_k = 0;  // 0: off
  double top_p = 1;
  double log_min_p = 0;  // natural logarithm; -inf: off
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // ids >= 0, each once
  std::vector<int32_t> ends;                          // not drawn before min_tokens
  int64_t min_tokens = 0;
  int32_t logprobs = -1;  // -1: off; otherwise so many alternatives
  uint64_t seed = 0;
  uint32_t choice = 0;
};

class SampleRow {
 public:
  struct Seen {
    int32_t token;
    int32_t outputs;  // times in the output
  };

  SampleRow(SampleSettings settings, const int32_t* prompt, size_t prompt_tokens);

  void append(int32_t token);

  const SampleSettings& settings() const { return settings_; }
  uint64_t position() const { return position_; }  // tokens generated so far
  // Distinct tokens that a penalty touches; empty where all penalties are off.
  const std::vector<Seen>& seen() const { return seen_; }

 private:
  void count(int32_t token, int32_t outputs);

  SampleSettings settings_;
  bool repetition_;
  bool penalised_;
  uint64_t position_ = 0;
  std::vector<Seen> seen_;
  std::unordered_map<int32_t, size_t> index_;  // token -> place in seen_
};

}  // namespace headrace
