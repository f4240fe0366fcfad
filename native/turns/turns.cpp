#include "turns.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <stdexcept>

#ifdef __linux__
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace headrace {
namespace {

constexpr uint32_t kReady = 0x54524e32;
constexpr uint32_t kInitializing = 1;
constexpr double kInitS = 1.0;  // after this who began to initialize the arena is taken to be dead
// `state_`: the owner's slot plus one (0: nobody has the turn), and two flags.
constexpr uint32_t kOwner = 0xffff;
constexpr uint32_t kWaiters = 1u << 16;
constexpr uint32_t kReserved = 1u << 17;  // for the owner, which does not compute now
constexpr double kPatienceS[Turns::kTiers] = {0.0, 1.0, 2.0};
constexpr double kPauseS = 0.5;   // between two turns: who asked for none so long has no claim to what it missed
constexpr double kCreditS = 0.5;   // of virtual time: most that one who always has work may be behind the others
constexpr int kRest = 8;  // turns without a reservation beside equals, after one that was not used

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, double seconds) {
  timespec time{0, static_cast<long>(seconds * 1e9)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void init_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

}  // namespace

// Fields without a comment are guarded by the arena's mutex, or belong to the slot's member while it does not wait.
struct alignas(64) Turns::Slot {
  pthread_mutex_t alive;        // held by the member's thread
  std::atomic<uint32_t> woken;  // futex: counts grants
  std::atomic<uint32_t> waits;
  std::atomic<int32_t> pid;
  std::atomic<int> tier;  // of `ask`: others read it while the member has the turn
  TurnAsk ask;
  double share, asked_s, began_s, ended_s, reserved_until_s;
  int rest;
  bool paused;
  std::atomic<double> used_s, vtime, began_vtime;  // written by the member while it has the turn
  std::atomic<uint64_t> turns;
};

struct Turns::Arena {
  std::atomic<uint32_t> magic;
  pthread_mutex_t mutex;
  alignas(64) std::atomic<uint32_t> state;
  std::atomic<double> floor;        // virtual time of the last turn's start: who comes back starts there
  std::atomic<double> contended_s;  // when somebody waited last
  std::atomic<double> granted_s[kTiers];
  Slot slots[kSlots];
};

size_t Turns::bytes() { return sizeof(Arena); }

Turns::Turns(int fd) {
  struct stat file;
  if (fd >= 0 && (fstat(fd, &file) != 0 || static_cast<size_t>(file.st_size) < bytes())) {
    throw std::runtime_error("the file of turns is too small");
  }
  void* mapped = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error("the memory of turns cannot be mapped");
  arena_ = static_cast<Arena*>(mapped);
  const double from_s = now();
  while (arena_->magic.load(std::memory_order_acquire) != kReady) {
    uint32_t fresh = 0;
    if (arena_->magic.compare_exchange_strong(fresh, kInitializing) || now() - from_s > kInitS) {
      init_mutex(arena_->mutex);
      for (Slot& one : arena_->slots) init_mutex(one.alive);
      arena_->contended_s.store(-std::numeric_limits<double>::infinity());
      arena_->magic.store(kReady, std::memory_order_release);
    } else {
      usleep(100);
    }
  }
}

Turns::~Turns() { munmap(arena_, bytes()); }

Turns::Slot& Turns::slot(int index) const { return arena_->slots[index]; }

void Turns::lock() const {
  // Every change under it is complete by its last store, so a death leaves nothing to repair.
  if (pthread_mutex_lock(&arena_->mutex) == EOWNERDEAD) pthread_mutex_consistent(&arena_->mutex);
}

void Turns::unlock() const { pthread_mutex_unlock(&arena_->mutex); }

// With the mutex held: whether its thread does; the slot of a dead one is free afterwards.
bool Turns::lives(int index) const {
  const int error = pthread_mutex_trylock(&slot(index).alive);
  if (error == EBUSY) return true;
  if (error == EOWNERDEAD) pthread_mutex_consistent(&slot(index).alive);
  clear(index);
  pthread_mutex_unlock(&slot(index).alive);
  return false;
}

void Turns::clear(int index) const {
  Slot& one = slot(index);
  one.waits.store(0);
  one.pid.store(0);
  one.rest = 0;
  one.used_s.store(0);
  one.turns.store(0);
}

int Turns::join(double share) {
  if (!(share > 0)) throw std::runtime_error("a share of turns must be positive");
  lock();
  for (int index = 0; index < kSlots; ++index) {
    Slot& one = slot(index);
    const int error = pthread_mutex_trylock(&one.alive);
    if (error == EBUSY) continue;
    if (error == EOWNERDEAD) pthread_mutex_consistent(&one.alive);
    clear(index);
    // A dead member may still have the turn. It must not pass to who has its slot now.
    if ((arena_->state.load() & kOwner) == static_cast<uint32_t>(index) + 1) {
      arena_->state.store(0);
      grant_best(now());
    }
    one.share = share;
    one.paused = true;
    one.vtime.store(arena_->floor.load());
    one.pid.store(getpid());
    unlock();
    return index;
  }
  unlock();
  throw std::runtime_error("more loops than an arena of turns has slots");
}

void Turns::leave(int index) {
  const uint32_t owner = arena_->state.load() & kOwner;
  lock();
  clear(index);
  if (owner == static_cast<uint32_t>(index) + 1) {
    arena_->state.store(0);
    grant_best(now());
  }
  pthread_mutex_unlock(&slot(index).alive);
  unlock();
}

void Turns::began(int index) {
  Slot& one = slot(index);
  one.began_s = now();
  const bool paused = one.paused || one.began_s - one.ended_s > kPauseS;
  const double least = arena_->floor.load(std::memory_order_relaxed) - (paused ? 0.0 : kCreditS);
  const double vtime = std::max(one.vtime.load(std::memory_order_relaxed), least);
  one.vtime.store(vtime, std::memory_order_relaxed);
  one.began_vtime.store(vtime, std::memory_order_relaxed);
  arena_->granted_s[one.tier.load(std::memory_order_relaxed)].store(one.began_s, std::memory_order_relaxed);
}

bool Turns::try_begin(int index, const TurnAsk& ask) {
  slot(index).ask = ask;
  slot(index).tier.store(ask.tier, std::memory_order_relaxed);
  uint32_t free = 0;
  if (!arena_->state.compare_exchange_strong(free, static_cast<uint32_t>(index) + 1, std::memory_order_acquire)) {
    return false;
  }
  began(index);
  return true;
}

double Turns::begin(int index, const TurnAsk& ask) {
  if (try_begin(index, ask)) return 0.0;
  Slot& own = slot(index);
  const uint32_t me = static_cast<uint32_t>(index) + 1;
  const double asked_s = now();
  lock();
  own.asked_s = asked_s;
  own.waits.store(1);
  for (double now_s = asked_s; !settle(index, now_s); now_s = now()) {
    const uint32_t woken = own.woken.load();
    unlock();
    // Who was granted the turn before this may have read `woken` after it was counted.
    if ((arena_->state.load(std::memory_order_acquire) & (kOwner | kReserved)) != me) {
      futex_wait(own.woken, woken, kLookS);
    }
    if ((arena_->state.load(std::memory_order_acquire) & (kOwner | kReserved)) == me) {
      began(index);
      return own.began_s - asked_s;
    }
    lock();
  }
  unlock();
  began(index);
  return own.began_s - asked_s;
}

// With the mutex held, for one that waits: true where it has the turn now.
bool Turns::settle(int index, double now_s) {
  const uint32_t me = static_cast<uint32_t>(index) + 1;
  arena_->contended_s.store(now_s, std::memory_order_relaxed);
  set_waiters();
  const uint32_t state = arena_->state.load();
  const uint32_t owner = state & kOwner;
  if (owner == me && (state & kReserved)) {
    grant_best(now_s);  // most often it is still the best
  } else if (owner != me && owner != 0) {
    Slot& holder = slot(static_cast<int>(owner) - 1);
    if (!lives(static_cast<int>(owner) - 1)) {
      grant_best(now_s);
    } else if (state & kReserved) {
      const bool late = now_s >= holder.reserved_until_s;
      if (late) holder.rest = kRest;
      if (late || slot(index).tier.load(std::memory_order_relaxed) < holder.tier.load(std::memory_order_relaxed)) grant_best(now_s);
    }
  } else if (owner == 0) {
    grant_best(now_s);
  }
  return (arena_->state.load() & (kOwner | kReserved)) == me;
}

// With the mutex held: from now on who ends a turn looks at those that wait.
void Turns::set_waiters() const { arena_->state.fetch_or(kWaiters, std::memory_order_acq_rel); }

void Turns::end(int index, bool again) {
  Slot& own = slot(index);
  const double now_s = now();
  const double used_s = now_s - own.began_s;
  own.ended_s = now_s;
  own.paused = !again;
  own.used_s.store(own.used_s.load(std::memory_order_relaxed) + used_s, std::memory_order_relaxed);
  own.vtime.store(own.began_vtime.load(std::memory_order_relaxed) + used_s / own.share, std::memory_order_relaxed);
  own.turns.store(own.turns.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  const double start = own.began_vtime.load(std::memory_order_relaxed);
  if (start > arena_->floor.load(std::memory_order_relaxed)) arena_->floor.store(start, std::memory_order_relaxed);
  uint32_t state = static_cast<uint32_t>(index) + 1;
  if (arena_->state.compare_exchange_strong(state, 0, std::memory_order_release)) return;
  lock();
  const int next = best(now_s);
  if (next < 0) {
    arena_->state.store(0, std::memory_order_release);
  } else if (again && keeps(own, next, now_s)) {
    own.reserved_until_s = now_s + kReserveS;
    arena_->state.store((static_cast<uint32_t>(index) + 1) | kReserved | kWaiters, std::memory_order_release);
  } else {
    grant(next, now_s);
  }
  unlock();
}

// With the mutex held: whether none of its tier had a turn for too long.
bool Turns::promoted(const Slot& one, double now_s) const {
  const int tier = one.tier.load(std::memory_order_relaxed);
  const double since_s = std::max(arena_->granted_s[tier].load(std::memory_order_relaxed), one.asked_s);
  return tier > 0 && now_s - since_s > kPatienceS[tier];
}

// With the mutex held: which of those that wait goes next; -1 where none does.
int Turns::best(double now_s) const {
  int level = kTiers;
  double least = 0;
  const auto level_of = [&](const Slot& one) { return promoted(one, now_s) ? -1 : one.tier.load(std::memory_order_relaxed); };
  const auto time_of = [](const Slot& one) { return one.vtime.load(std::memory_order_relaxed); };
  for (int index = 0; index < kSlots; ++index) {
    const Slot& one = slot(index);
    if (!one.waits.load(std::memory_order_relaxed) || !lives(index)) continue;
    const int own = level_of(one);
    if (own > level) continue;
    least = own < level ? time_of(one) : std::min(least, time_of(one));
    level = own;
  }
  int chosen = -1;
  double earliest = 0;
  for (int index = 0; index < kSlots; ++index) {
    const Slot& one = slot(index);
    if (!one.waits.load(std::memory_order_relaxed) || level_of(one) != level || time_of(one) > least + kBurstS) continue;
    // Without a deadline of its own: in the order of asking, as if it were due after a second.
    const double due = std::min(one.ask.deadline_s, one.asked_s + 1.0);
    if (chosen < 0 || due < earliest) chosen = index, earliest = due;
  }
  return chosen;
}

// With the mutex held: whether it would win against the best of those that wait, had it asked already.
bool Turns::keeps(const Slot& own, int other, double now_s) const {
  const Slot& one = slot(other);
  Slot& self = const_cast<Slot&>(own);
  if (promoted(one, now_s) || own.tier.load(std::memory_order_relaxed) > one.tier.load(std::memory_order_relaxed)) return false;
  if (own.tier.load(std::memory_order_relaxed) < one.tier.load(std::memory_order_relaxed)) return true;
  if (self.rest > 0) {
    --self.rest;
    return false;
  }
  return own.vtime.load(std::memory_order_relaxed) + kBurstS < one.vtime.load(std::memory_order_relaxed);
}

void Turns::grant(int index, double now_s) {
  Slot& one = slot(index);
  one.waits.store(0);
  bool others = false;
  for (const Slot& other : arena_->slots) others = others || other.waits.load(std::memory_order_relaxed);
  arena_->granted_s[one.tier.load(std::memory_order_relaxed)].store(now_s, std::memory_order_relaxed);
  arena_->state.store((static_cast<uint32_t>(index) + 1) | (others ? kWaiters : 0), std::memory_order_release);
  one.woken.fetch_add(1, std::memory_order_release);
  futex_wake(one.woken);
}

void Turns::grant_best(double now_s) {
  const int next = best(now_s);
  if (next < 0) {
    arena_->state.store(0, std::memory_order_release);
  } else {
    grant(next, now_s);
  }
}

bool Turns::contended(double within_s) const {
  if (arena_->state.load(std::memory_order_relaxed) & kWaiters) return true;
  return now() - arena_->contended_s.load(std::memory_order_relaxed) < within_s;
}

std::vector<TurnUse> Turns::members() const {
  std::vector<TurnUse> found;
  lock();
  for (int index = 0; index < kSlots; ++index) {
    const Slot& one = slot(index);
    if (one.pid.load() && lives(index)) found.push_back({one.pid.load(), one.used_s.load(), one.turns.load()});
  }
  unlock();
  return found;
}

}  // namespace headrace

#else  // no robust mutexes or futexes: every loop computes when it likes

namespace headrace {

struct Turns::Arena {};
struct Turns::Slot {};
size_t Turns::bytes() { return 0; }
Turns::Turns(int) { throw std::runtime_error("turns between processes need Linux"); }
Turns::~Turns() = default;
int Turns::join(double) { return 0; }
void Turns::leave(int) {}
bool Turns::try_begin(int, const TurnAsk&) { return true; }
double Turns::begin(int, const TurnAsk&) { return 0; }
void Turns::end(int, bool) {}
bool Turns::contended(double) const { return false; }
std::vector<TurnUse> Turns::members() const { return {}; }

}  // namespace headrace

#endif
