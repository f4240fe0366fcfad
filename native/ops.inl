// The instructions of a program, one line each. From this table come the enum and its names, what a program's
// verification expects of an instruction, what the executor calls, and what Python's lowering passes (_native.OP_FORMS).
//
// Operands are words: ids of values (inputs, outputs), of weights and of constants, then integers and floats.
//   x?      may be absent: -1
//   y*      any number of these; they come last
//   kind:act   an integer that numbers the names of an enumeration (ops.hpp)
//   layer, state   the number of a KV layer or of a recurrent state
//
// in_place: which input an output may lie over: where every thread has read what it overwrites.
// check: Checker::check_<name> in verify/instruction.cpp.
//
// HEADRACE_ROW_OP: an op on rows; its kernel has its name, in kernels/rows.cpp.
// HEADRACE_OP: all others; Executor::<name> in executor/operations.cpp.

#ifndef HEADRACE_OP
#define HEADRACE_OP(...)
#endif
#ifndef HEADRACE_ROW_OP
#define HEADRACE_ROW_OP(...)
#endif

//          name, in_place, check, inputs, outputs, weights, constants, ints, floats
HEADRACE_OP(embed,             none,   embedding,      "", "y", "w", "", "", "")
HEADRACE_OP(embed_positions,   none,   embedding,      "", "y", "w", "", "", "")
HEADRACE_OP(embed_token_types, none,   embedding,      "", "y", "w", "", "", "")
HEADRACE_OP(fused_linear,      second, fused_linear,   "x residual?", "y*", "w*", "norm? bias?*", "kind:act", "eps")
HEADRACE_OP(head_linear,       none,   head_linear,    "x", "y", "w", "", "heads", "")
HEADRACE_OP(max_linear,        none,   max_linear,     "x", "y", "w", "bias?", "", "")
HEADRACE_OP(rope,              every,  rope,           "x", "y", "", "inv_freq", "head_dim rotary", "scale")
HEADRACE_OP(rope_kv_write,     first,  rope_kv_write,  "q k v", "y", "", "inv_freq? q_norm? k_norm?", "layer heads rotary", "eps scale")
HEADRACE_OP(kv_write,          none,   kv_write,       "k v?", "", "", "", "layer", "")
HEADRACE_OP(attend,            first,  attend,         "q bias_q? bias_k?", "y", "", "sinks? bias?", "layer heads window value_dim ahead buckets bucket_of*", "scale softcap")
HEADRACE_OP(join,              none,   join,           "a b", "y", "", "", "heads", "")
HEADRACE_OP(route,             none,   route,          "logits", "gates", "", "bias?", "kind:route top_k groups top_groups normalize", "scale")
HEADRACE_OP(moe,               none,   moe,            "x gates", "y", "gate up down", "gate_bias? up_bias? down_bias?", "kind:act top_k", "")
HEADRACE_OP(causal_conv,       none,   causal_conv,    "x", "y", "", "w bias?", "state taps kind:act", "")
HEADRACE_OP(selective_scan,    none,   selective_scan, "x bc dt", "y", "", "a_log d dt_bias", "state groups", "smallest_dt largest_dt")

HEADRACE_ROW_OP(rms_norm,          every,  rms_norm,       "x", "y", "", "w", "runs", "eps")
HEADRACE_ROW_OP(layer_norm,        every,  layer_norm,     "x", "y", "", "w bias?", "", "eps")
HEADRACE_ROW_OP(gather,            none,   gather,         "x", "y", "", "", "", "")
HEADRACE_ROW_OP(pool,              none,   pool,           "x", "y", "", "", "kind:pool", "")
HEADRACE_ROW_OP(take_columns,      none,   take_columns,   "x", "y", "", "", "order*", "")
HEADRACE_ROW_OP(add,               every,  same_shape,     "a b", "y", "", "", "", "")
HEADRACE_ROW_OP(scale,             every,  same_shape,     "x", "y", "", "", "", "by")
HEADRACE_ROW_OP(softcap,           every,  same_shape,     "x", "y", "", "", "", "cap")
HEADRACE_ROW_OP(gated_act,         every,  activation,     "gate up", "y", "", "", "kind:act", "")
HEADRACE_ROW_OP(act,               every,  activation,     "x", "y", "", "", "kind:act", "")
#undef HEADRACE_OP
#undef HEADRACE_ROW_OP
