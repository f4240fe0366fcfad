// Defines the lookup of a family's kernels by ISA, e.g. in linear_table.cpp:
//   HEADRACE_TABLE_LOOKUP(LinearKernels, linear)
// defines `const LinearKernels& linear_kernels(Isa)` over linear_kernels_portable, _avx2, ... Families that have kernels for
// amx of their own define HEADRACE_TABLE_AMX before this is included; for the others it is avx512.
#pragma once
#include "../isa.hpp"

#define HEADRACE_TABLE_DECLARE(Struct, family, isa) extern const Struct family##_kernels_##isa;
#define HEADRACE_TABLE_CASE(family, isa) \
  case Isa::isa:                         \
    return family##_kernels_##isa;

#define HEADRACE_TABLE_LOOKUP(Struct, family)                       \
  namespace headrace {                                              \
  HEADRACE_TABLE_EXTERNS(Struct, family)                            \
  const Struct& family##_kernels(Isa isa) {                         \
    switch (isa) {                                                  \
      HEADRACE_TABLE_CASES(family)                                  \
      default:                                                      \
        return family##_kernels_portable;                           \
    }                                                               \
  }                                                                 \
  }

#if defined(HEADRACE_TABLE_AMX) && defined(HEADRACE_HAVE_amx)
#define HEADRACE_TABLE_DECLARE_AMX(Struct, family) HEADRACE_TABLE_DECLARE(Struct, family, amx)
#define HEADRACE_TABLE_CASE_AMX(family) HEADRACE_TABLE_CASE(family, amx)
#else
#define HEADRACE_TABLE_DECLARE_AMX(Struct, family)
#define HEADRACE_TABLE_CASE_AMX(family) \
  case Isa::amx:                        \
    return family##_kernels_avx512;
#endif

#if defined(HEADRACE_HAVE_avx2) && defined(HEADRACE_HAVE_avx512)
#define HEADRACE_TABLE_EXTERNS(Struct, family)     \
  HEADRACE_TABLE_DECLARE(Struct, family, portable) \
  HEADRACE_TABLE_DECLARE(Struct, family, avx2)     \
  HEADRACE_TABLE_DECLARE(Struct, family, avx512)   \
  HEADRACE_TABLE_DECLARE_AMX(Struct, family)
#define HEADRACE_TABLE_CASES(family)                                      \
  HEADRACE_TABLE_CASE(family, avx2) HEADRACE_TABLE_CASE(family, avx512) \
  HEADRACE_TABLE_CASE_AMX(family)
#elif defined(HEADRACE_HAVE_neon)
#define HEADRACE_TABLE_EXTERNS(Struct, family) \
  HEADRACE_TABLE_DECLARE(Struct, family, portable) HEADRACE_TABLE_DECLARE(Struct, family, neon)
#define HEADRACE_TABLE_CASES(family) HEADRACE_TABLE_CASE(family, neon)
#else
#define HEADRACE_TABLE_EXTERNS(Struct, family) HEADRACE_TABLE_DECLARE(Struct, family, portable)
#define HEADRACE_TABLE_CASES(family)
#endif
