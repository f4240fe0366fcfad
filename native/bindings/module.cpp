// The Python module headrace._native: facts about this machine, then what the other files of this folder add.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "../platform/isa.hpp"

namespace nb = nanobind;

void bind_speculative(nb::module_& m);
void bind_executor(nb::module_& m);
void bind_formats(nb::module_& m);
void bind_ops(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_turns(nb::module_& m);

NB_MODULE(_native, m) {
  m.doc() = "Native executor, weight formats and sampler.";
  m.def("isa", [] { return std::string(headrace::isa_name(headrace::active_isa())); },
        "The instruction set in use; RuntimeError where HEADRACE_ISA names one that is not usable.");
  m.def("usable_isas", [] {
    std::vector<std::string> names;
    for (int i = 0; i < headrace::kIsaCount; ++i) {
      const auto isa = static_cast<headrace::Isa>(i);
      if (headrace::isa_usable(isa)) names.emplace_back(headrace::isa_name(isa));
    }
    return names;
  }, "The instruction sets that are compiled in and that this CPU has.");
  bind_speculative(m);
  bind_executor(m);
  bind_formats(m);
  bind_ops(m);
  bind_sample(m);
  bind_turns(m);
}
