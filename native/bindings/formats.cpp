// Python: packed weights and products: packing, unpacking, and a product by itself for tests
// and benchmarks (a model runs its products inside the executor).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "../executor/moe.hpp"
#include "../kernels/linear.hpp"
#include "../platform/checksum.hpp"
#include "../platform/isa.hpp"
#include "../platform/pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using headrace::Format;
using headrace::format_named;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using PackedWeight = std::tuple<std::string, int64_t, int64_t, Bytes>;

constexpr int64_t kMaxWeights = int64_t{1} << 40;  // far beyond any memory, far below where sizes overflow

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

// The type of a checkpoint's rows, by the name that checkpoints have for it: F32, Q4_K.
Format source_type_of(const std::string& name) {
  for (int i = 0; i < headrace::kFormatCount; ++i) {
    const Format type = static_cast<Format>(i);
    std::string upper = headrace::format_name(type);
    for (char& letter : upper) letter = letter >= 'a' ? static_cast<char>(letter - 'a' + 'A') : letter;
    if (name == upper && headrace::is_source(type)) return type;
  }
  refuse("unknown source type '" + name + "': use F32, F16, BF16 or a block type");
}

size_t checked_packed_bytes(Format format, int64_t n, int64_t k) {
  if (n < 1 || k < 1 || n > kMaxWeights / k) {
    refuse("a weight of shape [" + std::to_string(n) + ", " + std::to_string(k) + "] cannot be packed");
  }
  const bool integer = format == Format::int8 || format == Format::int4;
  if (integer && k > headrace::kMaxIntegerInputs) {
    refuse("int8 and int4 take at most " + std::to_string(headrace::kMaxIntegerInputs) + " inputs, not " +
           std::to_string(k) + ": use bf16");
  }
  if (k % headrace::block_inputs(format) != 0) {
    refuse(std::string(headrace::format_name(format)) + " takes a multiple of " +
           std::to_string(headrace::block_inputs(format)) + " inputs, not " + std::to_string(k));
  }
  return headrace::packed_bytes(format, n, k);
}

void check_size(const char* what, size_t got, size_t expected) {
  if (got != expected) {
    refuse(std::string(what) + " has " + std::to_string(got) + " elements, expected " + std::to_string(expected));
  }
}

void pack(headrace::Pool& pool, const std::string& format_name, Bytes source, const std::string& source_type, int64_t n,
          int64_t k, int64_t panel0, int64_t panel1, MutableBytes packed) {
  const Format format = format_named(format_name);
  const Format type = source_type_of(source_type);
  check_size("packed", packed.size(), checked_packed_bytes(format, n, k));
  const int64_t panels = (n + headrace::kPanel - 1) / headrace::kPanel;
  if (panel0 < 0 || panel1 < panel0 || panel1 > panels) {
    refuse("panels " + std::to_string(panel0) + " to " + std::to_string(panel1) + " are not within 0 to " +
           std::to_string(panels));
  }
  if (headrace::block_inputs(format) > 1 && type != format) {
    refuse("only rows that are " + format_name + " already can be packed so, these are " + source_type);
  }
  if (k % headrace::block_inputs(type) != 0) {
    refuse("rows of " + std::to_string(k) + " weights are no whole blocks of " + source_type);
  }
  const int64_t row_bytes = headrace::source_row_bytes(type, k);
  const int64_t row_end = panel1 * headrace::kPanel < n ? panel1 * headrace::kPanel : n;
  const int64_t row0 = panel0 * headrace::kPanel;
  check_size("source", source.size(), row_end > row0 ? static_cast<size_t>((row_end - row0) * row_bytes) : 0);
  const uint8_t* from = source.data();
  uint8_t* to = packed.data();
  std::atomic<int64_t> bad{INT64_MAX};
  {
    nb::gil_scoped_release release;
    const headrace::LinearKernels& kernels = headrace::linear_kernels(headrace::active_isa());
    pool.run([&](int part, int parts) {
      const int64_t first = panel0 + (panel1 - panel0) * part / parts;
      const int64_t last = panel0 + (panel1 - panel0) * (part + 1) / parts;
      const uint8_t* mine = from + (first - panel0) * headrace::kPanel * row_bytes;
      const int64_t row = kernels.pack(format, type, mine, n, k, first, last, to);
      int64_t lowest = bad.load();
      while (row >= 0 && row < lowest && !bad.compare_exchange_weak(lowest, row)) {
      }
    });
  }
  if (bad.load() != INT64_MAX) {
    refuse("row " + std::to_string(bad.load()) + " of the weight holds a NaN or an infinity, or it or one of the 31 rows "
           "after it a value too large for " + format_name);
  }
}

Result new_matrix(size_t rows, size_t columns) {
  float* data = new float[rows * columns + 1];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return Result(data, {rows, columns}, owner);
}

// Kernels need packed weights on 64-byte boundaries; NumPy's memory may not be.
struct Aligned {
  explicit Aligned(size_t bytes) : memory(new (std::align_val_t{64}) uint8_t[bytes]) {}
  ~Aligned() { operator delete[](memory, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  uint8_t* memory;
};

headrace::Weight weight_of(const PackedWeight& packed) {
  const auto& [name, n, k, data] = packed;
  headrace::Weight w;
  w.format = format_named(name);
  w.n = n;
  w.k = k;
  check_size("packed weight", data.size(), checked_packed_bytes(w.format, n, k));
  if (reinterpret_cast<uintptr_t>(data.data()) % 64 != 0) refuse("a packed weight must start on a 64-byte boundary");
  w.data = data.data();
  return w;
}

Result unpack_rows(const std::string& format, Bytes packed, int64_t n, int64_t k, Indices rows) {
  headrace::Weight w;
  w.format = format_named(format);
  w.n = n;
  w.k = k;
  w.data = packed.data();
  check_size("packed", packed.size(), checked_packed_bytes(w.format, n, k));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows.data()[i] < 0 || rows.data()[i] >= n) {
      refuse("row " + std::to_string(rows.data()[i]) + " is not within 0 to " + std::to_string(n - 1));
    }
  }
  Result result = new_matrix(rows.size(), static_cast<size_t>(k));
  float* out = result.data();
  nb::gil_scoped_release release;
  const headrace::LinearKernels& kernels = headrace::linear_kernels(headrace::active_isa());
  for (size_t i = 0; i < rows.size(); ++i) kernels.unpack_row(w, rows.data()[i], out + i * static_cast<size_t>(k));
  return result;
}

void check_shapes(const headrace::FusedLinearArgs& args) {
  for (int i = 0; i < args.count; ++i) {
    if (args.w[i].k != args.k) {
      refuse("weight " + std::to_string(i) + " has " + std::to_string(args.w[i].k) + " inputs, x has " +
             std::to_string(args.k));
    }
  }
  if (args.act != headrace::Act::none && (args.count != 2 || args.w[0].n != args.w[1].n)) {
    refuse("a gated activation takes two weights (gate, up) of the same shape");
  }
}

std::vector<Result> linear(headrace::Pool& pool, Matrix x, const std::vector<PackedWeight>& weights,
                           const std::vector<std::optional<Vector>>& biases, int act, std::optional<Vector> norm,
                           float eps, std::optional<Matrix> residual) {
  if (weights.empty() || weights.size() > headrace::kMaxLinears || biases.size() != weights.size()) {
    refuse("one to " + std::to_string(headrace::kMaxLinears) + " weights and as many biases are needed");
  }
  if (act < 0 || act >= static_cast<int>(headrace::Act::swiglu_clamped)) refuse("act must number an activation of one vector");
  headrace::FusedLinearArgs args;
  args.x = x.data();
  args.rows = static_cast<int64_t>(x.shape(0));
  args.k = static_cast<int64_t>(x.shape(1));
  args.count = static_cast<int32_t>(weights.size());
  args.act = static_cast<headrace::Act>(act);
  args.norm_eps = eps;
  for (size_t i = 0; i < weights.size(); ++i) {
    args.w[i] = weight_of(weights[i]);
    if (biases[i]) {
      check_size("bias", biases[i]->size(), static_cast<size_t>(args.w[i].n));
      args.bias[i] = biases[i]->data();
    }
  }
  check_shapes(args);
  if (norm) {
    check_size("norm", norm->size(), x.shape(1));
    args.norm_weight = norm->data();
  }
  if (residual) {
    check_size("residual", residual->size(), x.shape(0) * static_cast<size_t>(args.w[0].n));
    args.residual = residual->data();
  }
  std::vector<Result> results;
  const size_t outputs = args.act == headrace::Act::none ? weights.size() : 1;
  for (size_t i = 0; i < outputs; ++i) {
    results.push_back(new_matrix(x.shape(0), static_cast<size_t>(args.w[i].n)));
    args.y[i] = results.back().data();
  }
  nb::gil_scoped_release release;
  const headrace::LinearKernels& kernels = headrace::linear_kernels(headrace::active_isa());
  const Aligned scratch(kernels.scratch_bytes(args.rows, args.k, headrace::formats_of(args)));
  args.scratch = scratch.memory;
  pool.run_phases(2, [&](int phase, int part, int parts) {
    (phase == 0 ? kernels.prepare : kernels.product)(args, part, parts);
  });
  return results;
}

headrace::FormatSet set_named(const std::vector<std::string>& names) {
  headrace::FormatSet formats = 0;
  for (const std::string& name : names) formats |= headrace::set_of(format_named(name));
  return formats;
}

}  // namespace

void bind_formats(nb::module_& m) {
  m.def("checksum",
        [](Bytes data) {
          const nb::gil_scoped_release others_run;
          return headrace::checksum(data.data(), data.size());
        },
        "data"_a, "64 bits that tell whether bytes were damaged, for caches on the disk.");
  m.def("packed_nbytes",
        [](const std::string& format, int64_t n, int64_t k) { return checked_packed_bytes(format_named(format), n, k); },
        "format"_a, "n"_a, "k"_a, "Bytes of a packed weight of n outputs and k inputs.");
  m.def("linear_scratch_bytes",
        [](int64_t rows, int64_t k, const std::vector<std::string>& formats) {
          return headrace::linear_kernels(headrace::active_isa()).scratch_bytes(rows, k, set_named(formats));
        },
        "rows"_a, "k"_a, "formats"_a,
        "Bytes that the executor keeps for inputs made ready for products with weights in these formats.");
  m.def("moe_scratch_bytes",
        [](int64_t rows, int experts, int top_k, int64_t outer, int64_t inner, const std::vector<std::string>& formats) {
          return headrace::Moe(headrace::active_isa()).scratch_bytes({rows, experts, top_k, outer, inner, set_named(formats)});
        },
        "rows"_a, "experts"_a, "top_k"_a, "outer"_a, "inner"_a, "formats"_a,
        "Bytes that the executor keeps for a mixture of experts.");
  m.def("pack", &pack, "pool"_a, "format"_a, "source"_a, "source_type"_a, "n"_a, "k"_a, "panel0"_a, "panel1"_a,
        "packed"_a, "Packs rows 32 * panel0 up to 32 * panel1 (or n) of a [n, k] weight, whose bytes are `source`.");
  m.def("unpack_rows", &unpack_rows, "format"_a, "packed"_a, "n"_a, "k"_a, "rows"_a,
        "Rows of a packed weight as float32.");
  m.def("linear", &linear, "pool"_a, "x"_a, "weights"_a, "biases"_a, "act"_a = 0, "norm"_a = nb::none(), "eps"_a = 0.0f,
        "residual"_a = nb::none(), "Both phases of a fused product, as the executor runs them.");
}
