#include "suffix_automaton.hpp"

namespace headrace {
namespace {

constexpr size_t kFirstPlaces = 64;

size_t hash_of(int32_t state, int32_t token) {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token);
  // By the golden ratio (Knuth, vol. 3, 6.4): only the upper half of the product depends on both.
  return static_cast<size_t>(key * 0x9e3779b97f4a7c15ull >> 32);
}

}  // namespace

SuffixAutomaton::SuffixAutomaton() : states_(1), index_(kFirstPlaces, 0) {}

size_t SuffixAutomaton::place_of(int32_t state, int32_t token) const {
  const size_t mask = index_.size() - 1;
  size_t place = hash_of(state, token) & mask;
  for (; index_[place] != 0; place = (place + 1) & mask) {
    const Edge& edge = edges_[static_cast<size_t>(index_[place] - 1)];
    if (edge.state == state && edge.token == token) break;
  }
  return place;
}

int32_t SuffixAutomaton::find(int32_t state, int32_t token) const { return index_[place_of(state, token)] - 1; }

void SuffixAutomaton::enlarge_index() {
  index_.assign(2 * index_.size(), 0);
  for (size_t edge = 0; edge < edges_.size(); ++edge) {
    index_[place_of(edges_[edge].state, edges_[edge].token)] = static_cast<int32_t>(edge) + 1;
  }
}

void SuffixAutomaton::add_edge(int32_t state, int32_t token, int32_t target) {
  if (2 * (edges_.size() + 1) > index_.size()) enlarge_index();
  const auto edge = static_cast<int32_t>(edges_.size());
  int32_t& first = states_[static_cast<size_t>(state)].first_edge;
  edges_.push_back({state, token, target, first});
  first = edge;
  index_[place_of(state, token)] = edge + 1;
}

void SuffixAutomaton::push(int32_t token) {
  const auto position = static_cast<int32_t>(text_.size());
  text_.push_back(token);
  const auto fresh = static_cast<int32_t>(states_.size());
  states_.push_back({states_[static_cast<size_t>(last_)].length + 1, 0, position, -1});
  int32_t from = last_, edge = -1;
  while (from != -1 && (edge = find(from, token)) == -1) {
    add_edge(from, token, fresh);
    from = states_[static_cast<size_t>(from)].link;
  }
  if (from != -1) {
    const int32_t target = edges_[static_cast<size_t>(edge)].target;
    const bool tight = states_[static_cast<size_t>(from)].length + 1 == states_[static_cast<size_t>(target)].length;
    states_[static_cast<size_t>(fresh)].link = tight ? target : clone_for(from, edge, token);
  }
  last_ = fresh;
  State& repeated = states_[static_cast<size_t>(states_[static_cast<size_t>(fresh)].link)];
  match_length_ = repeated.length;
  match_end_ = repeated.last_end;
  repeated.last_end = position;
}

// Parts the shorter strings off the state that `edge` leads to: they occur here, its longer ones do not.
int32_t SuffixAutomaton::clone_for(int32_t from, int32_t edge, int32_t token) {
  const int32_t target = edges_[static_cast<size_t>(edge)].target;
  const auto clone = static_cast<int32_t>(states_.size());
  const State original = states_[static_cast<size_t>(target)];
  states_.push_back({states_[static_cast<size_t>(from)].length + 1, original.link, original.last_end, -1});
  for (int32_t e = original.first_edge; e != -1; e = edges_[static_cast<size_t>(e)].next) {
    add_edge(clone, edges_[static_cast<size_t>(e)].token, edges_[static_cast<size_t>(e)].target);
  }
  states_[static_cast<size_t>(target)].link = clone;
  while (from != -1) {
    const int32_t other = find(from, token);
    if (edges_[static_cast<size_t>(other)].target != target) break;
    edges_[static_cast<size_t>(other)].target = clone;
    from = states_[static_cast<size_t>(from)].link;
  }
  return clone;
}

int SuffixAutomaton::match_kind() const {
  int kind = -1;
  for (int32_t length = match_length_; length > 0 && kind < kMatchKinds - 1; length /= 2) ++kind;
  return kind;
}

std::vector<int32_t> SuffixAutomaton::draft(size_t count) const {
  std::vector<int32_t> drafted;
  if (match_length_ == 0) return drafted;
  for (size_t at = static_cast<size_t>(match_end_) + 1; drafted.size() < count; ++at) {
    const int32_t token = at < text_.size() ? text_[at] : drafted[at - text_.size()];
    if (token < 0) break;
    drafted.push_back(token);
  }
  return drafted;
}

}  // namespace headrace
