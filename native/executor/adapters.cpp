// Adapters of an executor: their places, and which rows of a step have one.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "executor.hpp"

namespace headrace {
namespace {

constexpr int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument("adapter: " + why); }

}  // namespace

void Executor::set_adapter(int slot, bool f32, const std::vector<AdapterPair>& pairs) {
  if (slot < 0 || slot >= kMaxAdapters) refuse("there is no slot " + std::to_string(slot));
  const std::lock_guard<std::mutex> turn(turn_);
  const size_t count = program_.instructions.size(), at = static_cast<size_t>(slot);
  std::vector<std::vector<LoraPair>> placed(count);
  std::vector<bool> adapts(pairs.empty() ? 0 : count);
  int64_t stride = hidden_stride_, inputs = 0, bytes = 0;
  for (const AdapterPair& pair : pairs) {
    bool found = false;
    for (size_t i = 0; i < count; ++i) {
      const Instruction& it = program_.instructions[i];
      if (it.op != Op::fused_linear) continue;
      for (size_t which = 0; which < it.weights.size(); ++which) {
        if (it.weights[which] != pair.weight) continue;
        const Weight& w = weight(it, which);
        if (pair.rank < 2 || pair.rank > kMaxLoraRank || pair.rank % 2 != 0) refuse("a rank of " + std::to_string(pair.rank));
        if (pair.a_bytes != lora_a_bytes(f32, pair.rank, w.k) || pair.b_bytes != lora_b_bytes(f32, pair.rank, w.n)) {
          refuse("matrices of other sizes than weight " + std::to_string(pair.weight) + " has");
        }
        placed[i].resize(kMaxLinears);
        placed[i][which] = {pair.rank, f32 ? Format::f32 : Format::bf16, 0, pair.scale, pair.a, pair.b};
        adapts[i] = found = true;
        inputs = std::max(inputs, w.k);
        bytes += aligned(pair.a_bytes) + aligned(pair.b_bytes);
      }
    }
    if (!found) refuse("no product has weight " + std::to_string(pair.weight));
  }
  Buffer memory(static_cast<size_t>(bytes));
  uint8_t* place = memory.data();
  const auto take = [&](const uint8_t*& from, int64_t size) {
    std::memcpy(place, from, static_cast<size_t>(size));
    from = place;
    place += aligned(size);
  };
  for (size_t i = 0; i < count; ++i) {
    for (size_t which = 0; which < placed[i].size(); ++which) {
      LoraPair& pair = placed[i][which];
      if (pair.rank > 0) take(pair.a, lora_a_bytes(f32, pair.rank, weight(program_.instructions[i], which).k));
    }
    for (size_t which = 0; which < placed[i].size(); ++which) {
      LoraPair& pair = placed[i][which];
      if (pair.rank > 0) take(pair.b, lora_b_bytes(f32, pair.rank, weight(program_.instructions[i], which).n));
    }
  }
  for (std::vector<LoraPair>& of : placed) {
    int32_t words = 0;
    for (LoraPair& pair : of) {
      pair.at = words;
      words += f32 ? pair.rank : pair.rank / 2;
    }
    stride = std::max<int64_t>(stride, words);
  }
  const auto parts = static_cast<size_t>(pool_.threads());
  const size_t rows = std::max({static_cast<size_t>(program_.max_tokens), static_cast<size_t>(program_.max_rows), parts});
  const size_t scratch = parts * static_cast<size_t>(lora_scratch_bytes(inputs));
  if (stride > hidden_stride_) hidden_ = Buffer(rows * static_cast<size_t>(stride) * sizeof(uint32_t));
  if (scratch > shrink_scratch_.bytes()) shrink_scratch_ = Buffer(scratch);
  hidden_stride_ = stride;
  adapters_.resize(count);
  if (adapts_.size() <= at) adapts_.resize(at + 1);
  adapts_[at] = std::move(adapts);
  if (adapter_memory_.size() <= at) adapter_memory_.resize(at + 1);
  for (size_t i = 0; i < count; ++i) {
    if (program_.instructions[i].op != Op::fused_linear) continue;
    adapters_[i].resize(std::max(adapters_[i].size(), (at + 1) * kMaxLinears));
    placed[i].resize(kMaxLinears);
    std::copy(placed[i].begin(), placed[i].end(), adapters_[i].begin() + static_cast<int64_t>(at) * kMaxLinears);
  }
  adapter_memory_[at] = std::move(memory);  // frees what was in the slot
}

void Executor::plan_adapted_rows(const Step& step) {
  active_adapters_.clear();
  if (step.adapters == nullptr) return;
  for (int32_t b = 0; b < step.B; ++b) {
    const int32_t adapter = step.adapters[b];
    if (adapter == -1) continue;
    if (adapter < 0 || static_cast<size_t>(adapter) >= adapts_.size() || adapts_[static_cast<size_t>(adapter)].empty()) {
      active_adapters_.clear();
      refuse("a sequence has the empty slot " + std::to_string(adapter));
    }
    active_adapters_.push_back(adapter);
  }
  std::sort(active_adapters_.begin(), active_adapters_.end());
  active_adapters_.erase(std::unique(active_adapters_.begin(), active_adapters_.end()), active_adapters_.end());
  if (active_adapters_.empty()) return;
  AdaptedRows& tokens = adapted_tokens_;
  tokens.adapters.resize(static_cast<size_t>(step.T));
  for (int32_t b = 0; b < step.B; ++b) {
    std::fill(tokens.adapters.begin() + step.query_starts[b], tokens.adapters.begin() + step.query_starts[b + 1], step.adapters[b]);
  }
  adapted_rows_.adapters.clear();
  for (int32_t r = 0; r < step.R; ++r) adapted_rows_.adapters.push_back(tokens.adapters[static_cast<size_t>(step.rows[r])]);
  for (AdaptedRows* rows : {&adapted_tokens_, &adapted_rows_}) {
    const std::vector<int32_t>& of = rows->adapters;
    rows->order.clear();
    for (size_t i = 0; i < of.size(); ++i) {
      if (of[i] >= 0) rows->order.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(rows->order.begin(), rows->order.end(),
                     [&](int32_t a, int32_t b) { return of[static_cast<size_t>(a)] < of[static_cast<size_t>(b)]; });
  }
}

bool Executor::is_adapted(size_t instruction) const {
  return std::any_of(active_adapters_.begin(), active_adapters_.end(),
                     [&](int32_t slot) { return adapts_[static_cast<size_t>(slot)][instruction]; });
}

// The rows of an instruction's adapters, for both phases; A x of this part's rows in the first, of its row in a whole one.
LoraRows Executor::shrink(const Call& call, const FusedLinearArgs& args) {
  const auto index = static_cast<size_t>(&call.it - program_.instructions.data());
  const bool of_rows = program_.values[static_cast<size_t>(call.it.inputs[0])].of_output_rows;
  const AdaptedRows& rows = of_rows ? adapted_rows_ : adapted_tokens_;
  auto* hidden = reinterpret_cast<uint32_t*>(hidden_.data());
  if (call.phase == kWhole) hidden += call.part * hidden_stride_;
  const LoraRows lora{rows.adapters.data(), adapters_[index].data(), hidden, hidden_stride_};
  if (call.phase == 1) return lora;
  LoraShrinkArgs shrink;
  shrink.x = args.x;
  shrink.k = args.k;
  shrink.norm_weight = args.norm_weight;
  shrink.norm_eps = args.norm_eps;
  shrink.order = rows.order.data();
  shrink.count = static_cast<int64_t>(rows.order.size());
  shrink.weights = args.count;
  shrink.rows = lora;
  shrink.hidden = hidden;
  shrink.scratch = shrink_scratch_.data();
  if (call.phase == kWhole) {
    shrink.scratch += call.part * lora_scratch_bytes(args.k);
    lora_.shrink(shrink, 0, 1);
  } else {
    lora_.shrink(shrink, call.part, call.parts);
  }
  return lora;
}

}  // namespace headrace
