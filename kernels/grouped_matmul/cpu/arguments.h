#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

constexpr int64_t kColumns = 32;  // columns of the result, rows of the weight, that one piece of work computes

// x (rows, inner) and weight (experts, columns, inner), rows of both side by side in memory.
template <typename T, typename W>
struct Grouped {
  const T* x;
  const W* weight;
  const float *x_scale, *weight_scale;  // null where there is none
  T* out;
  const int64_t* begins;  // of each expert that has rows: its first, and one past its last
  const int64_t* ends;
  const int64_t* experts;
  int64_t used, columns, inner, x_stride, expert_stride, row_stride, block_rows, block_columns;

  int64_t across() const { return (inner + block_columns - 1) / block_columns; }
  int64_t down() const { return (columns + block_rows - 1) / block_rows; }
};

}  // namespace day0
