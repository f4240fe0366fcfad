// Python: prompt lookup, used by headrace/engine/speculative/.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "../speculative/suffix_automaton.hpp"

namespace nb = nanobind;
using namespace nb::literals;

void bind_speculative(nb::module_& m) {
  using headrace::SuffixAutomaton;
  m.attr("MATCH_KINDS") = headrace::kMatchKinds;
  nb::class_<SuffixAutomaton>(m, "SuffixAutomaton", "Finds what followed an earlier occurrence of the end of a text.")
      .def(nb::init<>())
      .def(
          "extend",
          [](SuffixAutomaton& text, const std::vector<int32_t>& tokens) {
            for (const int32_t token : tokens) text.push(token);
          },
          "tokens"_a, "Take the next tokens; a negative one separates unrelated texts.")
      .def_prop_ro("size", &SuffixAutomaton::size)
      .def_prop_ro("match_length", &SuffixAutomaton::match_length)
      .def_prop_ro("match_kind", &SuffixAutomaton::match_kind, "bits of that length less one, below MATCH_KINDS; or -1")
      .def("draft", &SuffixAutomaton::draft, "count"_a);
}
