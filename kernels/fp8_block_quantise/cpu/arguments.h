#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

template <typename T>
struct Blocks {
  const T* in;
  Float8_e4m3fn* codes;
  float* scales;
  int64_t rows, columns, in_stride, block_rows, block_columns;
  bool power_of_two;
  Write write;
};

}  // namespace day0
