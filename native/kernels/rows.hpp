// What is done to rows outside the products: norms, activations, rotary embedding, KV writes.
#pragma once
#include "../platform/isa.hpp"
#include "arguments.hpp"

namespace headrace {

struct RowsKernels {
  // y = x / sqrt(mean(x^2) + eps) * w for each of `rows` rows of `d`; y may be x. Split over rows. Each row in
  // turn has one of `weights` weights.
  void (*rms_norm)(const float* x, const float* w, int64_t weights, float eps, int64_t rows, int64_t d, float* y, int part,
                   int parts);
  // y = (x - mean(x)) / sqrt(variance(x) + eps) * w + bias, likewise; bias may be null.
  void (*layer_norm)(const float* x, const float* w, const float* bias, float eps, int64_t rows, int64_t d, float* y,
                     int part, int parts);
  // The next five work on `count` numbers; the output may be an input. Split over numbers.
  void (*add)(const float* a, const float* b, int64_t count, float* y, int part, int parts);
  void (*scale)(const float* x, float by, int64_t count, float* y, int part, int parts);     // x * by
  void (*softcap)(const float* x, float cap, int64_t count, float* y, int part, int parts);  // cap * tanh(x / cap)
  void (*gated_act)(Act act, const float* gate, const float* up, int64_t count, float* y, int part, int parts);
  void (*act)(Act act, const float* x, int64_t count, float* y, int part, int parts);
  // y[r] = x[rows[r]]. Split over rows.
  void (*gather)(const float* x, const int32_t* rows, int64_t count, int64_t d, float* y, int part, int parts);
  // y[r] = the mean of x over its sequence's rows up to step.rows[r]. Split over rows and columns.
  void (*pool)(const float* x, const Step& step, int64_t d, float* y, int part, int parts);
  // y[r][i] = x[r][columns[i]] for i < d. Split over rows and columns.
  void (*take_columns)(const float* x, const int* columns, int64_t rows, int64_t d, float* y, int part, int parts);
  void (*rope_table)(const RopeTableArgs& args, int part, int parts);        // split over tokens
  void (*rope_kv_write)(const RopeKvWriteArgs& args, int part, int parts);  // split over (token, head)
  // Reads every byte in wide loads and returns something that depends on all of them.
  uint64_t (*read)(const uint8_t* data, size_t bytes, size_t ahead);
};

const RowsKernels& rows_kernels(Isa isa);

}  // namespace headrace
