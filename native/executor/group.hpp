// Processes that run one program together (tensor parallelism): each computes a share of every product's outputs, and
// all read the whole results in memory that they have mapped.
#pragma once
#include <atomic>
#include <cstdint>

namespace headrace {

// The shared memory begins with a header: which rank is lost (plus one; 0: none), how many wait in the kernel, and for each
// rank, in a line of its own, how often it has met the others. A new file's zeros are its first state.
class Group {
 public:
  static constexpr int kMaxRanks = 32;
  static constexpr int64_t kHeaderBytes = 4096;
  static constexpr double kLongestWaitS = 300;

  // std::invalid_argument where the memory has no header or there is no such rank. `threads`: of each rank.
  Group(uint8_t* memory, int64_t bytes, int rank, int ranks, int threads);

  uint8_t* arena() const { return memory_ + kHeaderBytes; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Returns once every rank has called it as often as this one: what each wrote before is seen by all. False where a
  // rank is lost, as whoever watches the processes says in the header, or has not come within kLongestWaitS.
  bool meet();

 private:
  using Word = std::atomic<uint32_t>;
  static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);
  static constexpr int kLine = 64;

  Word& lost() const { return *reinterpret_cast<Word*>(memory_); }
  Word& sleepers() const { return *reinterpret_cast<Word*>(memory_ + 4); }
  Word& meetings_of(int rank) const { return *reinterpret_cast<Word*>(memory_ + kLine * (1 + rank)); }
  bool wait_for(int rank, uint32_t meetings) const;

  uint8_t* memory_;
  int rank_, ranks_, spins_;
  uint32_t meetings_ = 0;  // may wrap
};

}  // namespace headrace
