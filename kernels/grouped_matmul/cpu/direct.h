// Pieces whose operands are read where they are. A tile of rows by columns is in registers as vectors of partial sums along the inner
// dimension, which is contiguous in both operands, so nothing is packed or transposed; their lanes are added at the end. With scales a
// block's sums are in registers of their own before they are scaled.

// The registers that a tile may take.
constexpr int kDirectTileColumns = DAY0_VECTORS == 512 ? 4 : 2;
constexpr int kDirectTileRows = DAY0_VECTORS == 512 ? 6 : 2;
constexpr int kScaledColumns = 2;
constexpr int kScaledRows = DAY0_VECTORS == 512 ? 4 : 2;

template <int rows, int columns, typename T, typename W>
DAY0_INLINE void step(const T* const* x, const W* const* weight, int64_t k, int64_t left, F32* into) {
  decltype(operand<T>(weight[0], 0)) wide[columns];
#pragma GCC unroll 4
  for (int column = 0; column < columns; ++column) {
    wide[column] = operand<T>(weight[column] + k, left);
    __builtin_prefetch(reinterpret_cast<const char*>(weight[column] + k) + 1024);
  }
#pragma GCC unroll 6
  for (int row = 0; row < rows; ++row) {
    const auto tall = operand<T>(x[row] + k, left);
#pragma GCC unroll 4
    for (int column = 0; column < columns; ++column) {
      into[row * columns + column] = multiply(tall, wide[column], into[row * columns + column]);
    }
  }
}

template <int rows, int columns, typename T, typename W>
DAY0_INLINE void span(const T* const* x, const W* const* weight, int64_t begin, int64_t end, F32* into) {
  int64_t k = begin;
  for (; k + kStep<T> <= end; k += kStep<T>) {
    step<rows, columns>(x, weight, k, kStep<T>, into);
  }
  if (k < end) {
    step<rows, columns>(x, weight, k, end - k, into);
  }
}

// Adds to result[row * kDirectColumns + column] the products over [begin, end) of the inner dimension; `begin` is a block's.
template <int rows, int columns, bool scaled, typename T, typename W>
void tile(const T* const* x, const W* const* weight, const float* const* x_scale, const float* const* weight_scale, int64_t block,
          int64_t begin, int64_t end, float* result) {
  constexpr int count = rows * columns, padded = (count + kLanes - 1) / kLanes * kLanes;
  F32 total[padded];
#pragma GCC unroll 32
  for (int i = 0; i < padded; ++i) {
    total[i] = set(0.0f);
  }
  if constexpr (scaled) {
    for (int64_t from = begin; from < end; from += block) {
      F32 own[count];
#pragma GCC unroll 32
      for (int i = 0; i < count; ++i) {
        own[i] = set(0.0f);
      }
      const int64_t until = std::min(from + block, end);
      span<rows, columns>(x, weight, from, until, own);
      if (until - from < kStep<T>) {
        // Lanes past the end of so short a block hold zeros, which an infinite scale would make NaN: each lane gets its share of the sum.
#pragma GCC unroll 32
        for (int i = 0; i < count; ++i) {
          own[i] = set(sum(own[i]) * (1.0f / kLanes));
        }
      }
#pragma GCC unroll 4
      for (int row = 0; row < rows; ++row) {
        const float by_row = x_scale[row] ? x_scale[row][from / block] : 1.0f;
#pragma GCC unroll 4
        for (int column = 0; column < columns; ++column) {
          const F32 scale = set(weight_scale[column][from / block] * by_row);
          total[row * columns + column] = fma(own[row * columns + column], scale, total[row * columns + column]);
        }
      }
    }
  } else {
    span<rows, columns>(x, weight, begin, end, total);
  }
#pragma GCC unroll 2
  for (int first = 0; first < padded; first += kLanes) {
    alignas(64) float each[kLanes];
    store(each, sums(total + first));
    for (int i = 0; i < kLanes && first + i < count; ++i) {
      result[(first + i) / columns * kDirectColumns + (first + i) % columns] += each[i];
    }
  }
}

// Rows of a tile by up to kDirectColumns columns. Past the last column one is computed again, and not kept.
template <int rows, bool scaled, typename T, typename W>
DAY0_INLINE void tile_row(const T* const* x, const float* const* x_scale, const W* weight, int64_t weight_stride, const float* const* weight_scale,
                          int64_t columns, int64_t block, int64_t begin, int64_t end, float* result) {
  constexpr int width = scaled ? kScaledColumns : kDirectTileColumns;
  for (int64_t column = 0; column < columns; column += width) {
    const W* weights[width];
    for (int i = 0; i < width; ++i) {
      weights[i] = weight + std::min(column + i, columns - 1) * weight_stride;
    }
    tile<rows, width, scaled>(x, weights, x_scale, weight_scale + column, block, begin, end, result + column);
  }
}

// All rows, in tiles of the most that the registers hold; the last tile may hold a row twice.
template <bool scaled, typename T, typename W, typename V>
DAY0_INLINE void all_rows(const Grouped<T, W>& of, int64_t top, int64_t rows, const V* weight, int64_t weight_stride, const float* const* weight_scale,
                          int64_t columns, int64_t begin, int64_t end, float* result) {
  constexpr int most = scaled ? kScaledRows : kDirectTileRows;
  for (int64_t row = 0; row < rows; row += most) {
    const T* x[most];
    const float* x_scale[most];
    for (int i = 0; i < most; ++i) {
      const int64_t at = top + std::min(row + i, rows - 1);
      x[i] = of.x + at * of.x_stride;
      x_scale[i] = of.x_scale ? of.x_scale + at * of.across() : nullptr;
    }
    float* const into = result + row * kDirectColumns;
    if (rows - row > 2) {
      tile_row<most, scaled>(x, x_scale, weight, weight_stride, weight_scale, columns, of.block_columns, begin, end, into);
    } else {
      tile_row<2, scaled>(x, x_scale, weight, weight_stride, weight_scale, columns, of.block_columns, begin, end, into);
    }
  }
}

// Numbers of the inner dimension that stay in the caches with a piece's columns: whole blocks.
template <typename T, typename W>
int64_t direct_part(const Grouped<T, W>& of) {
  return of.weight_scale ? std::max<int64_t>(1, 1024 / of.block_columns) * of.block_columns : 1024;
}

// `result` has room for kDirectColumns of each row and of a whole tile more, `converted` for direct_part() of each column.
template <bool scaled, typename T, typename W>
void direct_piece(const Grouped<T, W>& of, const Piece& piece, float* result, T* converted) {
  const int64_t top = piece.top, rows = piece.rows, first = piece.first, columns = piece.columns;
  const W* const weight = of.weight + piece.expert * of.expert_stride + first * of.row_stride;
  std::memset(result, 0, static_cast<size_t>((rows + kDirectTileRows) * kDirectColumns) * sizeof(float));
  const float* weight_scale[kDirectColumns + kDirectTileColumns] = {};
  for (int64_t column = 0; scaled && column < kDirectColumns + kDirectTileColumns; ++column) {
    const int64_t row = first + std::min(column, columns - 1);
    weight_scale[column] = of.weight_scale + (piece.expert * of.down() + row / of.block_rows) * of.across();
  }
  if (rows <= (scaled ? kScaledRows : kDirectTileRows)) {
    // A few rows: along the whole inner dimension, the weight straight from memory.
    all_rows<scaled>(of, top, rows, weight, of.row_stride, weight_scale, columns, 0, of.inner, result);
  } else {
    // Many: by parts that stay in the caches, FP8 converted once for all rows.
    const int64_t part = direct_part(of);
    for (int64_t begin = 0; begin < of.inner; begin += part) {
      const int64_t end = std::min(begin + part, of.inner);
      if constexpr (std::is_same_v<T, W>) {
        all_rows<scaled>(of, top, rows, weight, of.row_stride, weight_scale, columns, begin, end, result);
      } else {
        for (int64_t column = 0; column < columns; ++column) {
          for (int64_t k = begin; k < end; k += kLanes) {
            store(converted + column * part + k - begin, load(weight + column * of.row_stride + k, end - k), end - k, Write::cached);
          }
        }
        all_rows<scaled>(of, top, rows, static_cast<const T*>(converted) - begin, part, weight_scale, columns, begin, end, result);
      }
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    T* const out = of.out + (top + row) * of.columns + first;
    for (int64_t column = 0; column < columns; column += kLanes) {
      store(out + column, load(result + row * kDirectColumns + column), columns - column, Write::cached);
    }
  }
}

