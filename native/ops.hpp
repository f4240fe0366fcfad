// What the table of ops (ops.inl) says, as data.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace {

enum class Op : int32_t {
#define HEADRACE_OP(name, ...) name,
#define HEADRACE_ROW_OP(name, ...) name,
#include "ops.inl"
};

// Activations, by the names that attributes have in Python.
#define HEADRACE_ACTS(X) X(none) X(silu) X(gelu) X(gelu_tanh) X(tanh) X(relu) X(log1p_relu) X(swiglu_clamped)
enum class Act : int32_t {
#define HEADRACE_ACT(name) name,
  HEADRACE_ACTS(HEADRACE_ACT)
#undef HEADRACE_ACT
};
inline constexpr const char* kActNames[] = {
#define HEADRACE_ACT(name) #name,
    HEADRACE_ACTS(HEADRACE_ACT)
#undef HEADRACE_ACT
};
inline constexpr const char* kRouteNames[] = {"softmax", "sigmoid"};
inline constexpr const char* kPoolNames[] = {"mean", "max"};

// Operands of one kind: their names as in ops.inl, and what these say.
struct Operands {
  static constexpr int kAnyNumber = -1;

  const char* names;
  int count = 0;
  uint32_t optional = 0;  // a bit for each; those beyond the last name are as the last

  constexpr explicit Operands(const char* words) : names(words) {
    bool any_number = false;
    for (const char* c = words; *c != '\0'; ++c) {
      if (c == words || *(c - 1) == ' ') ++count;
      if (*c == '?') optional |= uint32_t{1} << (count - 1);
      if (*c == '*') any_number = true;
    }
    if (!any_number) return;
    if ((optional >> (count - 1) & 1) != 0) optional |= ~uint32_t{0} << (count - 1);
    count = kAnyNumber;
  }
  constexpr bool is_optional(size_t i) const { return (optional >> (i < 31 ? i : 31) & 1) != 0; }
};

enum class InPlace { none, first, second, every };  // input that an output may lie over

struct OpForm {
  std::string_view name;
  Op op;
  Operands inputs, outputs, weights, constants, ints, floats;
  InPlace in_place;
  bool on_rows;  // HEADRACE_ROW_OP
};
#define HEADRACE_FORM(on_rows, name, in_place, check, inputs, outputs, weights, constants, ints, floats)         \
  {#name, Op::name, Operands(inputs), Operands(outputs), Operands(weights), Operands(constants), Operands(ints), \
   Operands(floats), InPlace::in_place, on_rows},
#define HEADRACE_OP(...) HEADRACE_FORM(false, __VA_ARGS__)
#define HEADRACE_ROW_OP(...) HEADRACE_FORM(true, __VA_ARGS__)
inline constexpr OpForm kOpForms[] = {
#include "ops.inl"
};
#undef HEADRACE_FORM

// Lines are in the order of the enum.
constexpr const OpForm& form_of(Op op) { return kOpForms[static_cast<size_t>(op)]; }

}  // namespace headrace
