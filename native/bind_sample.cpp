// Python: SampleRow and Sampler, fronted by headrace/sample/sampler.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sample/sampler.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using headrace::Pool;
using headrace::SampleFault;
using headrace::SampleResult;
using headrace::Sampler;
using headrace::SampleRow;
using headrace::SampleSettings;

using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void init_row(SampleRow* row, double temperature, int64_t top_k, double top_p, double log_min_p,
              float repetition_penalty, float presence_penalty, float frequency_penalty,
              std::vector<std::pair<int32_t, float>> logit_bias, std::vector<int32_t> ends, int64_t min_tokens,
              int32_t logprobs, uint64_t seed, uint32_t choice, Ids prompt) {
  if (logprobs > headrace::kMaxTopLogprobs) {
    throw std::invalid_argument("logprobs is " + std::to_string(logprobs) + ", at most " +
                                std::to_string(headrace::kMaxTopLogprobs) + " are given");
  }
  for (const auto& entry : logit_bias) {
    if (entry.first < 0) throw std::invalid_argument("logit_bias has a negative token id");
  }
  new (row) SampleRow({temperature, top_k, top_p, log_min_p, repetition_penalty, presence_penalty, frequency_penalty,
                       std::move(logit_bias), std::move(ends), min_tokens, logprobs, seed, choice},
                      prompt.data(), prompt.shape(0));
}

template <class T>
nb::object to_numpy(std::unique_ptr<T[]> values, size_t count) {
  T* data = values.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  values.release();
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {count}, owner).cast();
}

nb::tuple tops_of(const SampleResult& result) {
  nb::list out;
  for (int i = 0; i < result.top_count; ++i) out.append(nb::make_tuple(result.top_ids[i], result.top_logprobs[i]));
  return nb::tuple(out);
}

std::vector<const uint32_t*> masks_of(const std::optional<std::vector<std::optional<Mask>>>& allowed, size_t count,
                                      int64_t vocabulary) {
  std::vector<const uint32_t*> masks(count, nullptr);
  if (!allowed) return masks;
  if (allowed->size() != count) throw std::invalid_argument("allowed needs one entry for each row");
  const size_t words = static_cast<size_t>((vocabulary + 31) / 32);
  for (size_t r = 0; r < count; ++r) {
    const std::optional<Mask>& mask = (*allowed)[r];
    if (!mask) continue;
    if (mask->shape(0) != words) {
      throw std::invalid_argument("a mask of " + std::to_string(mask->shape(0)) + " words does not fit a vocabulary of " +
                                  std::to_string(vocabulary) + ": it needs " + std::to_string(words));
    }
    masks[r] = mask->data();
  }
  return masks;
}

nb::tuple sample(Sampler& sampler, Logits logits, const std::vector<const SampleRow*>& rows,
                 const std::optional<std::vector<std::optional<Mask>>>& allowed) {
  const size_t count = rows.size();
  if (logits.shape(0) != count || logits.shape(1) != static_cast<size_t>(sampler.vocabulary())) {
    throw std::invalid_argument("logits are [" + std::to_string(logits.shape(0)) + ", " +
                                std::to_string(logits.shape(1)) + "], expected [" + std::to_string(count) + ", " +
                                std::to_string(sampler.vocabulary()) + "]");
  }
  for (const SampleRow* row : rows) {
    if (row == nullptr) throw std::invalid_argument("a row is None");
  }
  const std::vector<const uint32_t*> masks = masks_of(allowed, count, sampler.vocabulary());
  std::vector<SampleResult> results(count);
  {
    nb::gil_scoped_release release;
    sampler.sample(logits.data(), static_cast<int64_t>(count), rows.data(), masks.data(), results.data());
  }
  auto tokens = std::make_unique<int32_t[]>(count);
  auto logprobs = std::make_unique<float[]>(count);
  nb::list tops, faults;
  for (size_t r = 0; r < count; ++r) {
    const SampleResult& result = results[r];
    const bool good = result.fault == SampleFault::none;
    const bool asked = good && rows[r]->settings().logprobs >= 0;
    tokens[r] = result.token;
    logprobs[r] = asked ? result.logprob : std::numeric_limits<float>::quiet_NaN();
    tops.append(asked ? tops_of(result) : nb::tuple());
    if (!good) faults.append(nb::make_tuple(r, static_cast<int>(result.fault)));
  }
  return nb::make_tuple(to_numpy(std::move(tokens), count), to_numpy(std::move(logprobs), count), nb::tuple(tops),
                        faults);
}

}  // namespace

void bind_sample(nb::module_& m) {
  nb::class_<SampleRow>(m, "SampleRow", "Parameters, position and token counts of one sequence.")
      .def("__init__", &init_row, nb::kw_only(), "temperature"_a, "top_k"_a, "top_p"_a, "log_min_p"_a,
           "repetition_penalty"_a, "presence_penalty"_a, "frequency_penalty"_a, "logit_bias"_a, "ends"_a,
           "min_tokens"_a, "logprobs"_a, "seed"_a, "choice"_a, "prompt"_a)
      .def("append", &SampleRow::append, "token"_a)
      .def_prop_ro("position", &SampleRow::position);
  nb::class_<Sampler>(m, "Sampler", "Draws tokens from logits on the threads of a pool.")
      .def(nb::init<int64_t, Pool&>(), "vocabulary"_a, "pool"_a, nb::keep_alive<1, 3>())
      .def("sample", &sample, "logits"_a.noconvert(), "rows"_a, "allowed"_a.none());
}
