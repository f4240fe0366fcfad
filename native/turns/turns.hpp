// Turns over the machine's cores: of several loops, in one process or several, one computes at a time.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// What a loop says when it asks for a turn. `tier` is 0 (interactive) to 2 (batch), the lower goes first;
// `deadline_s` is a time of CLOCK_MONOTONIC, infinite where there is none.
struct TurnAsk {
  int tier = 1;
  double deadline_s = 0;
  double predicted_s = 0;
};

// What a member of an arena has had.
struct TurnUse {
  int pid = 0;
  double used_s = 0;
  uint64_t turns = 0;
};

// The order of turns:
// - The better tier first. A tier of which none had a turn for its patience goes first once, so that each progresses.
// - Within a tier those that have had no more than kBurstS more of their share than the one that has had least; of
//   these the earliest deadline (as earliest eligible virtual deadline first, Stoica and Abdel-Wahab 1995, with real
//   deadlines). Time is counted in seconds of turns divided by the member's share; who comes back after a pause starts
//   with what the others have had.
// - A loop that ends a turn and has more to compute keeps the cores reserved for kReserveS where it would win against
//   all that wait: otherwise who asks a moment later, because it does other work between two turns, would always
//   lose to who waits.
//
// Without waiters a turn is one compare-and-swap at each end. Every member holds a robust mutex as long as its thread
// lives. Those that wait look every kLookS whether the one that has the turn still does, and go on where it does not:
// no other process has to notice its death. All state is in one mapping, which a death may leave at any point: what
// counts is `state_`, and waking is only a hint.
class Turns {
 public:
  static constexpr int kSlots = 64;
  static constexpr int kTiers = 3;
  static constexpr double kBurstS = 0.02;
  static constexpr double kReserveS = 2e-3;
  static constexpr double kLookS = 2e-3;

  // Maps the arena in the file `fd` (of `bytes()` zeros when it is new), or one of this process alone with -1.
  // std::runtime_error where the system has no futexes or robust mutexes, or the mapping fails.
  explicit Turns(int fd);
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  static size_t bytes();

  // Become a member with a share > 0, for the calling thread, which must call `begin`, `end` and `leave` itself.
  int join(double share);  // std::runtime_error where all slots are taken
  void leave(int slot);    // also ends its turn

  bool try_begin(int slot, const TurnAsk& ask);  // without waiting: true where nobody has or wants the turn
  double begin(int slot, const TurnAsk& ask);    // waits for the turn; the seconds that it waited
  void end(int slot, bool again);                // `again`: it has more to compute

  // Whether another member waits, or has waited within the last `within_s` seconds.
  bool contended(double within_s) const;
  std::vector<TurnUse> members() const;  // those that live

 private:
  struct Arena;
  struct Slot;
  Slot& slot(int index) const;
  void lock() const;
  void unlock() const;
  bool lives(int index) const;
  void clear(int index) const;
  int best(double now_s) const;
  void grant(int index, double now_s);
  void grant_best(double now_s);
  bool keeps(const Slot& own, int other, double now_s) const;
  bool promoted(const Slot& slot, double now_s) const;
  bool settle(int index, double now_s);
  void began(int index);
  void set_waiters() const;

  Arena* arena_ = nullptr;
};

}  // namespace headrace
