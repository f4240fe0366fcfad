// The lookup of the products' kernels by ISA, and the sizes of packed weights.
#include <stdexcept>

#include "../formats/bf16.hpp"
#include "../formats/f16.hpp"
#include "../formats/f32.hpp"
#include "../formats/grouped.hpp"
#include "../formats/int4.hpp"
#include "../formats/int8.hpp"
#include "linear.hpp"
#define HEADRACE_TABLE_AMX
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(LinearKernels, linear)

namespace headrace {

size_t packed_bytes(Format format, int64_t n, int64_t k) {
  const auto bytes = [&](int64_t panel) { return static_cast<size_t>(panel * panel_count(n)); };
  switch (format) {
    case Format::f32:
      return bytes(F32::panel_bytes(k));
    case Format::f16:
      return bytes(F16::panel_bytes(k));
    case Format::bf16:
      return bytes(Bf16::panel_bytes(k));
    case Format::int8:
      return bytes(Int8::panel_bytes(k));
    case Format::int4:
      return bytes(Int4::panel_bytes(k));
    default:
      return bytes(grouped_panel_bytes(grouped(format), k));
  }
}

int64_t source_row_bytes(Format type, int64_t k) {
  if (!is_grouped(type)) return k * (type == Format::f32 ? 4 : 2);
  return k / grouped(type).block * grouped(type).block_bytes;
}

int64_t block_inputs(Format format) { return is_grouped(format) ? grouped(format).block : 1; }

const char* format_name(Format format) {
  constexpr const char* kNames[] = {"f32",  "f16",  "bf16", "int8", "int4",   "q4_0",   "q4_1",  "q5_0",
                                    "q5_1", "q8_0", "q2_k", "q3_k", "q4_k",   "q5_k",   "q6_k",  "iq4_nl",
                                    "iq4_xs", "mxfp4", "u4_g32", "s8_g32", "e4m3_g32", "e2m1_g16"};
  static_assert(sizeof kNames / sizeof *kNames == kFormatCount);
  return kNames[static_cast<int>(format)];
}

Format format_named(const std::string& name) {
  std::string all;
  for (int i = 0; i < kFormatCount; ++i) {
    if (name == format_name(static_cast<Format>(i))) return static_cast<Format>(i);
    all += std::string(i == 0 ? "" : ", ") + format_name(static_cast<Format>(i));
  }
  throw std::invalid_argument("there is no weight format '" + name + "'; use one of " + all);
}

}  // namespace headrace
