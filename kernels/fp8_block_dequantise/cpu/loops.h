// Rows of codes, for one instruction set.

template <typename T>
void dequantise(const Coded<T>& of, int64_t begin, int64_t end) {
  const int64_t down = (of.rows + of.block_rows - 1) / of.block_rows;
  const int64_t across = (of.columns + of.block_columns - 1) / of.block_columns;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t matrix = index / of.rows, row = index % of.rows;
    const Float8_e4m3fn* codes = of.codes + matrix * of.matrix_stride + row * of.row_stride;
    const float* scales = of.scales + (matrix * down + row / of.block_rows) * across;
    T* out = of.out + index * of.columns;
    for (int64_t block = 0; block < across; ++block) {
      const int64_t left = block * of.block_columns, right = std::min(left + of.block_columns, of.columns);
      int64_t i = left;
      for (; i + 2 * kLanes <= right; i += 2 * kLanes) {
        F32 first, second;
        load_two(codes + i, first, second);
        store(out + i, first * set(scales[block]), of.write);
        store(out + i + kLanes, second * set(scales[block]), of.write);
      }
      for (; i < right; i += kLanes) {
        store(out + i, load(codes + i, right - i) * set(scales[block]), right - i, of.write);
      }
    }
  }
  finish_stores(of.write);
}
