// Probes the CPU once. An instruction set counts as present only where the operating system also
// saves its registers (XCR0), and where every extension that its files are compiled with is there.
#include "isa.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace headrace {
namespace {

constexpr const char* kNames[kIsaCount] = {"portable", "avx2", "avx512", "amx", "neon"};

#if defined(__x86_64__)
struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf read_leaf(uint32_t leaf, uint32_t subleaf) {
  Leaf r;
  if (leaf <= __get_cpuid_max(0, nullptr)) __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}

uint64_t enabled_register_states() {  // XCR0, only where cpuid reports OSXSAVE
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool has(uint32_t word, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if (((word >> bit) & 1u) == 0) return false;
  }
  return true;
}

// Linux lets a process use the matrix registers after a request, which holds for all of its threads.
bool may_use_matrix_registers() {
#ifdef __linux__
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

bool cpu_has(Isa isa) {
  if (isa == Isa::portable) return true;
  const Leaf one = read_leaf(1, 0);
  if (!has(one.ecx, {27 /* OSXSAVE */, 28 /* AVX */, 12 /* FMA */, 29 /* F16C */})) return false;
  const uint64_t states = enabled_register_states();
  const Leaf seven = read_leaf(7, 0);
  if ((states & 0x6) != 0x6 || !has(seven.ebx, {5 /* AVX2 */})) return false;
  if (isa == Isa::avx2) return true;
  if ((isa != Isa::avx512 && isa != Isa::amx) || (states & 0xE6) != 0xE6) return false;
  const bool vectors = has(seven.ebx, {16 /* F */, 17 /* DQ */, 30 /* BW */, 31 /* VL */}) &&
                       has(seven.ecx, {1 /* VBMI */, 11 /* VNNI */}) && has(read_leaf(7, 1).eax, {5 /* BF16 */});
  if (isa == Isa::avx512 || !vectors) return vectors;
  return (states & 0x60000) == 0x60000 && has(seven.edx, {22 /* AMX-BF16 */, 24 /* AMX-TILE */, 25 /* AMX-INT8 */}) &&
         may_use_matrix_registers();
}
#elif defined(__aarch64__)
bool cpu_has(Isa isa) {
  if (isa == Isa::portable) return true;
  if (isa != Isa::neon) return false;
#ifdef __linux__
  const unsigned long needed = HWCAP_ASIMDDP | HWCAP_ASIMDHP | HWCAP_FPHP;
  return (getauxval(AT_HWCAP) & needed) == needed;
#else
  return true;  // every 64-bit ARM machine that Apple sells has them
#endif
}
#else
bool cpu_has(Isa isa) { return isa == Isa::portable; }
#endif

bool compiled_in(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return true;
#ifdef HEADRACE_HAVE_avx2
    case Isa::avx2:
      return true;
#endif
#ifdef HEADRACE_HAVE_avx512
    case Isa::avx512:
      return true;
#endif
#ifdef HEADRACE_HAVE_amx
    case Isa::amx:
      return true;
#endif
#ifdef HEADRACE_HAVE_neon
    case Isa::neon:
      return true;
#endif
    default:
      return false;
  }
}

Isa choose_isa() {
  const char* forced = std::getenv("HEADRACE_ISA");
  if (forced == nullptr || *forced == '\0') {
    for (const Isa isa : {Isa::amx, Isa::avx512, Isa::avx2, Isa::neon}) {
      if (isa_usable(isa)) return isa;
    }
    return Isa::portable;
  }
  std::string usable;
  for (int i = 0; i < kIsaCount; ++i) {
    if (!isa_usable(static_cast<Isa>(i))) continue;
    if (std::strcmp(forced, kNames[i]) == 0) return static_cast<Isa>(i);
    usable += usable.empty() ? kNames[i] : std::string(", ") + kNames[i];
  }
  throw std::runtime_error("HEADRACE_ISA=" + std::string(forced) + " is not usable on this machine: set it to one of " +
                           usable + ", or unset it");
}

}  // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool isa_usable(Isa isa) {
  static const std::array<bool, kIsaCount> usable = [] {
    std::array<bool, kIsaCount> found{};
    for (int i = 0; i < kIsaCount; ++i) found[i] = compiled_in(static_cast<Isa>(i)) && cpu_has(static_cast<Isa>(i));
    return found;
  }();
  return usable[static_cast<size_t>(isa)];
}

Isa active_isa() {
  static const Isa isa = choose_isa();  // a throwing initialiser runs again on the next call
  return isa;
}

}  // namespace headrace
