// Rows of blocks, for one instruction set: a block is read for its largest magnitude, and again, from the cache, to be divided.

// The smallest power of two that is not below a positive, normal number; NaN and infinity stay.
inline float next_power_of_two(float scale) {
  uint32_t bits;
  std::memcpy(&bits, &scale, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) {
    bits = (bits + 0x7fffffu) & 0xff800000u;
    std::memcpy(&scale, &bits, 4);
  }
  return scale;
}

template <typename T>
DAY0_INLINE float largest(const T* in, int64_t stride, int64_t rows, int64_t columns) {
  F32 first = set(0.0f), second = set(0.0f);
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = in + row * stride;
    int64_t i = 0;
    for (; i + 2 * kLanes <= columns; i += 2 * kLanes) {
      first = max_magnitude(first, load(from + i));
      second = max_magnitude(second, load(from + i + kLanes));
    }
    for (; i < columns; i += kLanes) {
      first = max_magnitude(first, load(from + i, columns - i));
    }
  }
  return highest_magnitude(max_magnitude(first, second));
}

template <typename T>
void quantise(const Blocks<T>& of, int64_t begin, int64_t end) {
  const int64_t across = (of.columns + of.block_columns - 1) / of.block_columns;
  for (int64_t down = begin; down < end; ++down) {
    const int64_t top = down * of.block_rows, rows = std::min(of.block_rows, of.rows - top);
    for (int64_t block = 0; block < across; ++block) {
      const int64_t left = block * of.block_columns, columns = std::min(of.block_columns, of.columns - left);
      const T* in = of.in + top * of.in_stride + left;
      const float most = largest(in, of.in_stride, rows, columns);
      float scale = (most < 1e-10f ? 1e-10f : most) / 448.0f;
      if (of.power_of_two) {
        scale = next_power_of_two(scale);
      }
      of.scales[down * across + block] = scale;
      const F32 inverse = set(1.0f / scale);  // a product costs a tenth of a quotient, and differs from it next to ties only
      for (int64_t row = 0; row < rows; ++row) {
        const T* from = in + row * of.in_stride;
        Float8_e4m3fn* to = of.codes + (top + row) * of.columns + left;
        int64_t i = 0;
        for (; i + kLanes <= columns; i += kLanes) {
          store(to + i, load(from + i) * inverse, of.write);
        }
        if (i < columns) {
          store(to + i, load(from + i, columns - i) * inverse, columns - i, of.write);
        }
      }
    }
  }
  finish_stores(of.write);
}
