// The longest end of a text that has occurred in it before: a suffix automaton over token ids (Blumer et al. 1985).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// Matches are classed by the number of bits of their length, up to this many.
inline constexpr int kMatchKinds = 6;

class SuffixAutomaton {
 public:
  SuffixAutomaton();

  // Takes the next token of the text: amortized O(1).
  void push(int32_t token);

  size_t size() const { return text_.size(); }
  // Length of the longest end of the text that also occurs earlier.
  int32_t match_length() const { return match_length_; }
  // How many bits that length has, less one; below kMatchKinds, and -1 without a match.
  int match_kind() const;
  // What followed the last earlier occurrence of that end: up to `count` tokens, none without a match. At the end of
  // the text it continues with the draft itself, so that periods are prolonged. It ends at a negative token, which
  // separates unrelated texts.
  std::vector<int32_t> draft(size_t count) const;

 private:
  struct State {
    int32_t length = 0;  // of the longest string that leads here
    int32_t link = -1;
    int32_t last_end = -1;   // position of the last token of an occurrence
    int32_t first_edge = -1;
  };
  struct Edge {
    int32_t state;  // from which it leads
    int32_t token;
    int32_t target;
    int32_t next;  // of the same state
  };

  int32_t find(int32_t state, int32_t token) const;  // edge, or -1
  size_t place_of(int32_t state, int32_t token) const;  // in index_: that of the edge, or where it belongs
  void enlarge_index();
  void add_edge(int32_t state, int32_t token, int32_t target);
  int32_t clone_for(int32_t from, int32_t edge, int32_t token);

  std::vector<int32_t> text_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  // (state, token) -> edge + 1, 0 where there is none: a power of two of places, probed one after the other. Nothing is
  // ever removed, and an edge stores its key.
  std::vector<int32_t> index_;
  int32_t last_ = 0;
  int32_t match_length_ = 0;
  int32_t match_end_ = -1;
};

}  // namespace headrace
