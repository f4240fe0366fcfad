// Defines the lookup of a family's kernels by ISA, e.g. in linear_table.cpp:
//   HEADRACE_TABLE_LOOKUP(LinearKernels, linear)
// defines `const LinearKernels& linear_kernels(Isa)` over linear_kernels_portable, _avx2, ...
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

#if defined(HEADRACE_HAVE_avx2) && defined(HEADRACE_HAVE_avx512)
#define HEADRACE_TABLE_EXTERNS(Struct, family)     \
  HEADRACE_TABLE_DECLARE(Struct, family, portable) \
  HEADRACE_TABLE_DECLARE(Struct, family, avx2)     \
  HEADRACE_TABLE_DECLARE(Struct, family, avx512)
#define HEADRACE_TABLE_CASES(family) HEADRACE_TABLE_CASE(family, avx2) HEADRACE_TABLE_CASE(family, avx512)
#elif defined(HEADRACE_HAVE_neon)
#define HEADRACE_TABLE_EXTERNS(Struct, family) \
  HEADRACE_TABLE_DECLARE(Struct, family, portable) HEADRACE_TABLE_DECLARE(Struct, family, neon)
#define HEADRACE_TABLE_CASES(family) HEADRACE_TABLE_CASE(family, neon)
#else
#define HEADRACE_TABLE_EXTERNS(Struct, family) HEADRACE_TABLE_DECLARE(Struct, family, portable)
#define HEADRACE_TABLE_CASES(family)
#endif
