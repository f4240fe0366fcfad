// Dense passes over one row of logits; what to do with their results is native/sample/sampler.cpp.
#pragma once
#include "../platform/isa.hpp"
#include "../sample/deterministic_math.hpp"

namespace headrace {

inline constexpr int64_t kSampleBlock = 256;  // entries that share one maximum
inline constexpr int64_t kSampleGroup = 64;   // grain of the searches
// Buckets of entries by their distance from the maximum, 0 to kMassless; entries beyond go to the spare
// ones after them, spread out because adding to one number again and again is slow.
inline constexpr int kBuckets = 4096;
inline constexpr int kSpareBuckets = 16;
inline constexpr float kBucketsPerUnit = kBuckets / kMassless;

struct DrawBound {
  TokenKey key;
  float max = 0;  // of the row
  float inverse_temperature = 1;
  float cut = 0;    // entries below it are not drawn
  float bound = 0;  // scores below it cannot win
};

struct SampleKernels {
  // maxima[b] of each block of x [n]; false where an entry is NaN or +inf.
  bool (*block_maxima)(const float* x, int64_t n, float* maxima);
  // Sum of mass(x[i], max) over x [n], exact, hence the same on every ISA.
  double (*mass_sum)(const float* x, int64_t n, float max);
  // index[i] and weight[i] = exp(x[i] - max), not rounded to a mass yet, of each of n <= kSampleBlock entries;
  // both hold kSampleBlock entries.
  void (*bucket)(const float* x, int64_t n, float max, int32_t* index, float* weight);
  // Start of the first group of kSampleGroup entries in x [n], n a multiple of that, in which an entry lies in
  // [low, high]; n where there is none.
  int64_t (*find_between)(const float* x, int64_t n, float low, float high);
  // Start of the first group, as above, in which an entry >= cut has score_bound >= bound; n where there is none. first_id is the id of x[0].
  int64_t (*find_candidates)(const float* x, int64_t n, int32_t first_id, const DrawBound& draw);
};

const SampleKernels& sample_kernels(Isa isa);

}  // namespace headrace
