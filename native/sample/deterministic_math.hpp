// Random numbers and pinned arithmetic of sampling; the definition is headrace/sample/reference.py.
//
// Everything here is elementwise with every rounding spelled out (no fused products), so a token is
// the same with every instruction set and in NumPy. All functions are static: files compiled for a
// newer ISA include them too, and the linker must not pick such a copy for an older CPU.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace headrace {

inline constexpr uint32_t kIdMultiplier = 0x9E3779B9u;
inline constexpr uint32_t kMixMultiplier1 = 0x7FEB352Du;
inline constexpr uint32_t kMixMultiplier2 = 0x846CA68Bu;

// Logits further than this below the maximum have a mass of 0: exp(-24.3) < 2^-35; the rest is for rounding.
inline constexpr float kMassless = 40.0f;
inline constexpr double kMassRounding = 393216.0;  // 1.5 * 2^18: adding it rounds to multiples of 2^-34
inline constexpr double kLargestNoise = 22.9;      // -log(-log(1 - 2^-33)) = 22.87
// Upper bounds of scores are computed in float32, for scores within 120 of the maximum; their error is
// below 1e-4.
inline constexpr float kBoundSlack = 1e-3f;

struct TokenKey {
  uint32_t first = 0, second = 0;
};

struct PhiloxWords {
  uint32_t word[4];
};

// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
static inline PhiloxWords philox(PhiloxWords c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * c.word[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.word[1] ^ k0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.word[3] ^ k1, static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

static inline TokenKey token_key(uint64_t seed, uint32_t choice, uint64_t position) {
  const PhiloxWords w =
      philox({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, 0}},
             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return {w.word[0], w.word[1]};
}

// A uniform number in [0, 1) for each position of a choice, independent of the tokens' noise.
static inline double coin(uint64_t seed, uint32_t choice, uint64_t position) {
  const PhiloxWords w =
      philox({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, 1}},
             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return static_cast<double>(w.word[0]) * 0x1p-32;
}

static inline uint32_t token_bits(int32_t id, TokenKey key) {
  uint32_t x = static_cast<uint32_t>(id) * kIdMultiplier + key.first;
  x = (x ^ (x >> 16)) * kMixMultiplier1;
  x = ((x ^ (x >> 15)) + key.second) * kMixMultiplier2;
  return x ^ (x >> 16);
}

// log2(1 + f) >= f makes a float's bits, read as a number, a bound of its logarithm:
// -log(v) <= kBoundOffset - kBoundSlope * bits(v * 2^31), and the Gumbel noise -log(-log(1 - v)) is below -log(v).
inline constexpr float kBoundSlope = 0.69314718f / 8388608.0f;
inline constexpr float kBoundOffset = 0.69314718f * (127.0f + 31.0f);

// At least (x - max) / temperature + noise.
static inline float score_bound(float x, float max, float inverse_temperature, uint32_t bits) {
  const float v = static_cast<float>(static_cast<int32_t>(bits >> 1));
  int32_t v_bits;
  std::memcpy(&v_bits, &v, sizeof v_bits);
  return (x - max) * inverse_temperature + (kBoundOffset - kBoundSlope * static_cast<float>(v_bits));
}

static inline double pinned_log(double x) {  // of x > 0, as 2 atanh(f)
  int exponent;
  double m = std::frexp(x, &exponent);
  if (m < 0.7071067811865476) {
    m = 2.0 * m;
    exponent -= 1;
  }
  const double f = (m - 1.0) / (m + 1.0);
  const double square = f * f;
  double series = 1.0 / 21.0;
  for (int odd = 19; odd > 2; odd -= 2) series = series * square + 1.0 / odd;
  const double tail = 2.0 * f * (square * series);
  return exponent * 0.6931471805599453 + (2.0 * f + tail);
}

static inline double gumbel(uint32_t bits) {
  const double v = (static_cast<double>(bits) + 0.5) * 0x1p-32;
  return -pinned_log(-pinned_log(1.0 - v));
}

static inline double exp_wide(double x) {  // of x in [-700, 700]
  const double magic = 6755399441055744.0;
  const double n = (x * 1.4426950408889634 + magic) - magic;
  const double r = (x - n * 0.693145751953125) - n * 1.4286068203094172e-06;
  double p = 1.0;
  for (int divisor = 14; divisor > 0; --divisor) p = 1.0 + p * r / divisor;
  return std::ldexp(p, static_cast<int>(n));
}

// exp(x) for x <= 0, within 2e-7; below -30 it stays at exp(-30), whose mass is 0.
static inline float pinned_exp(float x) {
  x = x < -30.0f ? -30.0f : x;
  const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  for (const float factorial : {720.0f, 120.0f, 24.0f, 6.0f, 2.0f, 1.0f, 1.0f}) p = p * r + 1.0f / factorial;
  const int32_t power_bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &power_bits, sizeof power);
  return p * power;
}

// Masses are multiples of 2^-34, so that sums of up to 2^19 of them are exact in any order.
static inline double rounded_mass(float weight) { return (static_cast<double>(weight) + kMassRounding) - kMassRounding; }
static inline double mass(float x, float max) { return rounded_mass(pinned_exp(x - max)); }

}  // namespace headrace
