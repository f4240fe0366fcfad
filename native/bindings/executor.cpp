// Python: memory, limits, Pool and Executor.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../executor/executor.hpp"
#include "../executor/multi_step.hpp"
#include "../platform/limits.hpp"
#include "../platform/memory.hpp"
#include "../platform/pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using headrace::Executor;
using headrace::Pool;

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

using ValueRow = std::tuple<std::string, int64_t, int64_t>;
using WeightRow = std::tuple<std::string, int64_t, int64_t, ConstBytes>;
using KvRow = std::tuple<Bytes, Bytes, int, int, std::string, ConstFloats>;  // the last: factors of balance, or none
using AdapterRow = std::tuple<int, int, double, ConstBytes, ConstBytes>;
using StateRow = std::tuple<Bytes, int64_t>;
// Memory of a group and how much of it the shared values have, rank and ranks, which values these are, the exchanges
// (instruction, from, to, first) and shares of tables (weight, first row, rows of the whole).
using GroupRow = std::tuple<Bytes, int64_t, int, int, std::vector<int>, std::vector<std::tuple<int, int, int, int64_t>>,
                            std::vector<std::tuple<int, int64_t, int64_t>>>;
using InstructionRow = std::tuple<std::string, std::vector<int>, std::vector<int>, std::vector<int>, std::vector<int>,
                                  std::vector<int>, std::vector<float>>;

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> allocate(int64_t bytes, int64_t small_bytes) {
  if (bytes < 0 || small_bytes < 0) {
    throw std::invalid_argument("cannot allocate " + std::to_string(bytes) + " bytes, of which " + std::to_string(small_bytes) +
                                " in small pages");
  }
  auto buffer = std::make_unique<headrace::Buffer>(static_cast<size_t>(bytes), static_cast<size_t>(small_bytes));
  static uint8_t nothing;  // NumPy needs an address even for no bytes
  uint8_t* data = bytes == 0 ? &nothing : buffer->data();
  nb::capsule owner(buffer.get(), [](void* p) noexcept { delete static_cast<headrace::Buffer*>(p); });
  buffer.release();
  return {data, {static_cast<size_t>(bytes)}, owner};
}

headrace::KvType kv_type_of(const std::string& name) {
  if (name == "f32") return headrace::KvType::f32;
  if (name == "bf16") return headrace::KvType::bf16;
  if (name == "int8") return headrace::KvType::int8;
  if (name == "k8v4") return headrace::KvType::k8v4;
  if (name == "int4") return headrace::KvType::int4;
  if (name == "int3") return headrace::KvType::int3;
  if (name == "k4v3") return headrace::KvType::k4v3;
  if (name == "k3v4") return headrace::KvType::k3v4;
  throw std::invalid_argument("there is no KV type " + name + "; use f32, bf16, int8, k8v4, int4, int3, k4v3 or k3v4");
}

// The executor together with the arrays that its program points to.
class BoundExecutor {
 public:
  BoundExecutor(Pool& pool, Bytes arena, const std::vector<ValueRow>& values, std::vector<WeightRow> weights,
                std::vector<ConstFloats> constants, std::vector<KvRow> kv,
                std::vector<StateRow> states, int max_tokens, int max_rows,
                const std::vector<InstructionRow>& instructions, bool poison, std::vector<int> inputs,
                std::optional<GroupRow> group)
      : arena_(std::move(arena)), weights_(std::move(weights)), constants_(std::move(constants)), kv_(std::move(kv)),
        states_(std::move(states)) {
    headrace::Program program;
    program.arena = arena_.data();
    program.arena_bytes = static_cast<int64_t>(arena_.size());
    program.max_tokens = max_tokens;
    program.max_rows = max_rows;
    for (const auto& [rows, columns, offset] : values) {
      if (rows != "T" && rows != "R") throw std::invalid_argument("rows of a value are 'T' or 'R', not '" + rows + "'");
      program.values.push_back({rows == "R", columns, offset});
    }
    for (const auto& [format, n, k, data] : weights_) {
      program.weights.push_back({headrace::format_named(format), n, k, data.data()});
      program.weight_bytes.push_back(static_cast<int64_t>(data.size()));
    }
    for (const ConstFloats& data : constants_) {
      program.constants.push_back({data.data(), static_cast<int64_t>(data.size())});
    }
    for (const auto& [k, v, kv_heads, head_dim, type, balance] : kv_) {
      uint8_t* values = v.size() == 0 ? nullptr : v.data();
      if (balance.size() != 0 && static_cast<int64_t>(balance.size()) != int64_t{2} * kv_heads * head_dim) {
        throw std::invalid_argument("factors of balance are two for each number of a key");
      }
      program.kv.push_back({kv_type_of(type), kv_heads, head_dim, k.data(), values,
                            balance.size() == 0 ? nullptr : balance.data()});
      program.kv_bytes.emplace_back(static_cast<int64_t>(k.size()), static_cast<int64_t>(v.size()));
    }
    for (const auto& [data, width] : states_) {
      program.states.push_back({reinterpret_cast<float*>(data.data()), width, static_cast<int64_t>(data.size())});
    }
    for (const auto& [name, inputs, outputs, weight_ids, constant_ids, ints, floats] : instructions) {
      headrace::Instruction instruction;
      instruction.name = name;
      instruction.inputs = inputs;
      instruction.outputs = outputs;
      instruction.weights = weight_ids;
      instruction.constants = constant_ids;
      instruction.ints = ints;
      instruction.floats = floats;
      program.instructions.push_back(std::move(instruction));
    }
    if (poison && (!inputs.empty() || group)) throw std::invalid_argument("poison would fill what others have written");
    if (group) join(std::move(*group), pool, program);
    program.inputs = std::move(inputs);
    executor_ = std::make_unique<Executor>(pool, std::move(program), poison);
  }

  std::vector<double> run(const Ints& tokens, const Ints& positions, const Ints& slots, const Ints& query_starts,
                          const Ints& lengths, const IntTable& block_tables, const Ints& rows, const Ints& state_slots,
                          const std::optional<Ints>& adapters, const std::optional<Ints>& token_types, bool timed) {
    headrace::Step step = step_of(tokens, positions, slots, query_starts, lengths, block_tables, rows, state_slots, adapters);
    if (token_types) {
      expect("token_types", count(*token_types), step.T);
      step.token_types = token_types->data();
    }
    const nb::gil_scoped_release released;
    if (timed) return executor_->run_timed(step);
    executor_->run(step);
    return {};
  }

  headrace::MultiStepResult run_multi_step(int output, headrace::Sampler& sampler,
                                           const std::vector<headrace::SampleRow*>& sampling, const Ints& tokens,
                                           const Ints& positions, const Ints& slots, const Ints& query_starts,
                                           const Ints& lengths, const IntTable& block_tables, const Ints& rows,
                                           const Ints& state_slots, const std::optional<Ints>& adapters, int32_t steps,
                                           int32_t lookahead_tokens, double seconds,
                                           const std::vector<headrace::SuffixAutomaton*>& texts,
                                           const std::vector<int32_t>& depths, int32_t token_budget, headrace::Signal* signal) {
    const headrace::Step step =
        step_of(tokens, positions, slots, query_starts, lengths, block_tables, rows, state_slots, adapters);
    value(output, 0);  // refuses an unknown one
    if (columns(output) != sampler.vocabulary()) throw std::invalid_argument("run_multi_step: the sampler has another vocabulary");
    for (const headrace::SampleRow* row : sampling) {
      if (row == nullptr) throw std::invalid_argument("run_multi_step: a row is None");
    }
    if (group_) throw std::invalid_argument("run_multi_step: the other processes of a group run single steps");
    const nb::gil_scoped_release released;
    const headrace::Program& program = executor_->program();
    const headrace::DraftPlan plan{texts, depths, std::min({token_budget, program.max_tokens, program.max_rows})};
    return headrace::run_multi_step(*executor_, output, sampler, step, sampling, {steps, lookahead_tokens, seconds}, plan, signal);
  }

  void set_adapter(int slot, const std::string& format, const std::vector<AdapterRow>& pairs) {
    const headrace::Format type = headrace::format_named(format);
    if (type != headrace::Format::f32 && type != headrace::Format::bf16) throw std::invalid_argument("adapters are f32 or bf16");
    std::vector<Executor::AdapterPair> views;
    for (const auto& [weight, rank, scale, a, b] : pairs) {
      views.push_back({weight, rank, static_cast<float>(scale), a.data(), static_cast<int64_t>(a.size()), b.data(), static_cast<int64_t>(b.size())});
    }
    const nb::gil_scoped_release released;
    executor_->set_adapter(slot, type == headrace::Format::f32, views);
  }

  float* value(int id, int64_t rows) const {
    float* data = executor_->value(id);
    const headrace::Program& program = executor_->program();
    const int64_t most = program.max_rows_of(program.values[static_cast<size_t>(id)]);
    if (rows < 0 || rows > most) {
      throw std::invalid_argument("value " + std::to_string(id) + " has 0 to " + std::to_string(most) + " rows, not " +
                                  std::to_string(rows));
    }
    return data;
  }
  int64_t columns(int id) const { return executor_->program().values[static_cast<size_t>(id)].columns; }

 private:
  void join(GroupRow row, Pool& pool, headrace::Program& program) {
    auto& [memory, shared_bytes, rank, ranks, shared, exchanges, tables] = row;
    group_ = std::make_unique<headrace::Group>(memory.data(), static_cast<int64_t>(memory.size()), rank, ranks, pool.threads());
    program.group = group_.get();
    const int64_t room = static_cast<int64_t>(memory.size()) - headrace::Group::kHeaderBytes;
    if (shared_bytes < 0 || shared_bytes % 64 != 0 || shared_bytes > room) {
      throw std::invalid_argument("a group's values do not end within its memory, or not at a line");
    }
    program.shared_bytes = shared_bytes;
    program.shared_scratch_bytes = room - shared_bytes;
    program.shared_scratch = group_->arena() + shared_bytes;
    for (const int id : shared) {
      if (id < 0 || static_cast<size_t>(id) >= program.values.size()) throw std::invalid_argument("a shared value is none");
      program.values[static_cast<size_t>(id)].shared = true;
    }
    for (const auto& [instruction, from, to, first] : exchanges) program.exchanges.push_back({instruction, from, to, first});
    for (const auto& [weight, first, whole] : tables) program.table_shares.push_back({weight, first, whole});
    group_memory_ = std::move(memory);
  }

  static headrace::Step step_of(const Ints& tokens, const Ints& positions, const Ints& slots, const Ints& query_starts,
                                const Ints& lengths, const IntTable& block_tables, const Ints& rows,
                                const Ints& state_slots, const std::optional<Ints>& adapters) {
    headrace::Step step;
    step.T = count(tokens);
    step.B = count(lengths);
    step.R = count(rows);
    step.max_pages = static_cast<int32_t>(block_tables.shape(1));
    expect("positions", count(positions), step.T);
    expect("slots", count(slots), step.T);
    expect("query_starts", count(query_starts), step.B + 1);
    expect("state_slots", count(state_slots), step.B);
    expect("block_tables", static_cast<int32_t>(block_tables.shape(0)), step.B);
    step.tokens = tokens.data();
    step.positions = positions.data();
    step.slots = slots.data();
    step.query_starts = query_starts.data();
    step.lengths = lengths.data();
    step.block_tables = block_tables.data();
    step.rows = rows.data();
    step.state_slots = state_slots.data();
    if (adapters) {
      expect("adapters", count(*adapters), step.B);
      step.adapters = adapters->data();
    }
    return step;
  }

  template <class Array>
  static int32_t count(const Array& array) {
    if (array.size() > INT32_MAX) throw std::invalid_argument("a step's array is too long");
    return static_cast<int32_t>(array.size());
  }
  static void expect(const char* name, int32_t got, int32_t needed) {
    if (got == needed) return;
    throw std::invalid_argument("step: " + std::string(name) + " has " + std::to_string(got) + " rows where " +
                                std::to_string(needed) + " are needed");
  }

  Bytes arena_;
  std::vector<WeightRow> weights_;
  std::vector<ConstFloats> constants_;
  std::vector<KvRow> kv_;
  std::vector<StateRow> states_;
  Bytes group_memory_;
  std::unique_ptr<headrace::Group> group_;
  std::unique_ptr<Executor> executor_;
};

std::vector<std::tuple<int, int, int, int, int>> drafts_of(const headrace::MultiStepResult& steps) {
  std::vector<std::tuple<int, int, int, int, int>> found;
  for (const auto& one : steps.drafts) found.emplace_back(one.sequence, one.kind, one.checked, one.right, one.wrong);
  return found;
}

std::vector<std::pair<int, double>> draft_steps_of(const headrace::MultiStepResult& steps) {
  std::vector<std::pair<int, double>> found;
  for (const auto& one : steps.draft_steps) found.emplace_back(one.tokens, one.seconds);
  return found;
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> view_of_value(nb::object self, int id, int64_t rows) {
  const auto& executor = nb::cast<const BoundExecutor&>(self);
  float* data = executor.value(id, rows);
  return {data, {static_cast<size_t>(rows), static_cast<size_t>(executor.columns(id))}, self};
}

}  // namespace

void bind_executor(nb::module_& m) {
  m.def("allocate", &allocate, "nbytes"_a, "small_nbytes"_a = 0,
        "Zero-filled memory from the system, in huge pages where large, but for its first `small_nbytes`; freed with the array.");
  nb::class_<Pool>(m, "Pool", "A persistent pool of threads; the caller of a run is one of them.")
      .def(nb::init<int>(), "threads"_a)
      .def_prop_ro("threads", &Pool::threads)
      .def_prop_ro("width", &Pool::width)
      .def("set_width", &Pool::set_width, "width"_a, "So many threads compute from the next run on; parts and bits stay the same.");
  m.def(
      "read_bandwidth",
      [](Pool& pool, int64_t bytes, int repeats) {
        if (bytes < 0) throw std::invalid_argument("read_bandwidth cannot read " + std::to_string(bytes) + " bytes");
        const nb::gil_scoped_release released;
        return headrace::read_bandwidth(pool, static_cast<size_t>(bytes), repeats);
      },
      "pool"_a, "nbytes"_a = 256 << 20, "repeats"_a = 5, "Bytes per second that all threads read together (median).");
  m.def(
      "compute_peaks",
      [](Pool& pool, int64_t rounds, int repeats) {
        const headrace::Peaks peaks = headrace::compute_peaks(pool, rounds, repeats);
        return std::array<double, 5>{peaks.f32, peaks.bf16, peaks.int8, peaks.matrix_bf16, peaks.matrix_int8};
      },
      "pool"_a, "rounds"_a = 1 << 16, "repeats"_a = 25,
      "Operations per second of all threads together in float32, bfloat16, int8, and the latter two on matrix units (0: "
      "there are none): the best of `repeats`.");
  nb::class_<headrace::Signal>(m, "Signal", "Lets other threads stop run_multi_step.")
      .def(nb::init<>())
      .def("stop", &headrace::Signal::stop, "Ends calls after the step that is running, until it is reset.")
      .def("reset", &headrace::Signal::reset)
      .def_prop_ro("steps", &headrace::Signal::steps, "Steps of all calls so far.");
  nb::class_<headrace::MultiStepResult>(m, "MultiStepResult", "The result of several steps.")
      .def_ro("tokens", &headrace::MultiStepResult::tokens, "by sequence; a negative one is a negated fault")
      .def_ro("steps", &headrace::MultiStepResult::steps)
      .def_prop_ro("drafts", &drafts_of, "sequence, kind, and tokens that were checked, right, and wrong, of each draft")
      .def_prop_ro("draft_steps", &draft_steps_of, "tokens and seconds of each step that checked some")
      .def_ro("plain_steps", &headrace::MultiStepResult::plain_steps, "with one token of each sequence")
      .def_ro("plain_seconds", &headrace::MultiStepResult::plain_seconds);
  nb::class_<BoundExecutor>(m, "Executor", "Runs a program; see native/ops.inl for the instructions.")
      .def(nb::init<Pool&, Bytes, const std::vector<ValueRow>&, std::vector<WeightRow>, std::vector<ConstFloats>,
                    std::vector<KvRow>, std::vector<StateRow>, int, int,
                    const std::vector<InstructionRow>&, bool, std::vector<int>, std::optional<GroupRow>>(),
           "pool"_a, "arena"_a.noconvert(), "values"_a, "weights"_a.noconvert(), "constants"_a.noconvert(),
           "kv"_a.noconvert(), "states"_a.noconvert(), "max_tokens"_a, "max_rows"_a, "instructions"_a, "poison"_a = false,
           "inputs"_a = nb::list(), "group"_a.none() = nb::none(), nb::keep_alive<1, 2>())
      .def("run", &BoundExecutor::run, "tokens"_a.noconvert(), "positions"_a.noconvert(), "slots"_a.noconvert(),
           "query_starts"_a.noconvert(), "lengths"_a.noconvert(), "block_tables"_a.noconvert(), "rows"_a.noconvert(),
           "state_slots"_a.noconvert(), "adapters"_a.noconvert().none() = nb::none(), "token_types"_a.noconvert().none() = nb::none(), "timed"_a = false,
           "Runs a step. `timed`: phase by phase, and returns the seconds of each instruction, the rotations' first.")
      .def("run_multi_step", &BoundExecutor::run_multi_step, "output"_a, "sampler"_a, "sampling"_a, "tokens"_a.noconvert(),
           "positions"_a.noconvert(), "slots"_a.noconvert(), "query_starts"_a.noconvert(), "lengths"_a.noconvert(),
           "block_tables"_a.noconvert(), "rows"_a.noconvert(), "state_slots"_a.noconvert(), "adapters"_a.noconvert().none(), "steps"_a, "lookahead_tokens"_a,
           "seconds"_a = 0.0, "texts"_a = nb::list(), "depths"_a = nb::list(), "token_budget"_a = 0,
           "signal"_a.none() = nb::none(),
           "Runs steps, each from the tokens sampled in the step before and from drafts of the texts, which grow with them: "
           "see native/executor/multi_step.hpp.")
      .def("set_adapter", &BoundExecutor::set_adapter, "slot"_a, "format"_a, "pairs"_a.noconvert(),
           "Puts an adapter into a slot, or empties it: weight, rank, scale, A and B, laid out as kernels/lora.hpp says.")
      .def("value", &view_of_value, "id"_a, "rows"_a, nb::rv_policy::reference);
}
