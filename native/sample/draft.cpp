#include "draft.hpp"

#include <algorithm>

namespace headrace {
namespace {

// The current rows, contiguous in memory: in place where they already are.
float* together(float* logits, int64_t columns, const std::vector<int64_t>& rows, std::vector<float>& copy) {
  bool adjacent = true;
  for (size_t i = 1; i < rows.size(); ++i) adjacent = adjacent && rows[i] == rows[0] + static_cast<int64_t>(i);
  if (adjacent) return logits + rows[0] * columns;
  copy.resize(rows.size() * static_cast<size_t>(columns));
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(logits + rows[i] * columns, columns, copy.data() + i * static_cast<size_t>(columns));
  }
  return copy.data();
}

}  // namespace

std::vector<std::vector<int32_t>> sample_draft(Sampler& sampler, float* logits, const std::vector<DraftRow>& drafted) {
  std::vector<std::vector<int32_t>> tokens(drafted.size());
  std::vector<size_t> active(drafted.size());
  for (size_t i = 0; i < active.size(); ++i) active[i] = i;
  const std::vector<const uint32_t*> masks(drafted.size(), nullptr);
  std::vector<SampleResult> results(drafted.size());
  std::vector<float> copy;
  for (size_t at = 0; !active.empty(); ++at) {
    std::vector<int64_t> places;
    std::vector<SampleRow*> rows;
    for (const size_t i : active) {
      places.push_back(drafted[i].first + static_cast<int64_t>(at));
      rows.push_back(drafted[i].row);
    }
    float* values = together(logits, sampler.vocabulary(), places, copy);
    sampler.sample(values, static_cast<int64_t>(rows.size()), rows.data(), masks.data(), results.data());
    std::vector<size_t> agreeing;
    for (size_t k = 0; k < active.size(); ++k) {
      const DraftRow& one = drafted[active[k]];
      const auto fault = static_cast<int32_t>(results[k].fault);
      const int32_t token = fault > 0 ? -fault : results[k].token;
      tokens[active[k]].push_back(token);
      if (fault > 0) continue;
      one.row->append(token);
      if (at < one.draft.size() && one.draft[at] == token && !one.row->ends_with(token)) agreeing.push_back(active[k]);
    }
    active = agreeing;
  }
  return tokens;
}

}  // namespace headrace
