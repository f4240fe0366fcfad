// Defines the lookup of a family's kernels by ISA, e.g. in linear_table.cpp:
//   HEADRACE_TABLE_LOOKUP(LinearKernels, linear)
// defines `const LinearKernels& linear_kernels(Isa)` over linear_kernels_portable, _avx2, ... Families that have kernels for
// amx of their own define HEADRACE_TABLE_AMX before this is included; for the others it is avx512.
#pragma once
#include "../platform/isa.hpp"

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

// What of an instruction set is declared and looked up; nothing where it is not built.
#if defined(HEADRACE_HAVE_avx2)
#define HEADRACE_TABLE_DECLARE_AVX2(Struct, family) HEADRACE_TABLE_DECLARE(Struct, family, avx2)
#define HEADRACE_TABLE_CASE_AVX2(family) HEADRACE_TABLE_CASE(family, avx2)
#else
#define HEADRACE_TABLE_DECLARE_AVX2(Struct, family)
#define HEADRACE_TABLE_CASE_AVX2(family)
#endif

#if defined(HEADRACE_HAVE_avx512)
#define HEADRACE_TABLE_DECLARE_AVX512(Struct, family) HEADRACE_TABLE_DECLARE(Struct, family, avx512)
#define HEADRACE_TABLE_CASE_AVX512(family) HEADRACE_TABLE_CASE(family, avx512)
#else
#define HEADRACE_TABLE_DECLARE_AVX512(Struct, family)
#define HEADRACE_TABLE_CASE_AVX512(family)
#endif

#if defined(HEADRACE_HAVE_amx) && defined(HEADRACE_TABLE_AMX)
#define HEADRACE_TABLE_DECLARE_AMX(Struct, family) HEADRACE_TABLE_DECLARE(Struct, family, amx)
#define HEADRACE_TABLE_CASE_AMX(family) HEADRACE_TABLE_CASE(family, amx)
#elif defined(HEADRACE_HAVE_amx)
#define HEADRACE_TABLE_DECLARE_AMX(Struct, family)
#define HEADRACE_TABLE_CASE_AMX(family) \
  case Isa::amx:                        \
    return family##_kernels_avx512;
#else
#define HEADRACE_TABLE_DECLARE_AMX(Struct, family)
#define HEADRACE_TABLE_CASE_AMX(family)
#endif

#if defined(HEADRACE_HAVE_neon)
#define HEADRACE_TABLE_DECLARE_NEON(Struct, family) HEADRACE_TABLE_DECLARE(Struct, family, neon)
#define HEADRACE_TABLE_CASE_NEON(family) HEADRACE_TABLE_CASE(family, neon)
#else
#define HEADRACE_TABLE_DECLARE_NEON(Struct, family)
#define HEADRACE_TABLE_CASE_NEON(family)
#endif

#define HEADRACE_TABLE_EXTERNS(Struct, family)     \
  HEADRACE_TABLE_DECLARE(Struct, family, portable) \
  HEADRACE_TABLE_DECLARE_AVX2(Struct, family)      \
  HEADRACE_TABLE_DECLARE_AVX512(Struct, family)    \
  HEADRACE_TABLE_DECLARE_AMX(Struct, family)       \
  HEADRACE_TABLE_DECLARE_NEON(Struct, family)
#define HEADRACE_TABLE_CASES(family) \
  HEADRACE_TABLE_CASE_AVX2(family)   \
  HEADRACE_TABLE_CASE_AVX512(family) \
  HEADRACE_TABLE_CASE_AMX(family)    \
  HEADRACE_TABLE_CASE_NEON(family)
