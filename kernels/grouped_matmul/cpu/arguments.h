#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

// x (rows, inner) and weight (experts, columns, inner), rows of both side by side in memory.
template <typename T, typename W>
struct Grouped {
  const T* x;
  const W* weight;
  const float *x_scale, *weight_scale;  // null where there is none
  T* out;
  int64_t columns, inner, x_stride, expert_stride, row_stride, block_rows, block_columns;

  int64_t across() const { return (inner + block_columns - 1) / block_columns; }
  int64_t down() const { return (columns + block_rows - 1) / block_rows; }
};

// A part of the result that one thread computes: rows of one expert, by columns of the result, which are rows of the weight.
struct Piece {
  int64_t expert, top, rows, first, columns;
  bool packed;
};

constexpr int64_t kDirectColumns = 32;  // of a piece without packing
constexpr int64_t kPackedColumns = 48;  // of a piece with
constexpr int64_t kPackedRows = 256;

}  // namespace day0
