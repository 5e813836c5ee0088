// The innermost product of the packed way. Lanes are rows of x, so that pairs of the weight, read where they are, are broadcast to them:
// nothing of the weight, by far the larger operand, is packed. A tile's sums stay in 24 of the 32 registers for a whole block.

constexpr int kTileSums = 24;
constexpr int kTileVectors = 4;  // of rows, at most; the fewer, the more columns

// What the tiles of one range of the inner dimension have in common.
struct Range {
  int64_t count;             // numbers of the inner dimension
  int64_t block;             // numbers that have one scale; `count`: all
  int64_t stride;            // of results, from one column to the next
  int64_t row_scale_stride;  // from one block to the next
  int64_t fetched_bytes;     // of a number of the weight in memory
  int64_t fetched_stride;    // bytes from one column of the weight to the next
};

// The products of one pair of the inner dimension; `half`: of its first number alone, after which the weight ends.
template <bool half, int vectors, int columns>
DAY0_INLINE void add_pair(const BFloat16* x, const BFloat16* const (&weight)[columns], int64_t k, F32 (&sums)[columns][vectors]) {
  Pairs rows[vectors];
#pragma GCC unroll 4
  for (int vector = 0; vector < vectors; ++vector) {
    rows[vector] = _mm512_load_si512(x + k * vectors * kLanes + vector * 2 * kLanes);
  }
#pragma GCC unroll 24
  for (int column = 0; column < columns; ++column) {
    int32_t pair = 0;
    std::memcpy(&pair, weight[column] + k, half ? 2 : 4);
#pragma GCC unroll 4
    for (int vector = 0; vector < vectors; ++vector) {
      sums[column][vector] = multiply(rows[vector], _mm512_set1_epi32(pair), sums[column][vector]);
    }
  }
}

// Adds to result[column * stride + row] the products over a range. x is packed for `vectors` vectors of rows. With scales, each block's
// sums are scaled by weight_scale[column][block] and, where there is one, by row_scale[block * row_scale_stride + row].
// Columns of the weight that will be wanted later, from `fetched` on, are fetched into the L2 cache meanwhile.
template <int vectors, bool scaled, bool fetching>
__attribute__((noinline)) void tile(const Range& range, const BFloat16* x, const BFloat16* const* weights, const float* const* weight_scale,
                                    const float* row_scale, const char* fetched, float* result) {
  constexpr int columns = kTileSums / vectors;
  constexpr int64_t line = 32;
  const BFloat16* weight[columns];
  std::copy_n(weights, columns, weight);
  for (int64_t begin = 0; begin < range.count; begin += range.block) {
    const int64_t end = std::min(begin + range.block, range.count);
    F32 sums[columns][vectors];
#pragma GCC unroll 24
    for (int column = 0; column < columns; ++column) {
#pragma GCC unroll 4
      for (int vector = 0; vector < vectors; ++vector) {
        sums[column][vector] = set(0.0f);
      }
    }
    int64_t k = begin;
    for (; k + line <= end; k += line) {
      if constexpr (fetching) {
#pragma GCC unroll 24
        for (int column = 0; column < columns; ++column) {
          __builtin_prefetch(fetched + column * range.fetched_stride + k * range.fetched_bytes, 0, 2);
        }
      }
      for (int64_t pair = k; pair < k + line; pair += 4) {
        add_pair<false, vectors, columns>(x, weight, pair, sums);
        add_pair<false, vectors, columns>(x, weight, pair + 2, sums);
      }
    }
    for (; k + 2 <= end; k += 2) {
      add_pair<false, vectors, columns>(x, weight, k, sums);
    }
    if (k < end) {
      add_pair<true, vectors, columns>(x, weight, k, sums);
    }
#pragma GCC unroll 24
    for (int column = 0; column < columns; ++column) {
#pragma GCC unroll 4
      for (int vector = 0; vector < vectors; ++vector) {
        float* const into = result + column * range.stride + vector * kLanes;
        if constexpr (scaled) {
          const int64_t block = begin / range.block;
          F32 scale = set(weight_scale[column][block]);
          if (row_scale) {
            scale = scale * load(row_scale + block * range.row_scale_stride + vector * kLanes);
          }
          store(into, fma(sums[column][vector], scale, load(into)));
        } else {
          store(into, sums[column][vector] + load(into));
        }
      }
    }
  }
}
