// The products: everything that reads weights.
#pragma once
#include <string>

#include "../platform/isa.hpp"
#include "arguments.hpp"

namespace headrace {

// int8 and int4 sum 128 * 127 * k in int32, so they refuse more inputs than this.
inline constexpr int64_t kMaxIntegerInputs = 131072;

struct LinearKernels {
  // Bytes of FusedLinearArgs::scratch for `rows` rows of `k` inputs of weights in `formats` or some of them.
  size_t (*scratch_bytes)(int64_t rows, int64_t k, FormatSet formats);
  void (*prepare)(const FusedLinearArgs& args, int part, int parts);  // phase 0, split over rows
  void (*product)(const FusedLinearArgs& args, int part, int parts);  // phase 1, split over panels
  // Row `row` of a packed weight as float32 [k] (embedding lookup from the packed head).
  void (*unpack_row)(const Weight& w, int64_t row, float* out);
  // Packs panels [panel0, panel1) of a row-major [n, k] source whose first row in memory is row
  // panel0 * kPanel, into their places in `packed`, the whole packed weight. Returns -1, or the first row
  // that holds a NaN or an infinity, or the first row of a panel with a value too large for the format.
  // The source's type is any format that checkpoints have (is_source); only that type packs into a grouped format.
  int64_t (*pack)(Format format, Format type, const void* source, int64_t n, int64_t k, int64_t panel0,
                  int64_t panel1, uint8_t* packed);
};

size_t packed_bytes(Format format, int64_t n, int64_t k);
int64_t source_row_bytes(Format type, int64_t k);
int64_t block_inputs(Format format);  // k must be a multiple of it
inline bool is_source(Format type) { return type != Format::int8 && type != Format::int4; }
const char* format_name(Format format);
Format format_named(const std::string& name);  // std::invalid_argument where there is none
const LinearKernels& linear_kernels(Isa isa);

}  // namespace headrace
