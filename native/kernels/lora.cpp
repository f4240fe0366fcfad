// The first product of adapters, A x (layouts and order of sums: lora.hpp).
#include "lora.hpp"

#include <algorithm>
#include <cstring>

#include "simd.hpp"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kMostRows = kMostLoraRows;

// As the product's own norm (linear_prepare.hpp): the sum of squares runs in 32 lanes that are folded pairwise.
static float sum_of_squares(const float* x, int64_t k) {
  float lanes[32] = {};
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
    for (int lane = 0; lane < 32; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  for (int lane = 0; i + lane < k; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (int width = 16; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

static void input_of(const LoraShrinkArgs& args, int32_t row, float* out) {
  const float* x = args.x + row * args.k;
  if (args.norm_weight == nullptr) {
    std::memcpy(out, x, static_cast<size_t>(args.k) * sizeof(float));
    return;
  }
  const float mean = sum_of_squares(x, args.k) / static_cast<float>(args.k);
  const float inverse = 1.0f / __builtin_sqrtf(mean + args.norm_eps);
  for (int64_t i = 0; i < args.k; ++i) out[i] = x[i] * inverse * args.norm_weight[i];
}

static void round_row(const float* x, int64_t count, uint16_t* out) {
  int64_t i = 0;
#if defined(HEADRACE_ISA_avx512)
  for (; i + 16 <= count; i += 16) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
    std::memcpy(out + i, &rounded, sizeof rounded);
  }
#endif
  for (; i < count; ++i) out[i] = to_bf16(x[i]);
}

struct Bf16Rows {
  using Number = uint16_t;
#if defined(HEADRACE_ISA_avx512)
  static constexpr int kStep = 32;
  using Input = __m512bh;
  static Input read(const Number* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static F add(F sum, Input a, Input x) { return (F)_mm512_dpbf16_ps((__m512)sum, a, x); }
#else
  static constexpr int kStep = kWidth;
  using Input = F;
  static Input read(const Number* p) { return load_bf16(p); }
  static F add(F sum, Input a, Input x) { return fma(a, x, sum); }
#endif
};

struct F32Rows {
  using Number = float;
  static constexpr int kStep = kWidth;
  using Input = F;
  static Input read(const Number* p) { return load(p); }
  static F add(F sum, Input a, Input x) { return fma(a, x, sum); }
};

constexpr int64_t kAhead = 2048;  // bytes of A that are fetched ahead: its blocks are one stream, for all weights of a product

// out[r][j] = a[j] x[r] for kRows rows and kOuts rows of a block of A with `block` rows.
template <class Rows, int kRows, int kOuts>
__attribute__((noinline)) void dot(const typename Rows::Number* a, int64_t block, const typename Rows::Number* x, int64_t inputs,
                                   float* out, int64_t out_stride) {
  static_assert(kRows * kOuts <= kWidth);
  F sums[kWidth] = {};  // [kRows][kOuts]
  for (int64_t i = 0; i < inputs; i += kLoraStep, a += block * kLoraStep) {
#pragma GCC unroll 8
    for (int j = 0; j < kOuts; ++j) __builtin_prefetch(reinterpret_cast<const uint8_t*>(a + j * kLoraStep) + kAhead);
#pragma GCC unroll 8
    for (int at = 0; at < kLoraStep; at += Rows::kStep) {
      typename Rows::Input rows[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) rows[r] = Rows::read(x + r * inputs + i + at);
#pragma GCC unroll 8
      for (int j = 0; j < kOuts; ++j) {
        const typename Rows::Input w = Rows::read(a + j * kLoraStep + at);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r * kOuts + j] = Rows::add(sums[r * kOuts + j], w, rows[r]);
      }
    }
  }
  const F folded = fold_rows(sums, [](F a, F b) { return a + b; });
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kOuts; ++j) out[r * out_stride + j] = folded[r * kOuts + j];
  }
}

template <class Rows, int kRows>
void dots(const typename Rows::Number* a, const typename Rows::Number* x, int64_t inputs, int64_t rank, float* out) {
  constexpr int kMost = kWidth / (kRows <= 2 ? 2 : 4);
  for (int64_t first = 0; first < rank; first += kLoraBlock, a += kLoraBlock * inputs) {
    const int64_t block = std::min<int64_t>(kLoraBlock, rank - first);
    int64_t j = 0;
    const auto run = [&]<int kOuts>() {
      dot<Rows, kRows, kOuts>(a + j * kLoraStep, block, x, inputs, out + first + j, rank);
      j += kOuts;
    };
    if constexpr (kMost >= 2) {
      while (j + kMost <= block) run.template operator()<kMost>();
      while (j + 2 <= block) run.template operator()<2>();
    }
    while (j < block) run.template operator()<1>();
  }
}

template <class Rows>
void dots_of(int rows, const typename Rows::Number* a, const typename Rows::Number* x, int64_t inputs, int64_t rank, float* out) {
  if (rows == 4) return dots<Rows, 4>(a, x, inputs, rank, out);
  if (rows == 3) return dots<Rows, 3>(a, x, inputs, rank, out);
  if (rows == 2) return dots<Rows, 2>(a, x, inputs, rank, out);
  dots<Rows, 1>(a, x, inputs, rank, out);
}

// A x of up to kMostRows rows of one adapter, into their places.
struct Shrinker {
  const LoraShrinkArgs& args;
  int64_t inputs;
  float* floats;
  uint16_t* halves;
  float sums[kMostRows * kMaxLoraRank];

  Shrinker(const LoraShrinkArgs& of, int part)
      : args(of), inputs(lora_inputs(of.k)),
        floats(reinterpret_cast<float*>(of.scratch + part * lora_scratch_bytes(of.k))),
        halves(reinterpret_cast<uint16_t*>(floats + kMostRows * inputs)) {
    for (int r = 0; r < kMostRows; ++r) {  // the padding
      std::fill(floats + r * inputs + of.k, floats + (r + 1) * inputs, 0.0f);
      std::fill(halves + r * inputs + of.k, halves + (r + 1) * inputs, uint16_t{0});
    }
  }

  void run(const int32_t* rows, int count) {
    const LoraPair* pairs = args.rows.pairs + static_cast<int64_t>(args.rows.adapters[rows[0]]) * kMaxLinears;
    bool any = false, rounded = false;
    for (int i = 0; i < args.weights; ++i) {
      any = any || pairs[i].rank > 0;
      rounded = rounded || (pairs[i].rank > 0 && pairs[i].type == Format::bf16);
    }
    if (!any) return;
    for (int r = 0; r < count; ++r) {
      input_of(args, rows[r], floats + r * inputs);
      if (rounded) round_row(floats + r * inputs, args.k, halves + r * inputs);
    }
    for (int i = 0; i < args.weights; ++i) {
      if (pairs[i].rank > 0) shrink(pairs[i], rows, count);
    }
  }

  void shrink(const LoraPair& pair, const int32_t* rows, int count) {
    if (pair.type == Format::bf16) {
      dots_of<Bf16Rows>(count, reinterpret_cast<const uint16_t*>(pair.a), halves, inputs, pair.rank, sums);
    } else {
      dots_of<F32Rows>(count, reinterpret_cast<const float*>(pair.a), floats, inputs, pair.rank, sums);
    }
    for (int r = 0; r < count; ++r) {
      const float* from = sums + r * pair.rank;
      uint32_t* to = args.hidden + rows[r] * args.rows.stride + pair.at;
      for (int j = 0; j < pair.rank; ++j) {
        const float scaled = from[j] * pair.scale;
        if (pair.type == Format::bf16) {
          const uint16_t half = to_bf16(scaled);
          std::memcpy(reinterpret_cast<uint8_t*>(to) + 2 * j, &half, 2);
        } else {
          std::memcpy(to + j, &scaled, 4);
        }
      }
    }
  }
};

static void shrink(const LoraShrinkArgs& args, int part, int parts) {
  const int64_t end = args.count * (part + 1) / parts;
  int64_t i = args.count * part / parts;
  if (i >= end) return;
  Shrinker shrinker(args, part);
  while (i < end) {
    int count = 1;
    const int32_t adapter = args.rows.adapters[args.order[i]];
    while (count < kMostRows && i + count < end && args.rows.adapters[args.order[i + count]] == adapter) ++count;
    shrinker.run(args.order + i, count);
    i += count;
  }
}

}  // namespace headrace::HEADRACE_NAMESPACE

namespace headrace {

extern const LoraKernels HEADRACE_TABLE(lora);
const LoraKernels HEADRACE_TABLE(lora) = {HEADRACE_NAMESPACE::shrink};

}  // namespace headrace
