// Dense passes over a row of logits [V] float32: block maxima, sum of exponentials, search for tokens
// that might win the draw.
//
// Determinism: maxima are exact, masses are multiples of 2^-34 whose float64 sums are exact, and the
// search only has to find a superset of the possible winners: exact scores are computed by the caller.
// So results do not depend on vector width, order or the number of threads.
#include "sample.hpp"

#include "simd.hpp"

namespace headrace::HEADRACE_NAMESPACE {

typedef uint32_t U __attribute__((vector_size(kWidth * 4)));
typedef double D __attribute__((vector_size(kWidth * 4)));  // kWidth / 2 lanes
inline constexpr int kHalf = kWidth / 2;

static inline bool any(I mask) {
#if defined(HEADRACE_ISA_avx512)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(HEADRACE_ISA_avx2)
  return _mm256_testz_si256((__m256i)mask, (__m256i)mask) == 0;
#else
  uint64_t lanes[2];
  memcpy(lanes, &mask, sizeof lanes);
  return (lanes[0] | lanes[1]) != 0;
#endif
}

static inline F infinity() { return splat(__builtin_inff()); }

static bool block_maxima(const float* x, int64_t n, float* maxima) {
  I fine = splat_int(-1);  // lanes turn 0 where an entry is not below +inf
  int64_t i = 0;
  for (; i + kSampleBlock <= n; i += kSampleBlock) {
    F high[4] = {-infinity(), -infinity(), -infinity(), -infinity()};
    for (int64_t j = 0; j < kSampleBlock; j += 4 * kWidth) {
      for (int lane = 0; lane < 4; ++lane) {
        const F a = load(x + i + j + lane * kWidth);
        fine &= (I)(a < infinity());
        high[lane] = max(a, high[lane]);
      }
    }
    maxima[i / kSampleBlock] = reduce_max(max(max(high[0], high[1]), max(high[2], high[3])));
  }
  bool finite = !any(~fine);
  if (i < n) {
    float high = -__builtin_inff();
    for (int64_t j = i; j < n; ++j) {
      finite = finite && x[j] < __builtin_inff();
      high = x[j] > high ? x[j] : high;
    }
    maxima[i / kSampleBlock] = high;
  }
  return finite;
}

// As pinned_exp, on kWidth lanes: the same operations in the same order.
static inline F exp_lanes(F x) {
  x = x < splat(-30.0f) ? splat(-30.0f) : x;
  const F n = (x * splat(1.44269504f) + splat(12582912.0f)) - splat(12582912.0f);
  const F r = (x - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
  F p = splat(1.0f / 5040.0f);
  p = p * r + splat(1.0f / 720.0f);
  p = p * r + splat(1.0f / 120.0f);
  p = p * r + splat(1.0f / 24.0f);
  p = p * r + splat(1.0f / 6.0f);
  p = p * r + splat(0.5f);
  p = p * r + splat(1.0f);
  p = p * r + splat(1.0f);
  return p * (F)((__builtin_convertvector(n, I) + 127) << 23);
}

struct Halves {
  D low, high;
};

static inline Halves widened(F x) {  // GCC makes poor code of the portable form
#if defined(HEADRACE_ISA_avx512)
  return {(D)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)),
          (D)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1))};
#elif defined(HEADRACE_ISA_avx2)
  return {(D)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)),
          (D)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1))};
#else
  typedef float HalfF __attribute__((vector_size(kWidth * 2)));
  HalfF halves[2];
  memcpy(halves, &x, sizeof x);
  return {__builtin_convertvector(halves[0], D), __builtin_convertvector(halves[1], D)};
#endif
}

static double mass_sum(const float* x, int64_t n, float max) {
  const D rounding = kMassRounding - D{};
  D low_sum = {}, high_sum = {};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const F weight = exp_lanes(load(x + i) - splat(max));
    const Halves wide = widened(weight);
    low_sum += (wide.low + rounding) - rounding;
    high_sum += (wide.high + rounding) - rounding;
  }
  double total = 0;
  for (int lane = 0; lane < kHalf; ++lane) total += low_sum[lane] + high_sum[lane];
  for (; i < n; ++i) total += mass(x[i], max);
  return total;
}

static void bucket(const float* x, int64_t n, float max, int32_t* index, float* weight) {
  I ramp;
  for (int lane = 0; lane < kWidth; ++lane) ramp[lane] = lane;
  const F limit = splat(kMassless);
  for (int64_t i = 0; i < n; i += kWidth) {
    const F logit = n - i < kWidth ? load_partial(x + i, static_cast<int>(n - i)) : load(x + i);
    const F distance = splat(max) - logit;
    const F scaled = (distance < limit ? distance : limit) * splat(kBucketsPerUnit);
    const I place = distance < limit ? __builtin_convertvector(scaled, I) : ramp + kBuckets;
    const F power = exp_lanes(logit - splat(max));
    memcpy(index + i, &place, sizeof place);
    store(weight + i, power);
  }
}

static int64_t find_between(const float* x, int64_t n, float low, float high) {
  for (int64_t i = 0; i < n; i += kSampleGroup) {
    I found = {};
    for (int64_t j = 0; j < kSampleGroup; j += kWidth) {
      const F logit = load(x + i + j);
      found |= (I)(logit >= splat(low)) & (I)(logit <= splat(high));
    }
    if (any(found)) return i;
  }
  return n;
}

static inline U token_bits_lanes(U hashed_id, TokenKey key) {  // from id * kIdMultiplier + key.first
  U x = (hashed_id ^ (hashed_id >> 16)) * (kMixMultiplier1 - U{});
  x = ((x ^ (x >> 15)) + key.second) * (kMixMultiplier2 - U{});
  return x ^ (x >> 16);
}

static int64_t find_candidates(const float* x, int64_t n, int32_t first_id, const DrawBound& draw) {
  U ramp;
  for (int lane = 0; lane < kWidth; ++lane) ramp[lane] = static_cast<uint32_t>(first_id + lane);
  U hashed = ramp * kIdMultiplier + draw.key.first;
  const F top = splat(draw.max), inverse = splat(draw.inverse_temperature);
  const F cut = splat(draw.cut), bound = splat(draw.bound - kBoundOffset);
  for (int64_t i = 0; i < n; i += kSampleGroup) {
    I possible = {};
    for (int64_t j = 0; j < kSampleGroup; j += kWidth) {
      const F logit = load(x + i + j);
      const F v = __builtin_convertvector((I)(token_bits_lanes(hashed, draw.key) >> 1), F);
      const F v_bits = __builtin_convertvector((I)v, F);
      const F score = fma(logit - top, inverse, v_bits * splat(-kBoundSlope));
      possible |= (I)(score >= bound) & (I)(logit >= cut);
      hashed += static_cast<uint32_t>(kWidth) * kIdMultiplier;
    }
    if (any(possible)) return i;
  }
  return n;
}

}  // namespace headrace::HEADRACE_NAMESPACE

namespace headrace {
extern const SampleKernels HEADRACE_TABLE(sample);
const SampleKernels HEADRACE_TABLE(sample) = {HEADRACE_NAMESPACE::block_maxima, HEADRACE_NAMESPACE::mass_sum,
                                             HEADRACE_NAMESPACE::bucket, HEADRACE_NAMESPACE::find_between,
                                             HEADRACE_NAMESPACE::find_candidates};
}  // namespace headrace
