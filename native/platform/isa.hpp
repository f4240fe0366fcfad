// Which instruction set runs. Every file in kernels/ is compiled once per ISA, with HEADRACE_ISA set
// to one of the names below, and exports one table of functions; the active ISA is probed at run
// time and can be forced with the environment variable HEADRACE_ISA (for tests).
#pragma once

namespace headrace {

// `amx` is avx512 with matrix units for products of int8 and bf16 and for attention over bf16; everything else is what
// avx512 has.
enum class Isa { portable = 0, avx2 = 1, avx512 = 2, amx = 3, neon = 4 };
inline constexpr int kIsaCount = 5;

// The ISA in use: the best that is compiled in and that this CPU has, or what HEADRACE_ISA names.
Isa active_isa();
const char* isa_name(Isa isa);
bool isa_usable(Isa isa);  // compiled in, and this CPU has it

}  // namespace headrace

#define HEADRACE_CONCAT_(a, b) a##b
#define HEADRACE_CONCAT(a, b) HEADRACE_CONCAT_(a, b)
// The name of a family's table in this compilation unit, e.g. linear_kernels_avx512.
#define HEADRACE_TABLE(family) HEADRACE_CONCAT(family##_kernels_, HEADRACE_ISA)
// Everything else in such a unit lives in a namespace of its own, so that no function compiled for
// a newer ISA can be picked by the linker for an older one.
#define HEADRACE_NAMESPACE HEADRACE_CONCAT(isa_, HEADRACE_ISA)
