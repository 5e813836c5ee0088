#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

enum class Activation { silu, gelu, gelu_tanh };

// Rows of gate and up, each of `size` numbers, in one row of twice the size; out has rows of `size` side by side.
template <typename T>
struct Gated {
  const T* in;
  T* out;
  int64_t size, in_stride;
  float limit, alpha, beta;  // limit: infinity where there is none
  Write write;
};

}  // namespace day0
