#include "turns.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <stdexcept>

#ifdef __linux__
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace headrace {
namespace {

constexpr uint32_t kReady = 0x54524e33;
constexpr uint32_t kInitializing = 1;
constexpr double kInitS = 1.0;  // after this who began to initialize the arena is taken to be dead
constexpr double kPatienceS[Turns::kTiers] = {0.0, 1.0, 2.0};
constexpr double kPauseS = 0.5;   // between two turns: who asked for none so long has no claim to what it missed
constexpr double kCreditS = 0.5;  // of virtual time: most that one who always has work may be behind the others
constexpr int kRest = 8;          // turns without a reservation beside equals, after one that was not used
constexpr double kNever = std::numeric_limits<double>::infinity();

double now(clockid_t clock = CLOCK_MONOTONIC) {
  timespec time;
  clock_gettime(clock, &time);
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

int own_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

}  // namespace

// All under the arena's mutex, but for `alive`, and `woken`, which is only a hint.
struct alignas(64) Turns::Slot {
  pthread_mutex_t alive;        // held by the member's thread
  std::atomic<uint32_t> woken;  // futex: counts grants
  int pid, most;
  int holds;     // cores of its turn
  int reserved;  // cores that are kept for its next turn, until then or until `reserved_until_s`
  bool waits;    // and holds none
  bool again;    // its last turn ended with more to compute
  bool paused;
  int rest;
  TurnAsk ask;
  double share, asked_s, began_s, ended_s, reserved_until_s;
  double used_s, vtime;
  double processor_s;  // of its process when its last turn ended; negative: not known
  uint64_t turns;
};

struct Turns::Arena {
  std::atomic<uint32_t> magic;
  pthread_mutex_t mutex;
  int cores;
  int top;             // slots from this one on were never used
  double floor;        // virtual time of the latest turn's start: who comes back starts there
  double contended_s;  // when somebody waited last
  double granted_s[kTiers];
  Slot slots[kSlots];
};

size_t Turns::bytes() { return sizeof(Arena); }

Turns::Turns(int fd, int cores) {
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
      arena_->cores = cores > 0 ? cores : own_cores();
      arena_->contended_s = -kNever;
      arena_->magic.store(kReady, std::memory_order_release);
    } else {
      usleep(100);
    }
  }
}

Turns::~Turns() { munmap(arena_, bytes()); }

int Turns::cores() const { return arena_->cores; }

Turns::Slot& Turns::slot(int index) const { return arena_->slots[index]; }

void Turns::lock() const {
  // A death between two stores leaves at worst a turn of the dead, which is freed as any other.
  if (pthread_mutex_lock(&arena_->mutex) == EOWNERDEAD) pthread_mutex_consistent(&arena_->mutex);
}

void Turns::unlock() const { pthread_mutex_unlock(&arena_->mutex); }

// Whether its thread does; the slot of a dead one is free afterwards, and so are its cores.
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
  one.waits = one.again = false;
  one.holds = one.reserved = one.pid = one.rest = 0;
  one.used_s = 0;
  one.turns = 0;
}

int Turns::join(double share, int most) {
  if (!(share > 0)) throw std::runtime_error("a share of turns must be positive");
  lock();
  for (int index = 0; index < kSlots; ++index) {
    Slot& one = slot(index);
    const int error = pthread_mutex_trylock(&one.alive);
    if (error == EBUSY) continue;
    if (error == EOWNERDEAD) pthread_mutex_consistent(&one.alive);
    clear(index);
    arena_->top = std::max(arena_->top, index + 1);
    one.share = share;
    one.most = most > 0 ? std::min(most, arena_->cores) : arena_->cores;
    one.paused = true;
    one.vtime = arena_->floor;
    one.processor_s = -1;
    one.pid = getpid();
    grant_all(now());  // a dead member may have had cores
    unlock();
    return index;
  }
  unlock();
  throw std::runtime_error("more loops than an arena of turns has slots");
}

void Turns::leave(int index) {
  lock();
  clear(index);
  grant_all(now());
  pthread_mutex_unlock(&slot(index).alive);
  unlock();
}

void Turns::ask_for(int index, const TurnAsk& ask, double now_s) {
  Slot& own = slot(index);
  own.ask = ask;
  own.asked_s = now_s;
  own.reserved = 0;  // most often it is still the best
  own.waits = true;
  grant_all(now_s, index);
}

void Turns::began(int index, double now_s) {
  Slot& own = slot(index);
  own.waits = false;
  own.began_s = now_s;
  const bool paused = own.paused || own.asked_s - own.ended_s > kPauseS;  // waiting is no pause
  own.vtime = std::max(own.vtime, arena_->floor - (paused ? 0.0 : kCreditS));
  arena_->granted_s[own.ask.tier] = now_s;
}

bool Turns::try_begin(int index, const TurnAsk& ask) {
  Slot& own = slot(index);
  lock();
  const double now_s = now();
  ask_for(index, ask, now_s);
  const bool granted = own.holds > 0;
  if (granted) began(index, now_s);
  own.waits = false;
  unlock();
  return granted;
}

double Turns::begin(int index, const TurnAsk& ask) {
  Slot& own = slot(index);
  lock();
  const double asked_s = now();
  ask_for(index, ask, asked_s);
  double now_s = asked_s;
  while (own.holds == 0) {
    arena_->contended_s = now_s;
    const uint32_t woken = own.woken.load(std::memory_order_relaxed);
    unlock();
    futex_wait(own.woken, woken, kLookS);
    lock();
    now_s = now();
    if (own.holds > 0) break;
    own.waits = true;  // whatever a death under the mutex has left
    free_lost(index, now_s);
    grant_all(now_s, index);
  }
  began(index, now_s);
  unlock();
  return now_s - asked_s;
}

// Cores of the dead and of turns that take too long, and those that were reserved for too long or for one of a worse
// tier than this one that waits.
void Turns::free_lost(int index, double now_s) {
  const int tier = slot(index).ask.tier;
  for (int other = 0; other < arena_->top; ++other) {
    Slot& one = slot(other);
    if (one.holds == 0 && one.reserved == 0) continue;
    if (!lives(other)) continue;
    if (one.holds > 0 && now_s - one.began_s > kLendS) one.holds = 0;  // a stopped process cannot end its turn
    if (one.reserved == 0) continue;
    const bool late = now_s >= one.reserved_until_s;
    if (late) one.rest = kRest;
    if (late || tier < one.ask.tier) one.reserved = 0;
  }
}

void Turns::end(int index, bool again) {
  lock();
  Slot& own = slot(index);
  const double now_s = now();
  const double used_s = charge(index, now_s) / arena_->cores;
  arena_->floor = std::max(arena_->floor, own.vtime);
  own.used_s += used_s;
  own.vtime += used_s / own.share;
  own.turns += 1;
  own.ended_s = now_s;
  own.paused = !again;
  own.again = again;
  const int held = own.holds;
  own.holds = 0;
  const int next = best(now_s);
  if (next >= 0) {
    if (again && keeps(index, next, now_s)) {
      own.reserved = std::min(held, part_of(index, now_s).cores);
      own.reserved_until_s = now_s + kReserveS;
    }
    grant_all(now_s);
  }
  unlock();
}

// Seconds of one core that a turn counts for: where it can be told, what the process has had since its last turn
// ended. So what it computes between turns counts, and what other work of the machine took from it does not.
double Turns::charge(int index, double now_s) {
  Slot& own = slot(index);
  int others = 0, of_process = 0;
  for (int other = 0; other < arena_->top; ++other) {
    others += other != index && slot(other).pid != 0;
    of_process += slot(other).pid == own.pid;
  }
  const double before_s = own.processor_s;
  own.processor_s = others > 0 && of_process == 1 ? now(CLOCK_PROCESS_CPUTIME_ID) : -1;
  return before_s >= 0 && own.processor_s >= 0 ? own.processor_s - before_s : (now_s - own.began_s) * own.holds;
}

int Turns::held(int index) const { return slot(index).holds; }

// Whether it competes for cores.
bool Turns::wants(int index, double now_s) const {
  const Slot& one = slot(index);
  if (one.pid == 0) return false;
  if (one.holds == 0 && !one.waits && !(one.again && now_s - one.ended_s < kAwayS)) return false;
  return lives(index);
}

// How many cores its next turn has, and how many it waits for.
Turns::Part Turns::part_of(int index, double now_s) const {
  const Slot& own = slot(index);
  double shares = own.share, least = kNever;
  for (int other = 0; other < arena_->top; ++other) {
    if (other == index || !wants(other, now_s)) continue;
    const Slot& one = slot(other);
    shares += one.share;
    if (one.ask.tier == own.ask.tier) least = std::min(least, one.vtime);
  }
  if (shares == own.share || own.ask.whole) return {own.most, own.most};
  const double exact = arena_->cores * own.share / shares;
  const bool ahead = own.vtime > least + kBurstS, behind = own.vtime + kBurstS < least && least < kNever;
  const int cores = std::clamp(static_cast<int>(ahead ? exact : std::ceil(exact - 1e-9)), 1, own.most);
  return {cores, behind ? cores : (cores + 1) / 2};
}

int Turns::free_cores() const {
  int taken = 0;
  for (int index = 0; index < arena_->top; ++index) taken += slot(index).holds + slot(index).reserved;
  return arena_->cores - taken;
}

// Whether none of its tier had a turn for too long.
bool Turns::promoted(const Slot& one, double now_s) const {
  const int tier = one.ask.tier;
  return tier > 0 && now_s - std::max(arena_->granted_s[tier], one.asked_s) > kPatienceS[tier];
}

// Which of those that wait goes next; -1 where none does.
int Turns::best(double now_s) const {
  int level = kTiers;
  double least = 0;
  const auto waits = [](const Slot& one) { return one.waits && one.holds == 0; };
  const auto level_of = [&](const Slot& one) { return promoted(one, now_s) ? -1 : one.ask.tier; };
  for (int index = 0; index < arena_->top; ++index) {
    const Slot& one = slot(index);
    if (!waits(one) || !lives(index)) continue;
    const int own = level_of(one);
    if (own > level) continue;
    least = own < level ? one.vtime : std::min(least, one.vtime);
    level = own;
  }
  int chosen = -1;
  double earliest = 0;
  for (int index = 0; index < arena_->top; ++index) {
    const Slot& one = slot(index);
    if (!waits(one) || level_of(one) != level || one.vtime > least + kBurstS) continue;
    // Without a deadline of its own: in the order of asking, as if it were due after a second.
    const double due = std::min(one.ask.deadline_s, one.asked_s + 1.0);
    if (chosen < 0 || due < earliest) chosen = index, earliest = due;
  }
  return chosen;
}

// Whether it would win against the best of those that wait, had it asked already.
bool Turns::keeps(int index, int other, double now_s) const {
  Slot& own = slot(index);
  const Slot& one = slot(other);
  if (promoted(one, now_s) || own.ask.tier > one.ask.tier) return false;
  if (own.ask.tier < one.ask.tier) return true;
  if (own.rest > 0) {
    --own.rest;
    return false;
  }
  return own.vtime + kBurstS < one.vtime;
}

// Cores to those that wait, in order, until the first for whom there are not enough. All but `self` are woken.
void Turns::grant_all(double now_s, int self) {
  for (int free = free_cores(); free > 0; free = free_cores()) {
    const int next = best(now_s);
    if (next < 0) return;
    const Part part = part_of(next, now_s);
    if (free < part.least) return;
    Slot& one = slot(next);
    one.holds = std::min(part.cores, free);
    one.waits = false;
    one.began_s = now_s;
    arena_->granted_s[one.ask.tier] = now_s;
    if (next == self) continue;
    one.woken.fetch_add(1, std::memory_order_relaxed);
    futex_wake(one.woken);
  }
}

bool Turns::contended(double within_s) const {
  lock();
  bool found = now() - arena_->contended_s < within_s;
  for (int index = 0; index < arena_->top && !found; ++index) found = slot(index).waits && slot(index).holds == 0;
  unlock();
  return found;
}

std::vector<TurnUse> Turns::members() const {
  std::vector<TurnUse> found;
  lock();
  for (int index = 0; index < arena_->top; ++index) {
    const Slot& one = slot(index);
    if (one.pid != 0 && lives(index)) found.push_back({one.pid, one.used_s, one.turns});
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
Turns::Turns(int, int) { throw std::runtime_error("turns between processes need Linux"); }
Turns::~Turns() = default;
int Turns::cores() const { return 1; }
int Turns::join(double, int) { return 0; }
void Turns::leave(int) {}
bool Turns::try_begin(int, const TurnAsk&) { return true; }
double Turns::begin(int, const TurnAsk&) { return 0; }
void Turns::end(int, bool) {}
int Turns::held(int) const { return 0; }
bool Turns::contended(double) const { return false; }
std::vector<TurnUse> Turns::members() const { return {}; }

}  // namespace headrace

#endif
