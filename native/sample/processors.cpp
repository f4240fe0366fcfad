// The stages that look at more than the order of likelihood: top_n_sigma, typical_p, xtc, dynamic temperature and
// mirostat. The remaining tokens are in work.candidates. The definition is headrace/sample/chain.py.
//
// Determinism: sums of masses are exact; sums that are not (entropies, variances) go by ascending ids.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "sampler.hpp"

namespace headrace {
namespace {

constexpr double kLn2 = 0.6931471805599453;
constexpr int64_t kMirostatTokens = 100;  // by which mirostat 1 estimates the distribution's exponent

double distance_at(float x, float max, double temperature) {
  return std::max((static_cast<double>(x) - static_cast<double>(max)) / temperature, -1e30);
}

double mass_at(double distance) { return rounded_mass(pinned_exp(static_cast<float>(distance))); }

// The number of tokens, of `count` at `distances` (falling; `listed` of them), that mirostat 1 keeps.
int64_t zipf_count(const double* distances, int64_t listed, int64_t count, double mu, int64_t vocabulary) {
  double products = 0, squares = 0;
  for (int64_t i = 0; i + 1 < listed; ++i) {
    const double t = pinned_log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    products += t * (distances[i] - distances[i + 1]);
    squares += t * t;
  }
  if (products <= 0) return count;
  const double s = products / squares;
  const double epsilon = s - 1, log_vocabulary = pinned_log(static_cast<double>(vocabulary));
  const double ratio = std::fabs(epsilon) < 1e-9
                           ? 1 / log_vocabulary
                           : epsilon / (1 - exp_wide(std::clamp(-epsilon * log_vocabulary, -700.0, 700.0)));
  const double log_k = (pinned_log(ratio) + mu * kLn2) / s;
  return static_cast<int64_t>(exp_wide(std::min(std::max(log_k, 0.0), pinned_log(static_cast<double>(count)))));
}

}  // namespace

bool Sampler::needs_list(const SampleSettings& settings) {
  return settings.mirostat != 0 || settings.top_n_sigma > 0 || settings.typical_p < 1 || settings.xtc_probability > 0 ||
         settings.dynatemp_range > 0;
}

int32_t Sampler::draw_listed(Work& work, const float* x, SampleRow& row, float max) const {
  const SampleSettings& settings = row.settings();
  const TokenKey key = token_key(settings.seed, settings.choice, row.position());
  if (settings.mirostat != 0) {
    gather(work, x, -FLT_MAX, FLT_MAX);
    const double total = keep_mirostat(work, row, vocabulary_);
    const Candidate drawn = draw_candidate(work, settings.temperature, key);
    const double observed = (pinned_log(total) - distance_at(drawn.value, max, settings.temperature)) / kLn2;
    row.expect(drawn.id, row.mu() - settings.mirostat_eta * (observed - settings.mirostat_tau));
    return drawn.id;
  }
  list_truncated(work, x, settings, max);
  if (coin(settings.seed, settings.choice, row.position()) < settings.xtc_probability) {
    exclude_top(work, settings.xtc_threshold);
  }
  return draw_candidate(work, temperature_of(work, settings), key).id;
}

void Sampler::list_truncated(Work& work, const float* x, const SampleSettings& settings, float max) const {
  if (settings.top_n_sigma <= 0 && settings.typical_p >= 1) {
    const Candidate last = truncate(work, x, settings, max);
    gather(work, x, last.value, FLT_MAX);
    std::erase_if(work.candidates, [&](const Candidate& candidate) { return last < candidate; });
    return;
  }
  const float low = settings.top_n_sigma > 0 ? sigma_threshold(x, settings.top_n_sigma, max) : -FLT_MAX;
  if (settings.top_k > 0 && settings.top_k < vocabulary_) {
    keep_top_k(work, x, settings.top_k, max);
    std::erase_if(work.candidates, [&](const Candidate& candidate) { return candidate.value < low; });
  } else {
    gather(work, x, low, FLT_MAX);
  }
  if (settings.typical_p < 1) keep_typical(work, settings.typical_p);
  max = best_of(work).value;
  if (settings.top_p < 1) {
    keep_head(work, Measure::mass, settings.top_p * measured(work, 0, work.candidates.size(), Measure::mass, max), max);
  }
  const float lowest = static_cast<float>(static_cast<double>(max) + settings.log_min_p);
  std::erase_if(work.candidates, [&](const Candidate& candidate) { return candidate.value < lowest; });
}

float Sampler::sigma_threshold(const float* x, double n, float max) const {
  double sum = 0, squares = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < vocabulary_; ++i) {
    if (x[i] < -FLT_MAX) continue;
    sum += static_cast<double>(x[i]);
    ++count;
  }
  const double mean = sum / static_cast<double>(count);
  for (int64_t i = 0; i < vocabulary_; ++i) {
    if (x[i] < -FLT_MAX) continue;
    const double difference = static_cast<double>(x[i]) - mean;
    squares += difference * difference;
  }
  return static_cast<float>(static_cast<double>(max) - n * std::sqrt(squares / static_cast<double>(count)));
}

Sampler::Candidate Sampler::best_of(const Work& work) {
  return *std::min_element(work.candidates.begin(), work.candidates.end());
}

// Expected surprise in nats of the candidates, which it sorts by id.
Sampler::Surprise Sampler::surprise_of(Work& work, float max) {
  std::vector<Candidate>& kept = work.candidates;
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::is_sorted(kept.begin(), kept.end(), by_id)) std::sort(kept.begin(), kept.end(), by_id);
  Surprise all;
  all.total = measured(work, 0, kept.size(), Measure::mass, max);
  all.log_total = pinned_log(all.total);
  for (const Candidate& candidate : kept) {
    const double surprise = (static_cast<double>(max) - static_cast<double>(candidate.value)) + all.log_total;
    all.expected += mass(candidate.value, max) / all.total * surprise;
  }
  return all;
}

void Sampler::keep_typical(Work& work, double p) {
  std::vector<Candidate>& kept = work.candidates;
  const float max = best_of(work).value;
  std::erase_if(kept, [&](const Candidate& candidate) { return mass(candidate.value, max) == 0; });
  const Surprise all = surprise_of(work, max);
  const auto strangeness = [&](float value) {
    return std::fabs((static_cast<double>(max) - static_cast<double>(value)) + all.log_total - all.expected);
  };
  const auto bucket_of = [&](const Candidate& candidate) {
    const double bucket = strangeness(candidate.value) * static_cast<double>(kBucketsPerUnit);
    return bucket < kBuckets ? static_cast<int>(bucket) : kBuckets;
  };
  std::fill(work.buckets.begin(), work.buckets.end(), 0.0);
  for (const Candidate& candidate : kept) {
    work.buckets[static_cast<size_t>(bucket_of(candidate))] += mass(candidate.value, max);
  }
  double found = 0;
  int last = 0;  // the bucket of the last token that is kept
  while (last < kBuckets && found + work.buckets[static_cast<size_t>(last)] < p * all.total) {
    found += work.buckets[static_cast<size_t>(last++)];
  }
  std::erase_if(kept, [&](const Candidate& candidate) { return bucket_of(candidate) > last; });
  auto rest = std::partition(kept.begin(), kept.end(), [&](const Candidate& c) { return bucket_of(c) < last; });
  std::sort(rest, kept.end(), [&](const Candidate& a, const Candidate& b) {
    const double first = strangeness(a.value), second = strangeness(b.value);
    return first < second || (first == second && a < b);
  });
  while (rest != kept.end() && found < p * all.total) found += mass((rest++)->value, max);
  kept.erase(rest, kept.end());
}

// All that have a share of `threshold` but the least likely of them go (XTC; p-e-w 2024).
void Sampler::exclude_top(Work& work, double threshold) {
  std::vector<Candidate>& kept = work.candidates;
  const float max = best_of(work).value;
  const double needed = threshold * measured(work, 0, kept.size(), Measure::mass, max);
  Candidate last = best_of(work);
  for (const Candidate& candidate : kept) {
    if (last < candidate && mass(candidate.value, max) >= needed) last = candidate;
  }
  std::erase_if(kept, [&](const Candidate& candidate) { return candidate < last; });
}

double Sampler::temperature_of(Work& work, const SampleSettings& settings) {
  const double count = static_cast<double>(work.candidates.size());
  if (settings.dynatemp_range == 0 || count == 1) return settings.temperature;
  const double low = std::max(0.0, settings.temperature - settings.dynatemp_range);
  const double high = settings.temperature + settings.dynatemp_range;
  const double share = surprise_of(work, best_of(work).value).expected / pinned_log(count);
  if (!(share > 0)) return low;
  return low + (high - low) * exp_wide(std::max(settings.dynatemp_exponent * pinned_log(share), -700.0));
}

// Returns the mass of what is kept, at the temperature.
double Sampler::keep_mirostat(Work& work, const SampleRow& row, int64_t vocabulary) {
  std::vector<Candidate>& kept = work.candidates;
  const double temperature = row.settings().temperature;
  const Candidate best = best_of(work);
  const auto distance = [&](const Candidate& candidate) { return distance_at(candidate.value, best.value, temperature); };
  const auto total = [&] {
    double sum = 0;
    for (const Candidate& candidate : kept) sum += mass_at(distance(candidate));
    return sum;
  };
  const int64_t count = static_cast<int64_t>(kept.size());
  if (row.settings().mirostat == 1) {
    const int64_t listed = std::min(count, kMirostatTokens);
    std::partial_sort(kept.begin(), kept.begin() + listed, kept.end());
    double distances[kMirostatTokens];
    for (int64_t i = 0; i < listed; ++i) distances[i] = distance(kept[static_cast<size_t>(i)]);
    const int64_t k = zipf_count(distances, listed, count, row.mu(), vocabulary);
    if (k < count) std::nth_element(kept.begin(), kept.begin() + k, kept.end());
    kept.resize(static_cast<size_t>(std::min(k, count)));
  } else {
    const double log_total = pinned_log(total());
    std::erase_if(kept, [&](const Candidate& candidate) { return !((log_total - distance(candidate)) / kLn2 <= row.mu()); });
    if (kept.empty()) kept.push_back(best);
  }
  return total();
}

Sampler::Candidate Sampler::draw_candidate(const Work& work, double temperature, TokenKey key) {
  const Candidate top = best_of(work);
  if (temperature == 0) return top;
  const float inverse = static_cast<float>(std::min(1 / temperature, 1e30));
  Winner best{gumbel(token_bits(top.id, key)), top.id};
  float value = top.value;
  for (const Candidate& candidate : work.candidates) {
    const uint32_t bits = token_bits(candidate.id, key);
    if (score_bound(candidate.value, top.value, inverse, bits) < static_cast<float>(best.score) - kBoundSlack) continue;
    const double distance = (static_cast<double>(candidate.value) - static_cast<double>(top.value)) / temperature;
    best.take(distance + gumbel(bits), candidate.id);
    if (best.id == candidate.id) value = candidate.value;
  }
  return {value, best.id};
}

}  // namespace headrace
