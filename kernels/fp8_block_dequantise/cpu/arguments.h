#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

// A stack of matrices; the rows of all are numbered through. Output and scales are contiguous.
template <typename T>
struct Coded {
  const Float8_e4m3fn* codes;
  const float* scales;
  T* out;
  int64_t rows, columns, matrix_stride, row_stride, block_rows, block_columns;
  Write write;
};

}  // namespace day0
