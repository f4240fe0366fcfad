// Sampling: every instruction set and number of threads gives the same bits; kernels against plain loops.
#include <atomic>
#include <cfloat>
#include <limits>
#include <vector>

#include "../sample/sampler.hpp"
#include "test.hpp"

using namespace headrace;
using headrace::test::Random;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> logits_of(Random& random, int64_t count, float spread) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = random.normal() * spread;
  return x;
}

void test_philox() {  // kat_vectors of Random123
  const PhiloxWords zeros = philox({{0, 0, 0, 0}}, 0, 0);
  CHECK(zeros.word[0] == 0x6627e8d5u && zeros.word[1] == 0xe169c58du);
  CHECK(zeros.word[2] == 0xbc57ac4cu && zeros.word[3] == 0x9b00dbd8u);
  const uint32_t ones = 0xffffffffu;
  const PhiloxWords full = philox({{ones, ones, ones, ones}}, ones, ones);
  CHECK(full.word[0] == 0x408f276du && full.word[3] == 0x6d5451fdu);
  const PhiloxWords pi = philox({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0xa4093822u, 0x299f31d0u);
  CHECK(pi.word[0] == 0xd16cfe09u && pi.word[1] == 0x94fdccebu);
  CHECK(pi.word[2] == 0x5001e420u && pi.word[3] == 0x24126ea1u);
}

void test_arithmetic() {
  for (int i = 1; i < 1000; ++i) {
    const double x = i * 0.037;
    CHECK_NEAR(pinned_log(x), std::log(x), 1e-15 + 4e-15 * std::fabs(std::log(x)));
    CHECK_NEAR(pinned_exp(static_cast<float>(-x)) / std::exp(static_cast<float>(-x < -30 ? -30 : -x)), 1.0, 3e-7);
  }
  CHECK(mass(1, 1) == 1.0);
  CHECK(mass(-kInfinity, 1) == 0.0);
  CHECK(gumbel(0xffffffffu) < kLargestNoise);
  Random random(1);
  for (int i = 0; i < 20000; ++i) {  // the bound that prunes the draw holds, at the ends too
    const uint32_t bits = i < 100 ? static_cast<uint32_t>(i) : i < 200 ? ~static_cast<uint32_t>(i - 100)
                                                                       : static_cast<uint32_t>(random.bits());
    const float x = random.uniform(-40, 0);
    const double score = static_cast<double>(x) / 0.7 + gumbel(bits);
    CHECK(score_bound(x, 0, static_cast<float>(1 / 0.7), bits) >= score - kBoundSlack / 2);
  }
}

void test_kernels(Isa isa) {
  const SampleKernels& kernels = sample_kernels(isa);
  Random random(2);
  for (const int64_t n : {1, 15, 64, 255, 256, 257, 1000}) {
    std::vector<float> x = logits_of(random, n, 6);
    std::vector<float> maxima(static_cast<size_t>((n + kSampleBlock - 1) / kSampleBlock));
    CHECK(kernels.block_maxima(x.data(), n, maxima.data()));
    double total = 0;
    std::vector<float> expected(maxima.size(), -kInfinity);
    for (int64_t i = 0; i < n; ++i) {
      float& high = expected[static_cast<size_t>(i / kSampleBlock)];
      high = std::fmax(high, x[static_cast<size_t>(i)]);
      total += mass(x[static_cast<size_t>(i)], 30);
    }
    CHECK(test::same_bits(maxima.data(), expected.data(), maxima.size()));
    CHECK(kernels.mass_sum(x.data(), n, 30) == total);
    const float bad[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(), kInfinity};
    const float saved = x[static_cast<size_t>(n / 2)];
    for (const float value : bad) {
      x[static_cast<size_t>(n / 2)] = value;
      CHECK(!kernels.block_maxima(x.data(), n, maxima.data()));
    }
    x[static_cast<size_t>(n / 2)] = -kInfinity;
    CHECK(kernels.block_maxima(x.data(), n, maxima.data()));
    x[static_cast<size_t>(n / 2)] = saved;

    const int64_t count = n < kSampleBlock ? n : kSampleBlock;
    int32_t index[kSampleBlock];
    float weight[kSampleBlock];
    x[0] = -kInfinity;
    kernels.bucket(x.data(), count, 30, index, weight);
    for (int64_t i = 0; i < count; ++i) {
      const float distance = 30 - x[static_cast<size_t>(i)];
      CHECK(weight[i] == pinned_exp(x[static_cast<size_t>(i)] - 30));
      if (distance < kMassless) CHECK(index[i] == static_cast<int32_t>(distance * kBucketsPerUnit));
      if (!(distance < kMassless)) CHECK(index[i] >= kBuckets && index[i] < kBuckets + kSpareBuckets);
    }
  }
  std::vector<float> x(4 * kSampleGroup, 0.0f);
  x[2 * kSampleGroup + 5] = 1;
  const int64_t n = static_cast<int64_t>(x.size());
  CHECK(kernels.find_between(x.data(), n, 0.5f, 1.0f) == 2 * kSampleGroup);
  CHECK(kernels.find_between(x.data(), n, 1.5f, 2.0f) == n);
  DrawBound draw;
  draw.max = 1;
  draw.inverse_temperature = 1e6f;  // so cold that only the maximum can win
  draw.cut = -FLT_MAX;
  CHECK(kernels.find_candidates(x.data(), n, 0, draw) == 2 * kSampleGroup);
  draw.cut = 2;
  CHECK(kernels.find_candidates(x.data(), n, 0, draw) == n);
}

std::vector<SampleSettings> mixed_settings() {
  std::vector<SampleSettings> all(16);
  all[0].temperature = 0;
  all[2].top_k = 50;
  all[2].top_p = 0.9;
  all[3].top_p = 0.9;
  all[4].top_k = 3000;
  all[4].top_p = 0.5;
  all[5].log_min_p = -3;
  all[5].temperature = 0.5;
  all[6].repetition_penalty = 1.2f;
  all[6].frequency_penalty = 0.1f;
  all[6].logit_bias = {{0, 3.0f}, {4000, -100.0f}};
  all[7].logprobs = 20;
  all[7].temperature = 1.7;
  all[8].top_k = 4990;  // beyond what the buckets cover
  all[9].top_n_sigma = 1.5;
  all[9].top_k = 300;
  all[9].typical_p = 0.8;
  all[10].typical_p = 0.9;
  all[10].top_p = 0.7;
  all[10].log_min_p = -5;
  all[11].xtc_probability = 1;
  all[11].xtc_threshold = 0.01;
  all[11].logprobs = 5;
  all[12].dynatemp_range = 0.5;
  all[12].dynatemp_exponent = 2;
  all[13].mirostat = 1;
  all[14].mirostat = 2;
  all[14].mirostat_tau = 2;
  all[15].dry_multiplier = 0.8;
  all[15].dry_allowed_length = 1;
  all[15].repetition_penalty = 1.1f;
  all[15].repeat_last_n = 3;
  all[15].bad_words = {{7}, {5, 9}};
  return all;
}

std::vector<SampleResult> run(Isa isa, int threads, const std::vector<float>& logits, int64_t vocabulary) {
  Pool pool(threads);
  Sampler sampler(vocabulary, pool, isa);
  const std::vector<SampleSettings> settings = mixed_settings();
  const size_t count = settings.size();
  std::vector<float> scratch = logits;
  std::vector<uint32_t> mask(static_cast<size_t>((vocabulary + 31) / 32), 0x5555ffffu);
  std::vector<SampleRow> rows;
  std::vector<SampleRow*> pointers;
  std::vector<const uint32_t*> masks;
  const int32_t prompt[] = {1, 2, 3, 1, 4999, 100000, -1};
  for (size_t r = 0; r < count; ++r) rows.emplace_back(settings[r], prompt, 7, prompt, 7);
  for (size_t r = 0; r < count; ++r) {
    rows[r].append(5);
    pointers.push_back(&rows[r]);
    masks.push_back(r % 3 == 1 ? mask.data() : nullptr);
  }
  std::vector<SampleResult> results(count);
  if (threads > static_cast<int>(count)) {  // each row alone: its blocks are shared by the threads
    for (size_t r = 0; r < count; ++r) {
      sampler.sample(scratch.data() + static_cast<int64_t>(r) * vocabulary, 1, &pointers[r], &masks[r], &results[r]);
    }
  } else {
    sampler.sample(scratch.data(), static_cast<int64_t>(count), pointers.data(), masks.data(), results.data());
  }
  return results;
}

void check_same(const std::vector<SampleResult>& got, const std::vector<SampleResult>& expected) {
  for (size_t r = 0; r < expected.size(); ++r) {
    CHECK(got[r].fault == expected[r].fault);
    CHECK(got[r].token == expected[r].token);
    CHECK(got[r].logprob == expected[r].logprob);
    CHECK(got[r].top_count == expected[r].top_count);
    for (int i = 0; i < expected[r].top_count; ++i) {
      CHECK(got[r].top_ids[i] == expected[r].top_ids[i] && got[r].top_logprobs[i] == expected[r].top_logprobs[i]);
    }
  }
}

void test_same_on_all() {
  constexpr int64_t vocabulary = 5001;
  Random random(3);
  for (const float spread : {0.0f, 1.0f, 15.0f}) {
    std::vector<float> logits = logits_of(random, vocabulary * 16, spread);
    if (spread == 15.0f) logits[vocabulary * 2 + 17] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<SampleResult> expected = run(Isa::portable, 1, logits, vocabulary);
    CHECK((expected[2].fault == SampleFault::not_finite) == (spread == 15.0f));
    test::for_each_isa([&](Isa isa) {
      for (const int threads : {1, 2, 5, 20}) check_same(run(isa, threads, logits, vocabulary), expected);
    });
  }
}

void test_row_counts() {
  SampleSettings settings;
  settings.presence_penalty = 1;
  const int32_t prompt[] = {7, 7};
  SampleRow output_only(settings, prompt, 2);
  CHECK(output_only.seen().empty());
  output_only.append(7);
  output_only.append(7);
  CHECK(output_only.position() == 2 && output_only.seen().size() == 1 && output_only.seen()[0].outputs == 2);
  settings.repetition_penalty = 2;
  CHECK(SampleRow(settings, prompt, 2).seen().size() == 1);
  CHECK(SampleRow(settings, prompt, 2).seen()[0].outputs == 0);
}

void test_repetitions() {
  SampleSettings settings;
  settings.dry_multiplier = 1;
  settings.dry_base = 2;
  settings.dry_allowed_length = 1;
  const int32_t history[] = {1, 2, 3, 9, 1, 2};
  SampleRow row(settings, nullptr, 0, history, 6);
  CHECK(row.dry().size() == 1 && row.dry()[0].first == 3 && row.dry()[0].second == 2.0f);
  row.append(3);
  CHECK(row.dry().size() == 1 && row.dry()[0].first == 9 && row.dry()[0].second == 4.0f);
  row.append(4, true);
  CHECK(row.dry().empty());
  settings = {};
  settings.presence_penalty = 1;
  settings.repeat_last_n = 2;
  settings.bad_words = {{5, 6}, {7}};
  SampleRow window(settings, nullptr, 0);
  CHECK(window.banned().size() == 1 && window.banned()[0] == 7);
  for (const int32_t token : {5, 5, 8}) window.append(token);
  CHECK(window.seen().size() == 2 && window.banned().size() == 1);
  window.append(5);
  CHECK(window.seen().size() == 2 && window.banned().size() == 2);
}

void test_scores_and_tops() {
  constexpr int64_t vocabulary = 700;
  Random random(5);
  std::vector<float> logits = logits_of(random, vocabulary * 3, 2);
  logits[vocabulary] = std::numeric_limits<float>::quiet_NaN();
  Pool pool(2);
  Sampler sampler(vocabulary, pool);
  const int32_t rows[] = {2, 1, 0};
  std::vector<int32_t> ids(3 * 700);
  std::vector<float> logprobs(3 * 700);
  sampler.top(logits.data(), 3, rows, 700, ids.data(), logprobs.data());
  CHECK(ids[700] == -1 && ids[0] >= 0 && ids[699] >= 0);
  const int32_t tokens[] = {ids[0], 5, ids[1400 + 9]};
  ScoreResult scores[3];
  sampler.score(logits.data(), 3, rows, tokens, 20, scores);
  CHECK(scores[0].rank == 1 && scores[0].logprob == logprobs[0]);
  CHECK(scores[1].fault == SampleFault::not_finite);
  CHECK(scores[2].rank == 10 && scores[2].logprob == logprobs[1400 + 9] && scores[2].top_ids[9] == tokens[2]);
}

}  // namespace

int main() {
  test_philox();
  test_arithmetic();
  test::for_each_isa(test_kernels);
  test_same_on_all();
  test_row_counts();
  test_repetitions();
  test_scores_and_tops();
  return test::report();
}
