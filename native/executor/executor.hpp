// Walks a program for one step: one call, one run of the pool, a phase or two per instruction.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "../kernels/arguments.hpp"
#include "../kernels/attention.hpp"
#include "../kernels/linear.hpp"
#include "../kernels/lora.hpp"
#include "../kernels/recurrence.hpp"
#include "../kernels/rows.hpp"
#include "../platform/memory.hpp"
#include "../platform/pool.hpp"
#include "moe.hpp"
#include "program.hpp"

namespace headrace {

class Executor {
 public:
  // Checks the program (std::invalid_argument) and allocates scratch for its largest step. With
  // `poison`, dead memory is filled with NaN after every instruction. What the
  // program points to, and the pool, must outlive the executor.
  Executor(Pool& pool, Program program, bool poison);

  // Runs all instructions; std::invalid_argument where the step does not fit, std::runtime_error where a rank of the
  // program's group is lost, from then on always. Calls are serialized.
  void run(const Step& step);

  // The same with a run of the pool for each phase: seconds per instruction, the rotations' first.
  std::vector<double> run_timed(const Step& step);

  // The matrices of one adapter (executor/adapters.cpp), which are copied.
  struct AdapterPair {
    int weight = -1;  // its id in the program
    int32_t rank = 0;
    float scale = 1;
    const uint8_t* a = nullptr;
    int64_t a_bytes = 0;
    const uint8_t* b = nullptr;
    int64_t b_bytes = 0;
  };
  // Puts an adapter into a slot, or empties it (no pairs). std::invalid_argument where it does not fit to the program.
  void set_adapter(int slot, bool f32, const std::vector<AdapterPair>& pairs);
  static constexpr int kMaxAdapters = 1024;

  float* value(int id) const;  // std::invalid_argument for an unknown id
  const Program& program() const { return program_; }

 private:
  // Cosines and sines that several layers share.
  struct RopeTable {
    int constant = -1;
    int32_t rotary_dim = 0;
    float rope_scale = 1;
    float* cos = nullptr;
    float* sin = nullptr;
  };

  // What the pool does in one phase.
  struct Stage {
    enum class Kind { start, execute, poison, exchange, meet } kind = Kind::start;
    size_t instruction = 0;
    int phase = 0;  // of the instruction; of an exchange its number
    bool together = false;  // a product whose inputs the ranks of the group prepare together
  };
  // What one thread does of an instruction.
  struct Call {
    const Instruction& it;
    const Step& step;
    int64_t rows = 0;  // of its outputs
    int phase = 0;
    int part = 0, parts = 1;
    bool together = false;
  };
  // As the phase of a product: a single row, which every thread prepares for itself, since threads cannot share
  // that work. It saves four of the ten barriers of a layer.
  static constexpr int kWhole = -1;

  void plan_scratch();
  void plan_rope_tables();
  static RopeTable rotation_of(const Instruction& instruction);  // without memory; constant -1: rotates nothing
  const RopeTable& rope_table(const Instruction& instruction) const;
  void add_exchanges(std::vector<Stage>& stages, int instruction) const;
  // Of which steps: with one row; of a group with few, whose inputs each rank prepares for itself, and with many.
  enum class Rows { one, few, many };
  std::vector<Stage> stages_of(Rows rows) const;
  static constexpr int32_t kManyRows = 8;  // sharing the work saves more than a meeting costs
  const std::vector<Stage>& stages_for(const Step& step) const;
  void run_stage(const Stage& stage, const Step& step, int part, int parts);
  void exchange(const Exchange& exchange, const Step& step, int part, int parts);
  void check_group() const;  // std::runtime_error where a rank is lost
  void fill_rope_tables(const Step& step, int part, int parts);
  int64_t rows_of(const Instruction& instruction, const Step& step) const;
  void execute(const Call& call);
  // One member for each HEADRACE_OP, in operations.cpp.
#define HEADRACE_OP(name, ...) void name(const Call& call);
#include "../ops.inl"
  void look_up(const Call& call, const int32_t* ids);
  void plan_row_ops();
  // Adapters: what a step's rows have, and the first product for one instruction.
  struct AdaptedRows {
    std::vector<int32_t> adapters, order;  // as LoraRows and LoraShrinkArgs
  };
  void plan_adapted_rows(const Step& step);
  bool is_adapted(size_t instruction) const;
  LoraRows shrink(const Call& call, const FusedLinearArgs& args);
  RowOpArgs row_op(const Call& call) const;
  MoeShape moe_shape(const Instruction& instruction) const;
  FormatSet formats_of(const Instruction& instruction) const;  // of its weights
  void poison(const std::vector<std::pair<int64_t, int64_t>>& ranges);

  const Value& in(const Instruction& it, size_t i) const { return program_.values[static_cast<size_t>(it.inputs[i])]; }
  const Weight& weight(const Instruction& it, size_t i) const { return program_.weights[static_cast<size_t>(it.weights[i])]; }
  const float* constant(int id) const { return id < 0 ? nullptr : program_.constants[static_cast<size_t>(id)].data; }

  Pool& pool_;
  Program program_;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> dead_;  // per instruction; empty without poison
  const LinearKernels& linear_;
  const RowsKernels& rows_;
  const AttentionKernels& attention_;
  const Moe moe_;
  const RecurrenceKernels& recurrence_;
  Buffer linear_scratch_, head_scratch_, max_scratch_, attention_scratch_, moe_scratch_, rope_memory_;
  std::vector<RopeTable> rope_tables_;
  std::vector<RowOpArgs> row_ops_;  // per instruction, but for what a step brings
  const LoraKernels& lora_;
  std::vector<std::vector<LoraPair>> adapters_;  // per instruction [slots][kMaxLinears]; empty without adapters
  std::vector<std::vector<bool>> adapts_;        // per slot: which instructions
  std::vector<Buffer> adapter_memory_;           // per slot: of one instruction all A, then all B
  int64_t hidden_stride_ = 0;                    // words of a row
  Buffer hidden_, shrink_scratch_;
  AdaptedRows adapted_tokens_, adapted_rows_;    // of the step that runs
  std::vector<int32_t> active_adapters_;
  size_t single_row_scratch_bytes_ = 0;  // of a product with one row
  std::vector<Stage> stages_, single_row_stages_, stages_together_;
  std::atomic<bool> is_lost_{false};  // set by one part of a phase, and read by the others
  std::mutex turn_;
};

}  // namespace headrace
