#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

// Rows of `hidden` numbers; those of the outputs lie side by side.
template <typename T>
struct Rows {
  const T *x, *residual, *weight;
  T *normed, *total;
  int64_t hidden, x_stride, residual_stride;
  double eps;
  Write write;
};

}  // namespace day0
