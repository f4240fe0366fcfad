// Logits [R, V] -> one token a row: penalties, suppression, truncation, the draw, log-probabilities.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "../kernels/sample.hpp"
#include "../platform/isa.hpp"
#include "../platform/pool.hpp"
#include "row.hpp"

namespace headrace {

inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int64_t kMaxSampleVocabulary = int64_t{1} << 19;  // above it, sums of masses would round

enum class SampleFault : uint8_t { none = 0, not_finite = 1, nothing_left = 2, unknown_token = 3 };

struct SampleResult {
  SampleFault fault = SampleFault::none;
  int32_t token = -1;
  float logprob = 0;  // this and the next three only where logprobs are requested
  int32_t top_count = 0;
  int32_t top_ids[kMaxTopLogprobs] = {};
  float top_logprobs[kMaxTopLogprobs] = {};
};

struct ScoreResult {
  SampleFault fault = SampleFault::none;
  float logprob = 0;
  int32_t rank = 0;  // 1: no token is likelier
  int32_t top_count = 0;
  int32_t top_ids[kMaxTopLogprobs] = {};
  float top_logprobs[kMaxTopLogprobs] = {};
};

class Sampler {
 public:
  // std::invalid_argument unless 1 <= vocabulary <= kMaxSampleVocabulary. The pool must outlive it.
  Sampler(int64_t vocabulary, Pool& pool, Isa isa = active_isa());

  int64_t vocabulary() const { return vocabulary_; }

  // Draws one token for each row of logits [count, V], which it overwrites. allowed[r] is null or points
  // to ceil(V / 32) words with a bit for each token that may be drawn. One call at a time.
  void sample(float* logits, int64_t count, SampleRow* const* rows, const uint32_t* const* allowed,
              SampleResult* results);

  // The `tops` likeliest tokens of row rows[i] of logits [., V], likeliest first, with their log-probabilities: into
  // ids and logprobs [count, tops], with -1 where there are fewer, and everywhere in a row that is not finite.
  void top(const float* logits, int64_t count, const int32_t* rows, int32_t tops, int32_t* ids, float* logprobs);

  // Log-probabilities of tokens[i], and of the `tops` likeliest, in row rows[i] of logits [., V].
  void score(const float* logits, int64_t count, const int32_t* rows, const int32_t* tokens, int32_t tops,
             ScoreResult* results);

 private:
  struct Candidate {
    float value;
    int32_t id;
    // Likeliest first; equal logits, lowest id first.
    bool operator<(const Candidate& other) const {
      return value > other.value || (value == other.value && id < other.id);
    }
  };
  enum class Measure { count, mass };
  struct Winner {
    double score;
    int32_t id;
    void take(double other_score, int32_t other_id) {
      if (other_score > score || (other_score == score && other_id < id)) *this = {other_score, other_id};
    }
  };
  // Memory of a row while it is being sampled.
  struct Work {
    bool finite = true;
    bool drawing = false;  // false: the token is decided (greedy) or there is a fault
    DrawBound bound;       // .bound is set as the draw proceeds
    double temperature = 1;
    Candidate last;     // of the kept tokens
    Winner start;       // the likeliest token's score
    float raw_max = 0;  // this and the next two for log-probabilities
    double log_total = 0;
    std::vector<std::pair<int32_t, float>> raw;  // logits before they were adjusted
    std::vector<float> maxima;                   // of each block
    std::vector<uint8_t> stale;                  // blocks whose maximum must be found anew
    std::vector<float> sorted_maxima;
    std::vector<Candidate> candidates;
    std::vector<double> buckets;
  };

  void sample_row(Work& work, float* x, SampleRow& row, const uint32_t* allowed, SampleResult& result) const;
  void sample_whole_rows(float* logits, int64_t count, SampleRow* const* rows, const uint32_t* const* allowed,
                         SampleResult* results);
  void sample_split_rows(float* logits, int64_t count, SampleRow* const* rows, const uint32_t* const* allowed,
                         SampleResult* results);

  template <class Find, class Take>
  void for_groups(int64_t block, Find&& find, Take&& take) const;

  bool scan(Work& work, const float* x, int64_t first_block, int64_t last_block) const;
  void prepare(Work& work, float* x, SampleRow& row, const uint32_t* allowed, SampleResult& result) const;
  Winner draw(const Work& work, const float* x, int64_t first_block, int64_t last_block) const;
  void finish(const Work& work, const float* x, const SampleRow& row, SampleResult& result) const;

  // What needs the kept tokens in work.candidates, in chain.cpp.
  struct Surprise {
    double total = 0, log_total = 0, expected = 0;
  };
  static bool needs_list(const SampleSettings& settings);
  int32_t draw_listed(Work& work, const float* x, SampleRow& row, float max) const;
  void list_truncated(Work& work, const float* x, const SampleSettings& settings, float max) const;
  float sigma_threshold(const float* x, double n, float max) const;
  static Candidate best_of(const Work& work);
  static Surprise surprise_of(Work& work, float max);
  static void keep_typical(Work& work, double p);
  static void exclude_top(Work& work, double threshold);
  static double temperature_of(Work& work, const SampleSettings& settings);
  static double keep_mirostat(Work& work, const SampleRow& row, int64_t vocabulary);
  static Candidate draw_candidate(const Work& work, double temperature, TokenKey key);

  bool find_log_probabilities(Work& work, const float* x) const;
  int32_t list_top(Work& work, const float* x, int32_t tops, int32_t* ids, float* logprobs) const;
  bool adjust(Work& work, float* x, const SampleRow& row) const;
  void suppress(Work& work, float* x, const SampleRow& row, const uint32_t* allowed) const;
  void set(Work& work, float* x, int32_t id, float value, bool remember) const;
  Candidate likeliest(const Work& work, const float* x) const;
  Candidate truncate(Work& work, const float* x, const SampleSettings& settings, float max) const;
  Candidate keep_top_k(Work& work, const float* x, int64_t k, float max) const;
  Candidate keep_top_p(Work& work, const float* x, double p, float max) const;
  double fill_buckets(Work& work, const float* x, Measure measure, float max) const;
  Candidate keep_by_buckets(Work& work, const float* x, Measure measure, double needed, float max) const;
  void gather(Work& work, const float* x, float low, float high) const;
  void gather_top(Work& work, const float* x, int64_t k) const;
  double total_mass(const Work& work, const float* x, float max) const;
  static double measured(const Work& work, size_t begin, size_t end, Measure measure, float max);
  static Candidate keep_head(Work& work, Measure measure, double needed, float max);

  int64_t vocabulary_;
  int64_t blocks_;
  Pool& pool_;
  const SampleKernels& kernels_;
  std::vector<Work> works_;  // one a thread
};

// Calls take(begin, end) for the groups of a block that find(i, whole) points at, and for its incomplete one.
template <class Find, class Take>
void Sampler::for_groups(int64_t block, Find&& find, Take&& take) const {
  const int64_t end = std::min((block + 1) * kSampleBlock, vocabulary_);
  const int64_t whole = end - end % kSampleGroup;  // blocks start at multiples of the group
  int64_t i = block * kSampleBlock;
  while (i < whole) {
    i += find(i, whole);
    if (i < whole) take(i, i + kSampleGroup);
    i += kSampleGroup;
  }
  take(whole, end);
}

}  // namespace headrace
