// Pieces whose rows are packed: once for all columns of an expert, in panels of up to kTileVectors vectors, pairs of the inner dimension one
// after another. Loops as in BLIS (Van Zee and van de Geijn, 2015), with rows and columns in each other's place: a range of the inner
// dimension of all packed rows, and of a group of columns, stays in the L2 cache; a tile's columns stay in L1.

#include "pack.h"
#include "tile.h"

constexpr int64_t kGroup = kTileSums;  // columns: whole tiles, whatever their height
constexpr int64_t kPadding = 32;       // numbers between converted columns: at a power of two they would share a set of the L1 cache
constexpr int64_t kRangeBytes = 768 << 10;

// One thread's memory, and which rows it holds packed.
struct Scratch {
  BFloat16* x;       // panels
  float* row_scale;  // (blocks, rows): x's scales, transposed; null without
  float* result;     // (columns, rows)
  BFloat16* weight;  // a group of columns, converted from FP8
  int64_t top = -1, rows = 0;
};

// A piece's rows in vectors, and these in panels, as even as can be.
struct Panels {
  int64_t vectors, count;
};
DAY0_INLINE Panels panels_of(int64_t rows) {
  const int64_t vectors = (rows + kLanes - 1) / kLanes;
  return {vectors, (vectors + kTileVectors - 1) / kTileVectors};
}

// Even ranges of the inner dimension, of whole blocks, of which all rows and two groups of columns fit in the L2 cache.
template <typename T, typename W>
int64_t range_of(const Grouped<T, W>& of, int64_t vectors) {
  const int64_t unit = of.weight_scale ? std::min(of.block_columns, of.inner + of.inner % 2) : 32;
  const int64_t fit = kRangeBytes / 2 / (vectors * kLanes + 2 * kGroup);
  const int64_t ranges = (of.inner + fit - 1) / fit;
  return ((of.inner + ranges - 1) / ranges + unit - 1) / unit * unit;
}

template <typename T, typename W>
Scratch scratch_of(const Grouped<T, W>& of, int64_t most_rows) {
  const auto allocate = [](int64_t bytes) { return std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64)); };
  const int64_t rows = panels_of(most_rows).vectors * kLanes, pairs = (of.inner + 1) / 2;
  return {static_cast<BFloat16*>(allocate(rows * pairs * 4)),
          static_cast<float*>(of.x_scale ? allocate(rows * of.across() * 4) : nullptr),
          static_cast<float*>(allocate(rows * kPackedColumns * 4)),
          static_cast<BFloat16*>(of.weight_scale ? allocate(kGroup * (range_of(of, 1) + kPadding) * 2) : nullptr)};
}
inline void release(const Scratch& scratch) {
  std::free(scratch.x);
  std::free(scratch.row_scale);
  std::free(scratch.result);
  std::free(scratch.weight);
}

template <typename W>
void pack_rows(const Grouped<BFloat16, W>& of, const Piece& piece, Scratch& scratch) {
  const Panels panels = panels_of(piece.rows);
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t begin = panels.vectors * panel / panels.count, end = panels.vectors * (panel + 1) / panels.count;
    BFloat16* const packed = scratch.x + begin * kLanes * ((of.inner + 1) / 2) * 2;
    for (int64_t vector = begin; vector < end; ++vector) {
      const int64_t row = vector * kLanes;
      const auto pack = piece.rows - row >= kLanes ? &pack_vector<true> : &pack_vector<false>;
      pack(of.x + (piece.top + row) * of.x_stride, of.x_stride, piece.rows - row, of.inner, packed + (vector - begin) * 2 * kLanes, (end - begin) * 2 * kLanes);
    }
  }
  for (int64_t row = 0; of.x_scale && row < panels.vectors * kLanes; ++row) {
    const float* const scales = of.x_scale + (piece.top + std::min(row, piece.rows - 1)) * of.across();
    for (int64_t block = 0; block < of.across(); ++block) {
      scratch.row_scale[block * panels.vectors * kLanes + row] = scales[block];
    }
  }
  scratch.top = piece.top;
  scratch.rows = piece.rows;
}

// The tiles of one panel and a group of columns, of which `columns` are there: a tile computes the last one again beyond, and it is not kept.
template <int vectors, bool scaled>
void tiles(const Range& range, const BFloat16* x, const BFloat16* const* weight, const float* const* weight_scale, const float* row_scale, const char* fetched,
           int64_t columns, float* result) {
  for (int64_t column = 0; column < columns; column += kTileSums / vectors) {
    float* const into = result + column * range.stride;
    if (fetched) {
      tile<vectors, scaled, true>(range, x, weight + column, weight_scale + column, row_scale, fetched + column * range.fetched_stride, into);
    } else {
      tile<vectors, scaled, false>(range, x, weight + column, weight_scale + column, row_scale, nullptr, into);
    }
  }
}

// Adds the products of all packed rows with a group of columns from `first` on over a range of the inner dimension from `begin` on, and
// fetches those that lie `ahead` of it.
template <typename W>
void group_of_columns(const Grouped<BFloat16, W>& of, const Piece& piece, int64_t first, int64_t begin, int64_t count, int64_t ahead, const Scratch& scratch,
                      float* result) {
  constexpr bool scaled = !std::is_same_v<W, BFloat16>;
  const int64_t columns = std::min(kGroup, piece.first + piece.columns - first), distance = count + kPadding;
  const W* const source = of.weight + piece.expert * of.expert_stride + begin;
  const BFloat16* weight[kGroup];
  const float* weight_scale[kGroup] = {};
  for (int64_t i = 0; i < kGroup; ++i) {
    const int64_t at = std::min(i, columns - 1), column = first + at;
    if constexpr (scaled) {
      weight[i] = scratch.weight + at * distance;
      weight_scale[i] = of.weight_scale + (piece.expert * of.down() + column / of.block_rows) * of.across() + begin / of.block_columns;
      if (i < columns) {
        convert(source + column * of.row_stride, count, scratch.weight + i * distance);
      }
    } else {
      weight[i] = source + column * of.row_stride;
    }
  }
  const Panels panels = panels_of(piece.rows);
  const int64_t rows = panels.vectors * kLanes, bytes = sizeof(W);
  const Range range{count, scaled ? std::min(of.block_columns, count) : count, rows, rows, bytes, of.row_stride * bytes};
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t top = panels.vectors * panel / panels.count, vectors = panels.vectors * (panel + 1) / panels.count - top;
    const BFloat16* const x = scratch.x + (top * ((of.inner + 1) / 2) + vectors * begin / 2) * 2 * kLanes;
    const float* const row_scale = of.x_scale ? scratch.row_scale + begin / of.block_columns * rows + top * kLanes : nullptr;
    const char* const fetched = panel == 0 ? reinterpret_cast<const char*>(source + first * of.row_stride + ahead) : nullptr;
    const auto of_height = vectors == 1 ? &tiles<1, scaled> : vectors == 2 ? &tiles<2, scaled> : vectors == 3 ? &tiles<3, scaled> : &tiles<4, scaled>;
    of_height(range, x, weight, weight_scale, row_scale, fetched, columns, result + top * kLanes);
  }
}

template <typename W>
void packed_piece(const Grouped<BFloat16, W>& of, const Piece& piece, Scratch& scratch) {
  if (piece.top != scratch.top || piece.rows != scratch.rows) {
    pack_rows(of, piece, scratch);
  }
  const int64_t vectors = panels_of(piece.rows).vectors, rows = vectors * kLanes, range = range_of(of, vectors);
  std::memset(scratch.result, 0, static_cast<size_t>(kPackedColumns * rows) * sizeof(float));
  for (int64_t begin = 0; begin < of.inner; begin += range) {
    const int64_t count = std::min(range, of.inner - begin);
    for (int64_t column = 0; column < piece.columns; column += kGroup) {
      int64_t ahead = kGroup * of.row_stride;  // the next group; after the last one, the first of the next range or of the next piece
      if (column + kGroup >= piece.columns) {
        ahead = begin + range < of.inner ? range - column * of.row_stride : ahead - begin;
      }
      group_of_columns(of, piece, piece.first + column, begin, count, ahead, scratch, scratch.result + column * rows);
    }
  }
  unpack(scratch.result, rows, piece.rows, piece.columns, of.out + piece.top * of.columns + piece.first, of.columns);
}
