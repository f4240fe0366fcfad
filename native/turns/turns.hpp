// Turns over the machine's cores: several loops, in one process or several, compute on disjoint parts of them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// What a loop says when it asks for a turn. `tier` is 0 (interactive) to 2 (batch), the lower goes first;
// `deadline_s` is a time of CLOCK_MONOTONIC, infinite where there is none. `whole`: it waits for all cores that it can
// use; otherwise it takes its part of them while others want some too.
struct TurnAsk {
  int tier = 1;
  double deadline_s = 0;
  double predicted_s = 0;
  bool whole = true;
};

// What a member of an arena has had.
struct TurnUse {
  int pid = 0;
  double used_s = 0;  // of all cores: half of them for two seconds are one; see `charge`
  uint64_t turns = 0;
};

// How many cores a turn has:
// - All that the loop can use where no other wants any. Those want some that compute, that wait, or that have ended a
//   turn with more to compute within kAwayS.
// - Else its part, cores * share / shares of all that want some; rounded down where it has had more than kBurstS more
//   than the others of its tier, else up, and one at least. It waits for half of that, and all where it is kBurstS behind.
//
// The order of turns:
// - The better tier first. A tier of which none had a turn for its patience goes first once, so that each progresses.
// - Within a tier those that have had no more than kBurstS more of their share than the one that has had least; of
//   these the earliest deadline (as earliest eligible virtual deadline first, Stoica and Abdel-Wahab 1995, with real
//   deadlines). Counted is the time of the member's process on all its cores divided by its share (seconds times cores of
//   its turns, where several members are of one process); who comes back after a pause starts with what the others
//   have had.
// - Nobody overtakes the first that waits, also where there are cores for the second only: many small would keep a
//   large one waiting for ever.
// - A loop that ends a turn and has more to compute keeps its cores reserved for kReserveS where it would win against
//   all that wait: otherwise who asks a moment later, because it does other work between two turns, would always
//   lose to who waits.
//
// All state is under one robust mutex. Every member holds another as long as its thread lives. Those that wait look
// every kLookS whether those that have turns still do, and go on where they do not: no other process has to notice a
// death, which leaves nothing to repair. A turn that takes longer than kLendS, as that of a stopped process does, keeps
// nobody waiting any longer: its cores are granted to others too, and its loop computes on beside them if it can.
class Turns {
 public:
  static constexpr int kSlots = 64;
  static constexpr int kTiers = 3;
  static constexpr double kBurstS = 0.02;
  static constexpr double kReserveS = 2e-3;
  static constexpr double kAwayS = 1e-2;
  static constexpr double kLookS = 2e-3;
  static constexpr double kLendS = 2.0;

  // Maps the arena in the file `fd` (of `bytes()` zeros when it is new), or one of this process alone with -1. Who
  // makes it says how many cores it has; 0: those that it may run on.
  // std::runtime_error where the system has no futexes or robust mutexes, or the mapping fails.
  explicit Turns(int fd, int cores = 0);
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  static size_t bytes();
  int cores() const;

  // Become a member with a share > 0, for the calling thread, which must call `begin`, `end` and `leave` itself. It can
  // use `most` cores (0: all). std::runtime_error where all slots are taken.
  int join(double share, int most = 0);
  void leave(int slot);  // also ends its turn

  bool try_begin(int slot, const TurnAsk& ask);  // without waiting: false, and no turn, where it would have to
  double begin(int slot, const TurnAsk& ask);    // waits for the turn; the seconds that it waited
  void end(int slot, bool again);                // `again`: it has more to compute
  int held(int slot) const;                      // cores of its turn, 0 without; for its thread

  // Whether another member waits, or has waited within the last `within_s` seconds.
  bool contended(double within_s) const;
  std::vector<TurnUse> members() const;  // those that live

 private:
  struct Arena;
  struct Slot;
  struct Part {
    int cores, least;
  };
  Slot& slot(int index) const;
  void lock() const;
  void unlock() const;
  bool lives(int index) const;
  void clear(int index) const;
  bool wants(int index, double now_s) const;
  Part part_of(int index, double now_s) const;
  int free_cores() const;
  int best(double now_s) const;
  void ask_for(int index, const TurnAsk& ask, double now_s);
  void grant_all(double now_s, int self = -1);
  void free_lost(int index, double now_s);
  double charge(int index, double now_s);
  bool keeps(int index, int other, double now_s) const;
  bool promoted(const Slot& slot, double now_s) const;
  void began(int index, double now_s);

  Arena* arena_ = nullptr;
};

}  // namespace headrace
