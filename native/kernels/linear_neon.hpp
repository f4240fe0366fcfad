// Tile kernels for ARMv8.2 with the dot product instructions.
//
// Up to two rows take the 32 columns of a panel in one pass, three and four rows 16 columns at a time:
// 16 accumulators either way. sdot is signed by signed, so stored bytes lose their 128 on the way in.
#pragma once
#include <arm_neon.h>

#include "linear_layout.hpp"

namespace headrace {
namespace {

constexpr int kMaxRows = 4;
constexpr int32_t kWeightZero = 0;

struct StepF32 {
  using Vector = float32x4_t;
  static constexpr int kBytes = 16;
  static Vector load(const uint8_t* at) { return vreinterpretq_f32_u8(vld1q_u8(at)); }
  static void store(uint8_t* at, Vector v) { vst1q_u8(at, vreinterpretq_u8_f32(v)); }
  struct Input {
    float32x4_t x;
  };
  static Input input(uint32_t word) { return {vreinterpretq_f32_u32(vdupq_n_u32(word))}; }
  using Lane = float32x4_t;
  static Lane weights(const uint8_t* w) { return load(w); }
  static Vector add(Vector acc, Lane w, Input x) { return vfmaq_f32(acc, w, x.x); }
};

struct StepF16 : StepF32 {
  static constexpr int kBytes = 8;
  static Lane weights(const uint8_t* w) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(w))); }
};

struct StepBf16 : StepF32 {
  struct Input {
    float32x4_t even, odd;
  };
  static Input input(uint32_t word) {
    return {vreinterpretq_f32_u32(vdupq_n_u32(word << 16)), vreinterpretq_f32_u32(vdupq_n_u32(word & 0xffff0000u))};
  }
  struct Lane {
    float32x4_t even, odd;
  };
  static Lane weights(const uint8_t* w) {
    const uint32x4_t both = vreinterpretq_u32_u8(vld1q_u8(w));
    return {vreinterpretq_f32_u32(vshlq_n_u32(both, 16)),
            vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)))};
  }
  static Vector add(Vector acc, Lane w, Input x) {
    return vfmaq_f32(vfmaq_f32(acc, w.even, x.even), w.odd, x.odd);
  }
};

struct StepInt8 {
  using Vector = int32x4_t;
  static constexpr int kBytes = 16;
  static Vector load(const uint8_t* at) { return vreinterpretq_s32_u8(vld1q_u8(at)); }
  static void store(uint8_t* at, Vector v) { vst1q_u8(at, vreinterpretq_u8_s32(v)); }
  struct Input {
    int8x16_t x;
  };
  static Input input(uint32_t word) { return {vreinterpretq_s8_u32(vdupq_n_u32(word))}; }
  using Lane = int8x16_t;
  static Lane weights(const uint8_t* w) { return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w), vdupq_n_u8(128))); }
  static Vector add(Vector acc, Lane w, Input x) { return vdotq_s32(acc, w, x.x); }
};

template <class Step, int kRows, int kCount>
inline void pass(const uint8_t* w, const uint32_t* x, int64_t steps, uint8_t* acc, const Prefetch& ahead) {
  typename Step::Vector sum[kRows][kCount];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kCount; ++v) sum[r][v] = Step::load(acc + r * 128 + v * 16);
  }
  for (int64_t s = 0; s < steps; ++s, w += 8 * Step::kBytes, x += kRows) {
    __builtin_prefetch(ahead.base + s * ahead.stride);
    __builtin_prefetch(ahead.base + s * ahead.stride + ahead.second);
    typename Step::Input in[kRows];
    for (int r = 0; r < kRows; ++r) in[r] = Step::input(x[r]);
    for (int v = 0; v < kCount; ++v) {
      const typename Step::Lane weights = Step::weights(w + v * Step::kBytes);
      for (int r = 0; r < kRows; ++r) sum[r][v] = Step::add(sum[r][v], weights, in[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kCount; ++v) Step::store(acc + r * 128 + v * 16, sum[r][v]);
  }
}

template <class Step, int kRows>
HEADRACE_LEAF void tile(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  constexpr int kCount = kRows <= 2 ? 8 : 4;
  for (int v = 0; v < 8; v += kCount) {
    pass<Step, kRows, kCount>(w + v * Step::kBytes, x, steps, static_cast<uint8_t*>(sums) + v * 16, ahead);
  }
}

template <int kRows>
void tile_f32(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  tile<StepF32, kRows>(w, x, steps, sums, ahead);
}
template <int kRows>
void tile_f16(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  tile<StepF16, kRows>(w, x, steps, sums, ahead);
}
template <int kRows>
void tile_bf16(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  tile<StepBf16, kRows>(w, x, steps, sums, ahead);
}
template <int kRows>
void tile_int8(const uint8_t* w, const uint32_t* x, int64_t steps, void* sums, Prefetch ahead) {
  tile<StepInt8, kRows>(w, x, steps, sums, ahead);
}

// Bytes below 16 by a table of 16.
inline void lookup(const uint8_t* table, uint8_t* bytes) {
  const uint8x16_t values = vld1q_u8(table);
  for (int64_t i = 0; i < kGroup * kPanel; i += 16) vst1q_u8(bytes + i, vqtbl1q_u8(values, vld1q_u8(bytes + i)));
}

}  // namespace
}  // namespace headrace

#include "linear_plain.hpp"
