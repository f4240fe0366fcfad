// Incremental token counts: appending a token is O(1), whatever the history.
#include "row.hpp"

namespace headrace {

SampleRow::SampleRow(SampleSettings settings, const int32_t* prompt, size_t prompt_tokens)
    : settings_(std::move(settings)),
      repetition_(settings_.repetition_penalty != 1),
      penalised_(repetition_ || settings_.presence_penalty != 0 || settings_.frequency_penalty != 0) {
  if (!repetition_) return;  // the other penalties look at the output only
  for (size_t i = 0; i < prompt_tokens; ++i) count(prompt[i], 0);
}

void SampleRow::append(int32_t token) {
  ++position_;
  if (penalised_) count(token, 1);
}

void SampleRow::count(int32_t token, int32_t outputs) {
  const auto [entry, fresh] = index_.try_emplace(token, seen_.size());
  if (fresh) seen_.push_back({token, 0});
  seen_[entry->second].outputs += outputs;
}

}  // namespace headrace
