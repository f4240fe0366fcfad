// Python: turns over the machine's cores, used by headrace/engine/turns.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "../turns/turns.hpp"

namespace nb = nanobind;
using namespace nb::literals;

void bind_turns(nb::module_& m) {
  using headrace::Turns;
  m.attr("TURNS_BYTES") = Turns::bytes();
  nb::class_<Turns>(m, "Turns", "Several loops, in one process or several, compute on disjoint parts of the cores.")
      .def(nb::init<int, int>(), "fd"_a = -1, "cores"_a = 0)
      .def_prop_ro("cores", &Turns::cores)
      .def("join", &Turns::join, "share"_a = 1.0, "most"_a = 0)
      .def("leave", &Turns::leave, "slot"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "begin",
          [](Turns& turns, int slot, int tier, double deadline_s, double predicted_s, bool whole) {
            const headrace::TurnAsk ask{std::clamp(tier, 0, Turns::kTiers - 1), deadline_s, predicted_s, whole};
            if (turns.try_begin(slot, ask)) return 0.0;
            const nb::gil_scoped_release others;
            return turns.begin(slot, ask);
          },
          "slot"_a, "tier"_a, "deadline_s"_a, "predicted_s"_a, "whole"_a = true, "The seconds that it waited.")
      .def("end", &Turns::end, "slot"_a, "again"_a)
      .def("held", &Turns::held, "slot"_a, "Cores of its turn.")
      .def("contended", &Turns::contended, "within_s"_a = 0.0)
      .def(
          "members",
          [](const Turns& turns) {
            std::vector<std::tuple<int, double, uint64_t>> found;
            for (const auto& one : turns.members()) found.emplace_back(one.pid, one.used_s, one.turns);
            return found;
          },
          "Of those that live: process id, seconds and number of turns.");
}
