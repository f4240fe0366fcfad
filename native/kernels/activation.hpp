// Activations, a vector at a time: ops of their own, and what follows a gated product. Included as simd.hpp is.
#pragma once
#include <cmath>

#include "arguments.hpp"
#include "simd.hpp"

namespace headrace::HEADRACE_NAMESPACE {

// erfc(x) for x >= 0 as t P(t) e^(-x^2), t = 2 / (2 + x).
static inline F erfc_of_positive(F x) {
  const F t = splat(2.0f) / (x + splat(2.0f));
  F p = fma(splat(2.1212980151176453e-2f), t, splat(-1.7155508697032928e-1f));
  p = fma(p, t, splat(5.419453382492065e-1f));
  p = fma(p, t, splat(-8.198220729827881e-1f));
  p = fma(p, t, splat(5.449347496032715e-1f));
  p = fma(p, t, splat(-1.6409337520599365e-1f));
  p = fma(p, t, splat(2.480330616235733e-1f));
  p = fma(p, t, splat(2.338874489068985e-1f));
  p = fma(p, t, splat(2.8342095017433167e-1f));
  p = fma(p, t, splat(2.820360064506531e-1f));
  return p * t * exp(-(x * x));
}

static inline F silu(F x) { return x / (splat(1.0f) + exp(-x)); }
static inline F gelu(F x) {  // x * Phi(x), Phi by erfc of the side where it does not cancel
  const F tail = splat(0.5f) * erfc_of_positive(abs(x) * splat(0.707106781186547524f));
  return x * (x < splat(0.0f) ? tail : splat(1.0f) - tail);
}
static inline F gelu_tanh(F x) {
  const F inner = splat(0.797884560802865356f) * fma(splat(0.044715f) * x * x, x, x);
  return splat(0.5f) * x * (splat(1.0f) + tanh(inner));
}

static inline F relu(F x) { return x < splat(0.0f) ? splat(0.0f) : x; }  // NaN stays
static inline F log1p_relu(F x) {  // a number at a time: only rows of output have it
  F y = relu(x);
  for (int i = 0; i < kWidth; ++i) y[i] = ::log1pf(y[i]);
  return y;
}

static inline F activate(Act act, F x) {
  switch (act) {
    case Act::silu:
      return silu(x);
    case Act::gelu:
      return gelu(x);
    case Act::gelu_tanh:
      return gelu_tanh(x);
    case Act::tanh:
      return tanh(x);
    case Act::relu:
      return relu(x);
    case Act::log1p_relu:
      return log1p_relu(x);
    default:
      return x;
  }
}

}  // namespace headrace::HEADRACE_NAMESPACE
