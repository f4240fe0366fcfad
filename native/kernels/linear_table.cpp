// The lookup of the products' kernels by ISA, and the sizes of packed weights.
#include "../formats/bf16.hpp"
#include "../formats/f16.hpp"
#include "../formats/f32.hpp"
#include "../formats/int4.hpp"
#include "../formats/int8.hpp"
#include "linear.hpp"
#include "table.hpp"

HEADRACE_TABLE_LOOKUP(LinearKernels, linear)

namespace headrace {

size_t packed_bytes(Format format, int64_t n, int64_t k) {
  const auto bytes = [&](int64_t strip) { return static_cast<size_t>(strip * strip_count(n)); };
  switch (format) {
    case Format::f32:
      return bytes(F32::strip_bytes(k));
    case Format::f16:
      return bytes(F16::strip_bytes(k));
    case Format::bf16:
      return bytes(Bf16::strip_bytes(k));
    case Format::int8:
      return bytes(Int8::strip_bytes(k));
    case Format::int4:
      return bytes(Int4::strip_bytes(k));
  }
  return 0;
}

}  // namespace headrace
