// Python: what guesses the next tokens of a text, fronted by headrace/engine/speculative/.
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
  nb::class_<SuffixAutomaton>(m, "SuffixAutomaton", "Finds what followed the end of a text where it stood before.")
      .def(nb::init<>())
      .def(
          "extend",
          [](SuffixAutomaton& text, const std::vector<int32_t>& tokens) {
            for (const int32_t token : tokens) text.push(token);
          },
          "tokens"_a, "Take the next tokens; a negative one parts unrelated texts.")
      .def_prop_ro("size", &SuffixAutomaton::size)
      .def_prop_ro("match_length", &SuffixAutomaton::match_length)
      .def_prop_ro("match_kind", &SuffixAutomaton::match_kind, "bits of that length less one, below MATCH_KINDS; or -1")
      .def("draft", &SuffixAutomaton::draft, "count"_a);
}
