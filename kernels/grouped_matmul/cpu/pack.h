// Packing for tile.h: x so that a vector holds one pair of numbers of sixteen rows, and results back from that order. AVX-512 with bfloat16.

// Sixteen vectors of sixteen 32-bit numbers.
DAY0_INLINE void transpose(__m512i (&rows)[16]) {
  __m512i twos[16], fours[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    twos[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    twos[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(twos[i], twos[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(twos[i], twos[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(twos[i + 1], twos[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(twos[i + 1], twos[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i low = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0x44), low_rest = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0x44);
    const __m512i high = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0xee), high_rest = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0xee);
    rows[i] = _mm512_shuffle_i32x4(low, low_rest, 0x88);
    rows[4 + i] = _mm512_shuffle_i32x4(low, low_rest, 0xdd);
    rows[8 + i] = _mm512_shuffle_i32x4(high, high_rest, 0x88);
    rows[12 + i] = _mm512_shuffle_i32x4(high, high_rest, 0xdd);
  }
}

// Up to sixteen rows of x: pair k of their numbers is the vector at packed + k * step; rows that are not there are zeros.
template <bool whole>
void pack_vector(const BFloat16* x, int64_t stride, int64_t rows, int64_t inner, BFloat16* packed, int64_t step) {
  for (int64_t k = 0; k < inner; k += 32) {
    __m512i block[16];
#pragma GCC unroll 16
    for (int row = 0; row < 16; ++row) {
      block[row] = whole || row < rows ? load_pairs(x + row * stride + k, inner - k) : _mm512_setzero_si512();
      __builtin_prefetch(x + (row + 16) * stride + k, 0, 2);  // the next sixteen
    }
    transpose(block);
    const int64_t pairs = std::min<int64_t>(16, (inner - k + 1) / 2);
    BFloat16* const to = packed + k / 2 * step;
    if (pairs == 16) {
#pragma GCC unroll 16
      for (int pair = 0; pair < 16; ++pair) {
        _mm512_store_si512(to + pair * step, block[pair]);
      }
    } else {
      for (int64_t pair = 0; pair < pairs; ++pair) {
        _mm512_store_si512(to + pair * step, block[pair]);
      }
    }
  }
}

// FP8 numbers as bfloat16, exactly, and zeros up to a whole vector.
inline void convert(const Float8_e4m3fn* from, int64_t count, BFloat16* to) {
  for (int64_t k = 0; k < count; k += 32) {
    _mm512_storeu_si512(to + k, load_pairs(from + k, count - k));
  }
}

// Results, of which column c's rows begin at result + c * stride, as rows of `out`.
template <typename T>
void unpack(const float* result, int64_t stride, int64_t rows, int64_t columns, T* out, int64_t out_stride) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      __m512i block[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        block[i] = _mm512_load_si512(result + std::min(column + i, columns - 1) * stride + row);
      }
      transpose(block);
      const int64_t count = std::min<int64_t>(kLanes, rows - row);
      for (int64_t i = 0; i < count; ++i) {
        store(out + (row + i) * out_stride + column, F32{_mm512_castsi512_ps(block[i])}, columns - column, Write::cached);
      }
    }
  }
}
