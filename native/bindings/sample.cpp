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
#include <type_traits>
#include <utility>
#include <vector>

#include "../sample/draft.hpp"
#include "../sample/sampler.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using headrace::Pool;
using headrace::SampleFault;
using headrace::SampleResult;
using headrace::Sampler;
using headrace::SampleRow;
using headrace::SampleSettings;
using headrace::ScoreResult;

using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scored = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void init_row(SampleRow* row, const SampleSettings& settings, Ids prompt, Ids history) {
  if (settings.logprobs > headrace::kMaxTopLogprobs) {
    throw std::invalid_argument("logprobs is " + std::to_string(settings.logprobs) + ", at most " +
                                std::to_string(headrace::kMaxTopLogprobs) + " are given");
  }
  for (const auto& entry : settings.logit_bias) {
    if (entry.first < 0) throw std::invalid_argument("logit_bias has a negative token id");
  }
  for (const auto& word : settings.bad_words) {
    if (word.empty()) throw std::invalid_argument("a bad word has no tokens");
  }
  new (row) SampleRow(settings, prompt.data(), prompt.shape(0), history.data(), history.shape(0));
}

template <class T>
nb::object to_numpy(std::unique_ptr<T[]> values, size_t count) {
  T* data = values.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  values.release();
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {count}, owner).cast();
}

template <class Result>
nb::tuple tops_of(const Result& result) {
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

nb::tuple sample(Sampler& sampler, Logits logits, const std::vector<SampleRow*>& rows,
                 const std::optional<std::vector<std::optional<Mask>>>& allowed) {
  const size_t count = rows.size();
  if (logits.shape(0) != count || logits.shape(1) != static_cast<size_t>(sampler.vocabulary())) {
    throw std::invalid_argument("logits are [" + std::to_string(logits.shape(0)) + ", " +
                                std::to_string(logits.shape(1)) + "], expected [" + std::to_string(count) + ", " +
                                std::to_string(sampler.vocabulary()) + "]");
  }
  for (SampleRow* row : rows) {
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

std::vector<std::vector<int32_t>> sample_draft(Sampler& sampler, Logits logits, const std::vector<SampleRow*>& rows,
                                               const std::vector<int64_t>& firsts,
                                               const std::vector<std::vector<int32_t>>& drafts) {
  if (logits.shape(1) != static_cast<size_t>(sampler.vocabulary()) || firsts.size() != rows.size() ||
      drafts.size() != rows.size()) {
    throw std::invalid_argument("logits, rows and drafts do not fit together");
  }
  std::vector<headrace::DraftRow> drafted;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto end = static_cast<int64_t>(logits.shape(0) - drafts[i].size());
    if (rows[i] == nullptr || firsts[i] < 0 || firsts[i] >= end) throw std::invalid_argument("no such row");
    drafted.push_back({rows[i], firsts[i], drafts[i]});
  }
  const nb::gil_scoped_release release;
  return headrace::sample_draft(sampler, logits.data(), drafted);
}

nb::tuple top(Sampler& sampler, Scored logits, Ids rows, int32_t tops) {
  const size_t count = rows.shape(0);
  if (logits.shape(1) != static_cast<size_t>(sampler.vocabulary()) || tops < 0 || tops > sampler.vocabulary()) {
    throw std::invalid_argument("logits or tops do not fit the vocabulary of " + std::to_string(sampler.vocabulary()));
  }
  for (size_t i = 0; i < count; ++i) {
    if (rows(i) < 0 || static_cast<size_t>(rows(i)) >= logits.shape(0)) throw std::invalid_argument("no such row");
  }
  const size_t size = count * static_cast<size_t>(tops);
  auto ids = std::make_unique<int32_t[]>(size);
  auto logprobs = std::make_unique<float[]>(size);
  {
    nb::gil_scoped_release release;
    sampler.top(logits.data(), static_cast<int64_t>(count), rows.data(), tops, ids.get(), logprobs.get());
  }
  return nb::make_tuple(to_numpy(std::move(ids), size), to_numpy(std::move(logprobs), size));
}

nb::list score(Sampler& sampler, Scored logits, Ids rows, Ids tokens, int32_t tops) {
  const size_t count = rows.shape(0);
  if (logits.shape(1) != static_cast<size_t>(sampler.vocabulary()) || tokens.shape(0) != count) {
    throw std::invalid_argument("logits, rows and tokens do not fit together");
  }
  for (size_t i = 0; i < count; ++i) {
    if (rows(i) < 0 || static_cast<size_t>(rows(i)) >= logits.shape(0) || tokens(i) < 0 ||
        tokens(i) >= sampler.vocabulary()) {
      throw std::invalid_argument("a row or a token is out of range");
    }
  }
  if (tops < 0 || tops > headrace::kMaxTopLogprobs) throw std::invalid_argument("tops is out of range");
  std::vector<ScoreResult> results(count);
  {
    nb::gil_scoped_release release;
    sampler.score(logits.data(), static_cast<int64_t>(count), rows.data(), tokens.data(), tops, results.data());
  }
  nb::list out;
  for (const ScoreResult& result : results) {
    out.append(nb::make_tuple(result.logprob, result.rank, tops_of(result), static_cast<int>(result.fault)));
  }
  return out;
}

template <class T>
constexpr const char* type_name() {
  if (std::is_floating_point_v<T>) return "float";
  return std::is_integral_v<T> ? "int" : "list";
}

nb::list sampler_fields() {
  nb::list fields;
#define HEADRACE_SETTING(type, name, ...) fields.append(nb::make_tuple(#name, type_name<decltype(SampleSettings::name)>()));
#include "../sample/settings.inl"
  return fields;
}

}  // namespace

void bind_sample(nb::module_& m) {
  nb::class_<SampleSettings>(m, "SampleSettings", "Parameters of one sequence; the defaults turn everything off.")
      .def(nb::init<>())
#define HEADRACE_SETTING(type, name, ...) .def_rw(#name, &SampleSettings::name)
#include "../sample/settings.inl"
      ;
  m.def("sampler_fields", &sampler_fields, "Names and types (float, int, list) of the fields of SampleSettings.");
  nb::class_<SampleRow>(m, "SampleRow", "Parameters, position and token counts of one sequence.")
      .def("__init__", &init_row, "settings"_a, "prompt"_a, "history"_a)
      .def("append", &SampleRow::append, "token"_a, "breaks"_a = false)
      .def("for_drafts", &SampleRow::for_drafts, "A copy that draws the same, without log-probabilities.")
      .def_prop_ro("mu", &SampleRow::mu)
      .def_prop_ro("position", &SampleRow::position);
  nb::class_<Sampler>(m, "Sampler", "Draws tokens from logits on the threads of a pool.")
      .def(nb::init<int64_t, Pool&>(), "vocabulary"_a, "pool"_a, nb::keep_alive<1, 3>())
      .def("sample", &sample, "logits"_a.noconvert(), "rows"_a, "allowed"_a.none())
      .def("sample_draft", &sample_draft, "logits"_a.noconvert(), "rows"_a, "firsts"_a, "drafts"_a,
           "Draws from rows[i] at firsts[i] and, as long as the draft agrees, from the rows after it. Returns the tokens, "
           "which are appended to the rows, or the negated number of a fault.")
      .def("top", &top, "logits"_a.noconvert(), "rows"_a, "tops"_a)
      .def("score", &score, "logits"_a.noconvert(), "rows"_a, "tokens"_a, "tops"_a);
}
