// The chain of one row: log-probabilities of the raw logits, then bias, penalties and suppression in
// place, then truncation, then the draw. The definition is headrace/sample/reference.py.
//
// Two facts save most of the work. Each block of 256 logits has its maximum, so passes skip blocks that
// cannot matter. And Gumbel noise is cheap to bound from above, so exact scores, in float64, are
// computed only for the few tokens that might still win.
//
// Determinism: every number is a function of the row alone; the winner is the largest (score, then the
// lowest id), which is the same in any order, so rows and blocks may be spread over threads freely.
#include "sampler.hpp"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <climits>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

constexpr float kNone = -__builtin_inff();  // the logit of a token that cannot be drawn
constexpr int64_t kSingleThread = 8192;     // so few logits take one thread less time than a barrier takes

}  // namespace

Sampler::Sampler(int64_t vocabulary, Pool& pool, Isa isa)
    : vocabulary_(vocabulary),
      blocks_((vocabulary + kSampleBlock - 1) / kSampleBlock),
      pool_(pool),
      kernels_(sample_kernels(isa)) {
  if (vocabulary < 1 || vocabulary > kMaxSampleVocabulary) {
    throw std::invalid_argument("a vocabulary of " + std::to_string(vocabulary) + " cannot be sampled: 1 to " +
                                std::to_string(kMaxSampleVocabulary) + " entries can");
  }
  works_.resize(static_cast<size_t>(pool.threads()));
  for (Work& work : works_) {  // everything is allocated here: threads of the pool must not throw
    work.maxima.resize(static_cast<size_t>(blocks_));
    work.stale.resize(static_cast<size_t>(blocks_));
    work.sorted_maxima.reserve(static_cast<size_t>(blocks_));
    work.candidates.reserve(static_cast<size_t>(vocabulary));
    work.buckets.resize(kBuckets + kSpareBuckets);
  }
}

void Sampler::sample(float* logits, int64_t count, SampleRow* const* rows, const uint32_t* const* allowed,
                     SampleResult* results) {
  size_t adjusted = 0;
  for (int64_t r = 0; r < count; ++r) {
    const SampleSettings& settings = rows[r]->settings();
    if (settings.logprobs < 0) continue;
    adjusted = std::max(adjusted, settings.logit_bias.size() + rows[r]->seen().size() + rows[r]->dry().size() +
                                      rows[r]->banned().size() + settings.ends.size());
  }
  for (Work& work : works_) work.raw.reserve(adjusted);
  if (count * vocabulary_ <= kSingleThread) {
    for (int64_t r = 0; r < count; ++r) sample_row(works_[0], logits + r * vocabulary_, *rows[r], allowed[r], results[r]);
  } else if (count >= pool_.threads()) {
    sample_whole_rows(logits, count, rows, allowed, results);
  } else if (count > 0) {
    sample_split_rows(logits, count, rows, allowed, results);
  }
}

// Finds the sum of all masses; false where the row is not finite.
bool Sampler::find_log_probabilities(Work& work, const float* x) const {
  work.finite = scan(work, x, 0, blocks_);
  work.raw_max = *std::max_element(work.maxima.begin(), work.maxima.end());
  if (!work.finite || work.raw_max == kNone) return false;
  work.log_total = pinned_log(total_mass(work, x, work.raw_max));
  return true;
}

int32_t Sampler::list_top(Work& work, const float* x, int32_t tops, int32_t* ids, float* logprobs) const {
  if (tops == 0) return 0;
  gather_top(work, x, tops);
  std::sort(work.candidates.begin(), work.candidates.end());
  int32_t count = 0;
  for (const Candidate& candidate : work.candidates) {
    ids[count] = candidate.id;
    const double distance = static_cast<double>(candidate.value) - static_cast<double>(work.raw_max);
    logprobs[count++] = static_cast<float>(distance - work.log_total);
  }
  return count;
}

void Sampler::score(const float* logits, int64_t count, const int32_t* rows, const int32_t* tokens, int32_t tops,
                    ScoreResult* results) {
  std::atomic<int64_t> next{0};
  pool_.run([&](int part, int) {
    Work& work = works_[static_cast<size_t>(part)];
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      const float* x = logits + rows[i] * vocabulary_;
      ScoreResult& result = results[i];
      if (!find_log_probabilities(work, x)) {
        result.fault = SampleFault::not_finite;
        continue;
      }
      result.top_count = list_top(work, x, tops, result.top_ids, result.top_logprobs);
      const float own = x[tokens[i]];
      const double distance = static_cast<double>(own) - static_cast<double>(work.raw_max);
      result.logprob = static_cast<float>(distance - work.log_total);
      result.rank = 1 + static_cast<int32_t>(std::count_if(x, x + vocabulary_, [own](float other) { return other > own; }));
    }
  });
}

void Sampler::top(const float* logits, int64_t count, const int32_t* rows, int32_t tops, int32_t* ids, float* logprobs) {
  std::fill(ids, ids + count * tops, -1);
  std::atomic<int64_t> next{0};
  pool_.run([&](int part, int) {
    Work& work = works_[static_cast<size_t>(part)];
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      const float* x = logits + rows[i] * vocabulary_;
      if (find_log_probabilities(work, x)) list_top(work, x, tops, ids + i * tops, logprobs + i * tops);
    }
  });
}

void Sampler::sample_whole_rows(float* logits, int64_t count, SampleRow* const* rows,
                                const uint32_t* const* allowed, SampleResult* results) {
  std::atomic<int64_t> next{0};
  pool_.run([&](int part, int) {
    Work& work = works_[static_cast<size_t>(part)];
    for (int64_t r = next.fetch_add(1); r < count; r = next.fetch_add(1)) {
      sample_row(work, logits + r * vocabulary_, *rows[r], allowed[r], results[r]);
    }
  });
}

void Sampler::sample_row(Work& work, float* x, SampleRow& row, const uint32_t* allowed, SampleResult& result) const {
  work.finite = scan(work, x, 0, blocks_);
  prepare(work, x, row, allowed, result);
  if (work.drawing) result.token = draw(work, x, 0, blocks_).id;
  finish(work, x, row, result);
}

// Fewer rows than threads: all threads share the blocks of every row.
void Sampler::sample_split_rows(float* logits, int64_t count, SampleRow* const* rows,
                                const uint32_t* const* allowed, SampleResult* results) {
  const size_t threads = static_cast<size_t>(pool_.threads());
  std::vector<uint8_t> finite(static_cast<size_t>(count) * threads);
  std::vector<Winner> winners(static_cast<size_t>(count) * threads);
  const auto slot = [&](int64_t r, int part) { return static_cast<size_t>(r) * threads + static_cast<size_t>(part); };
  const auto gather = [&](int part, int parts) {  // one row each
    Work& work = works_[static_cast<size_t>(part)];
    work.finite = true;
    for (int p = 0; p < parts; ++p) work.finite = work.finite && finite[slot(part, p)];
    prepare(work, logits + part * vocabulary_, *rows[part], allowed[part], results[part]);
  };
  const auto decide = [&](int part, int parts) {
    const Work& work = works_[static_cast<size_t>(part)];
    if (work.drawing) {
      Winner winner = work.start;
      for (int p = 0; p < parts; ++p) winner.take(winners[slot(part, p)].score, winners[slot(part, p)].id);
      results[part].token = winner.id;
    }
    finish(work, logits + part * vocabulary_, *rows[part], results[part]);
  };
  pool_.run_phases(4, [&](int phase, int part, int parts) {
    if (phase == 1 && part < count) gather(part, parts);
    if (phase == 3 && part < count) decide(part, parts);
    if (phase == 1 || phase == 3) return;
    const int64_t first = blocks_ * part / parts, last = blocks_ * (part + 1) / parts;
    for (int64_t r = 0; r < count; ++r) {
      const float* x = logits + r * vocabulary_;
      Work& work = works_[static_cast<size_t>(r)];
      if (phase == 0) finite[slot(r, part)] = scan(work, x, first, last);
      if (phase == 2 && work.drawing) winners[slot(r, part)] = draw(work, x, first, last);
    }
  });
}

bool Sampler::scan(Work& work, const float* x, int64_t first_block, int64_t last_block) const {
  const int64_t begin = first_block * kSampleBlock, end = std::min(last_block * kSampleBlock, vocabulary_);
  return kernels_.block_maxima(x + begin, end - begin, work.maxima.data() + first_block);
}

void Sampler::prepare(Work& work, float* x, SampleRow& row, const uint32_t* allowed, SampleResult& result) const {
  const SampleSettings& settings = row.settings();
  result = {};
  work.drawing = false;
  work.raw.clear();
  work.raw_max = *std::max_element(work.maxima.begin(), work.maxima.end());
  if (!work.finite || work.raw_max == kNone) {
    result.fault = SampleFault::not_finite;
    return;
  }
  if (settings.logprobs >= 0) {
    work.log_total = pinned_log(total_mass(work, x, work.raw_max));
    result.top_count = list_top(work, x, settings.logprobs, result.top_ids, result.top_logprobs);
  }
  std::fill(work.stale.begin(), work.stale.end(), uint8_t{0});
  if (!adjust(work, x, row)) {
    result.fault = SampleFault::unknown_token;
    return;
  }
  suppress(work, x, row, allowed);
  for (int64_t b = 0; b < blocks_; ++b) {
    if (work.stale[static_cast<size_t>(b)]) scan(work, x, b, b + 1);
  }
  const Candidate best = likeliest(work, x);
  if (best.value == kNone) {
    result.fault = SampleFault::nothing_left;
  } else if (needs_list(settings)) {
    result.token = draw_listed(work, x, row, best.value);
  } else if (settings.temperature == 0) {
    result.token = best.id;
  } else {
    work.drawing = true;
    work.temperature = settings.temperature;
    work.last = truncate(work, x, settings, best.value);
    work.bound.key = token_key(settings.seed, settings.choice, row.position());
    work.bound.max = best.value;
    work.bound.inverse_temperature = static_cast<float>(std::min(1 / settings.temperature, 1e30));
    work.bound.cut = work.last.value;
    work.start = {gumbel(token_bits(best.id, work.bound.key)), best.id};
  }
}

void Sampler::set(Work& work, float* x, int32_t id, float value, bool remember) const {
  if (remember) work.raw.emplace_back(id, x[id]);
  x[id] = std::min(value, FLT_MAX);  // a tiny repetition penalty overflows
  work.stale[static_cast<size_t>(id / kSampleBlock)] = 1;
}

bool Sampler::adjust(Work& work, float* x, const SampleRow& row) const {
  const SampleSettings& settings = row.settings();
  const bool remember = settings.logprobs >= 0;
  for (const auto& [id, bias] : settings.logit_bias) {
    if (id >= vocabulary_) return false;
    set(work, x, id, x[id] + bias, remember);
  }
  for (const auto& [id, count, outputs] : row.seen()) {
    if (id < 0 || id >= vocabulary_) continue;  // it has no logit that could be changed
    float value = x[id];
    if (settings.repetition_penalty != 1) {
      value = value > 0 ? value / settings.repetition_penalty : value * settings.repetition_penalty;
    }
    if (outputs > 0) {
      value -= settings.presence_penalty;
      value -= settings.frequency_penalty * static_cast<float>(outputs);
    }
    set(work, x, id, value, remember);
  }
  for (const auto& [id, penalty] : row.dry()) {
    if (id < vocabulary_) set(work, x, id, x[id] - penalty, remember);
  }
  return true;
}

void Sampler::suppress(Work& work, float* x, const SampleRow& row, const uint32_t* allowed) const {
  const SampleSettings& settings = row.settings();
  if (row.position() < static_cast<uint64_t>(settings.min_tokens)) {
    for (const int32_t id : settings.ends) {
      if (id >= 0 && id < vocabulary_) set(work, x, id, kNone, settings.logprobs >= 0);
    }
  }
  for (const int32_t id : row.banned()) {
    if (id >= 0 && id < vocabulary_) set(work, x, id, kNone, settings.logprobs >= 0);
  }
  if (allowed == nullptr) return;
  for (int64_t first = 0; first < vocabulary_; first += 32) {
    const uint32_t word = allowed[first / 32];
    if (word == UINT32_MAX) continue;
    const int64_t count = std::min<int64_t>(32, vocabulary_ - first);
    for (int64_t i = 0; i < count; ++i) {
      if (((word >> i) & 1u) == 0) x[first + i] = kNone;
    }
    work.stale[static_cast<size_t>(first / kSampleBlock)] = 1;
  }
}

Sampler::Candidate Sampler::likeliest(const Work& work, const float* x) const {
  const auto highest = std::max_element(work.maxima.begin(), work.maxima.end());  // the first of equals
  int64_t id = (highest - work.maxima.begin()) * kSampleBlock;
  while (x[id] != *highest) ++id;
  return {x[id], static_cast<int32_t>(id)};
}

Sampler::Winner Sampler::draw(const Work& work, const float* x, int64_t first_block, int64_t last_block) const {
  Winner best = work.start;
  DrawBound bound = work.bound;
  const auto rescore = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t id = static_cast<int32_t>(i);
      if (work.last < Candidate{x[i], id}) continue;
      const uint32_t bits = token_bits(id, bound.key);
      if (score_bound(x[i], bound.max, bound.inverse_temperature, bits) < bound.bound) continue;
      const double distance = (static_cast<double>(x[i]) - static_cast<double>(bound.max)) / work.temperature;
      best.take(distance + gumbel(bits), id);
      bound.bound = static_cast<float>(best.score) - kBoundSlack;
    }
  };
  bound.bound = static_cast<float>(best.score) - kBoundSlack;
  const auto find = [&](int64_t i, int64_t whole) {
    return kernels_.find_candidates(x + i, whole - i, static_cast<int32_t>(i), bound);
  };
  for (int64_t b = first_block; b < last_block; ++b) {
    const float high = work.maxima[static_cast<size_t>(b)];
    if (high < bound.cut || (high - bound.max) * bound.inverse_temperature + kLargestNoise < bound.bound) continue;
    for_groups(b, find, rescore);
  }
  return best;
}

void Sampler::finish(const Work& work, const float* x, const SampleRow& row, SampleResult& result) const {
  if (row.settings().logprobs < 0 || result.fault != SampleFault::none) return;
  float raw = x[result.token];
  for (auto entry = work.raw.rbegin(); entry != work.raw.rend(); ++entry) {  // its first change is found last
    if (entry->first == result.token) raw = entry->second;
  }
  const double distance = static_cast<double>(raw) - static_cast<double>(work.raw_max);
  result.logprob = static_cast<float>(distance - work.log_total);
}

}  // namespace headrace
