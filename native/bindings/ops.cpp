// Python: the table of ops, from which headrace/run/lowering.py encodes instructions.
#include <nanobind/nanobind.h>

#include <string>

#include "../ops.hpp"

namespace nb = nanobind;

namespace {

nb::tuple words(const headrace::Operands& operands) {
  nb::list found;
  std::string word;
  for (const char* c = operands.names;; ++c) {
    if (*c != ' ' && *c != '\0') {
      word += *c;
      continue;
    }
    if (!word.empty()) found.append(word.c_str());
    word.clear();
    if (*c == '\0') return nb::tuple(found);
  }
}

template <size_t kCount>
nb::tuple names(const char* const (&entries)[kCount]) {
  nb::list found;
  for (const char* entry : entries) found.append(entry);
  return nb::tuple(found);
}

}  // namespace

void bind_ops(nb::module_& m) {
  nb::dict forms, enumerations;
  for (const headrace::OpForm& form : headrace::kOpForms) {
    forms[nb::str(form.name.data(), form.name.size())] = nb::make_tuple(
        words(form.inputs), words(form.outputs), words(form.weights), words(form.constants), words(form.ints), words(form.floats));
  }
  enumerations["act"] = names(headrace::kActNames);
  enumerations["route"] = names(headrace::kRouteNames);
  enumerations["pool"] = names(headrace::kPoolNames);
  m.attr("OP_FORMS") = forms;
  m.attr("OP_ENUMERATIONS") = enumerations;
}
