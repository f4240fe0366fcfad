// Parameters of sampling, one line each: type, name, default (which turns it off). SampleSettings (row.hpp), its binding
// and Python's check of its own table come from these lines. Names are those of SamplingParams, as far as it has them.
HEADRACE_SETTING(double, temperature, 1)
HEADRACE_SETTING(double, dynatemp_range, 0)
HEADRACE_SETTING(double, dynatemp_exponent, 1)
HEADRACE_SETTING(double, top_n_sigma, 0)  // 0 and below: off
HEADRACE_SETTING(int64_t, top_k, 0)
HEADRACE_SETTING(double, typical_p, 1)
HEADRACE_SETTING(double, top_p, 1)
HEADRACE_SETTING(double, log_min_p, -__builtin_inf())  // natural logarithm
HEADRACE_SETTING(double, xtc_probability, 0)
HEADRACE_SETTING(double, xtc_threshold, 0.1)
HEADRACE_SETTING(int32_t, mirostat, 0)  // its version, 1 or 2
HEADRACE_SETTING(double, mirostat_tau, 5)
HEADRACE_SETTING(double, mirostat_eta, 0.1)
HEADRACE_SETTING(float, repetition_penalty, 1)
HEADRACE_SETTING(float, presence_penalty, 0)
HEADRACE_SETTING(float, frequency_penalty, 0)
HEADRACE_SETTING(int64_t, repeat_last_n, -1)  // below 0: everything
HEADRACE_SETTING(double, dry_multiplier, 0)
HEADRACE_SETTING(double, dry_base, 1.75)
HEADRACE_SETTING(int64_t, dry_allowed_length, 2)
HEADRACE_SETTING(int64_t, dry_penalty_last_n, -1)  // below 0: everything
HEADRACE_SETTING(TokenBiases, logit_bias, {})      // ids >= 0, each once
HEADRACE_SETTING(TokenLists, bad_words, {})        // none empty
HEADRACE_SETTING(TokenList, ends, {})              // ascending; not drawn before min_tokens
HEADRACE_SETTING(int64_t, min_tokens, 0)
HEADRACE_SETTING(int32_t, logprobs, -1)  // how many alternatives
HEADRACE_SETTING(uint64_t, seed, 0)
HEADRACE_SETTING(uint32_t, choice, 0)
#undef HEADRACE_SETTING
