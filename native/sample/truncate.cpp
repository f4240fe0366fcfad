// Which tokens top_k, top_p and min_p keep: a cut in the order of likelihood, found without sorting.
//
// Small cuts come from the few blocks whose maxima reach them. Otherwise one pass sums counts or masses by
// distance from the maximum, and only the bucket with the cut is read token by token.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <functional>

#include "sampler.hpp"

namespace headrace {

// The last token, in order of likelihood, that top_k, top_p and min_p keep.
Sampler::Candidate Sampler::truncate(Work& work, const float* x, const SampleSettings& settings, float max) const {
  Candidate last{-FLT_MAX, INT32_MAX};
  const bool by_count = settings.top_k > 0 && settings.top_k < vocabulary_;
  if (by_count) last = keep_top_k(work, x, settings.top_k, max);
  if (settings.top_p < 1 && by_count) {
    last = keep_head(work, Measure::mass, settings.top_p * measured(work, 0, work.candidates.size(), Measure::mass, max), max);
  } else if (settings.top_p < 1) {
    last = keep_top_p(work, x, settings.top_p, max);
  }
  const float lowest = static_cast<float>(static_cast<double>(max) + settings.log_min_p);
  return lowest > last.value ? Candidate{lowest, INT32_MAX} : last;
}

// Leaves the k likeliest tokens in work.candidates.
Sampler::Candidate Sampler::keep_top_k(Work& work, const float* x, int64_t k, float max) const {
  if (k <= blocks_) {
    gather_top(work, x, k);
    return *std::max_element(work.candidates.begin(), work.candidates.end());
  }
  fill_buckets(work, x, Measure::count, max);
  const Candidate last = keep_by_buckets(work, x, Measure::count, static_cast<double>(k), max);
  gather(work, x, last.value, FLT_MAX);
  std::erase_if(work.candidates, [&](const Candidate& candidate) { return last < candidate; });
  return last;
}

Sampler::Candidate Sampler::keep_top_p(Work& work, const float* x, double p, float max) const {
  const auto high = std::count_if(work.maxima.begin(), work.maxima.end(), [&](float m) { return m >= max - 5; });
  if (high <= 64) {  // a few tokens probably have most of the mass: look there first
    const double needed = p * total_mass(work, x, max);
    gather(work, x, max - 5, FLT_MAX);
    if (measured(work, 0, work.candidates.size(), Measure::mass, max) >= needed) {
      return keep_head(work, Measure::mass, needed, max);
    }
  }
  return keep_by_buckets(work, x, Measure::mass, p * fill_buckets(work, x, Measure::mass, max), max);
}

// Sums by distance from the maximum; returns the sum of all that is not in the spare buckets.
double Sampler::fill_buckets(Work& work, const float* x, Measure measure, float max) const {
  int32_t index[kSampleBlock];
  float weight[kSampleBlock];
  std::fill(work.buckets.begin(), work.buckets.end(), 0.0);
  for (int64_t b = 0; b < blocks_; ++b) {
    if (work.maxima[static_cast<size_t>(b)] < max - kMassless) continue;
    const int64_t count = std::min(kSampleBlock, vocabulary_ - b * kSampleBlock);
    kernels_.bucket(x + b * kSampleBlock, count, max, index, weight);
    for (int64_t i = 0; i < count; ++i) {
      const double amount = measure == Measure::count ? 1.0 : rounded_mass(weight[i]);
      work.buckets[static_cast<size_t>(index[i])] += amount;
    }
  }
  double total = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) total += work.buckets[static_cast<size_t>(bucket)];
  return total;
}

// The last of the shortest head that measures `needed`: the buckets show where it is.
Sampler::Candidate Sampler::keep_by_buckets(Work& work, const float* x, Measure measure, double needed,
                                            float max) const {
  double found = 0;
  int bucket = 0;
  while (bucket < kBuckets && found + work.buckets[static_cast<size_t>(bucket)] < needed) {
    found += work.buckets[static_cast<size_t>(bucket++)];
  }
  if (bucket == kBuckets) {  // top_k reaches far down
    gather(work, x, -FLT_MAX, FLT_MAX);
    return keep_head(work, measure, needed, max);
  }
  // A little more than the bucket's range, because of rounding; then exactly the bucket.
  const float margin = 1e-3f + std::fabs(max) * 1e-6f;
  gather(work, x, max - static_cast<float>(bucket + 1) / kBucketsPerUnit - margin,
         max - static_cast<float>(bucket) / kBucketsPerUnit + margin);
  std::erase_if(work.candidates, [&](const Candidate& candidate) {
    const float distance = max - candidate.value;
    return !(distance < kMassless) || static_cast<int>(distance * kBucketsPerUnit) != bucket;
  });
  return keep_head(work, measure, needed - found, max);
}

double Sampler::measured(const Work& work, size_t begin, size_t end, Measure measure, float max) {
  if (measure == Measure::count) return static_cast<double>(end - begin);
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += mass(work.candidates[i].value, max);
  return sum;
}

// Leaves the shortest head of the candidates that measures `needed`, or all; returns its last.
Sampler::Candidate Sampler::keep_head(Work& work, Measure measure, double needed, float max) {
  std::vector<Candidate>& kept = work.candidates;
  size_t low = 0, high = kept.size();  // the best `low` lack something, the best `high` do not
  double found = 0;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(kept.begin() + static_cast<ptrdiff_t>(low), kept.begin() + static_cast<ptrdiff_t>(middle),
                     kept.begin() + static_cast<ptrdiff_t>(high));
    const double more = measured(work, low, middle, measure, max);
    if (found + more >= needed) {
      high = middle;
    } else {
      found += more;
      low = middle;
    }
  }
  kept.resize(high);
  return *std::max_element(kept.begin(), kept.end());
}

// The tokens with low <= logit <= high, in order of their ids.
void Sampler::gather(Work& work, const float* x, float low, float high) const {
  low = std::max(low, -FLT_MAX);
  work.candidates.clear();
  const auto take = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (x[i] >= low && x[i] <= high) work.candidates.push_back({x[i], static_cast<int32_t>(i)});
    }
  };
  for (int64_t b = 0; b < blocks_; ++b) {
    if (work.maxima[static_cast<size_t>(b)] < low) continue;
    for_groups(b, [&](int64_t i, int64_t whole) { return kernels_.find_between(x + i, whole - i, low, high); }, take);
  }
}

// The k likeliest tokens, in no order; fewer where fewer can be drawn.
void Sampler::gather_top(Work& work, const float* x, int64_t k) const {
  float threshold = -FLT_MAX;
  if (k <= blocks_) {  // k blocks reach the k-th largest maximum, so k entries do
    work.sorted_maxima = work.maxima;
    const auto kth = work.sorted_maxima.begin() + (k - 1);
    std::nth_element(work.sorted_maxima.begin(), kth, work.sorted_maxima.end(), std::greater<>());
    threshold = *kth;
  }
  gather(work, x, threshold, FLT_MAX);
  std::vector<Candidate>& kept = work.candidates;
  if (static_cast<int64_t>(kept.size()) <= k) return;
  std::nth_element(kept.begin(), kept.begin() + k, kept.end());
  kept.resize(static_cast<size_t>(k));
}

double Sampler::total_mass(const Work& work, const float* x, float max) const {
  const auto matters = [&](int64_t b) { return b < blocks_ && work.maxima[static_cast<size_t>(b)] >= max - kMassless; };
  double total = 0;
  for (int64_t b = 0; b < blocks_; ++b) {
    const int64_t first = b;
    while (matters(b)) ++b;
    const int64_t begin = first * kSampleBlock, end = std::min(b * kSampleBlock, vocabulary_);
    if (begin < end) total += kernels_.mass_sum(x + begin, end - begin, max);
  }
  return total;
}

}  // namespace headrace
