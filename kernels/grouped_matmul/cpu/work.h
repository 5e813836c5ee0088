// The product cut into pieces, and the pieces shared out among threads.
#pragma once

#include <atomic>
#include <memory>

#include "arguments.h"

namespace day0 {

// Pieces of one expert after another: a thread that takes neighbours packs their rows once.
struct Work {
  int64_t packed_from;  // rows of an expert from which packing them pays
  std::vector<Piece> pieces = {};
  int64_t most_direct = 0, most_packed = 0;  // rows of a piece

  void add(int64_t expert, int64_t top, int64_t rows, int64_t columns) {
    const bool packed = rows >= packed_from;
    const int64_t width = packed ? kPackedColumns : kDirectColumns;
    const int64_t parts = packed ? (rows + kPackedRows - 1) / kPackedRows : 1;
    const int64_t height = packed ? ((rows + parts - 1) / parts + 15) / 16 * 16 : rows;  // of whole vectors, as even as can be
    (packed ? most_packed : most_direct) = std::max(packed ? most_packed : most_direct, height);
    for (int64_t row = 0; row < rows; row += height) {
      for (int64_t first = 0; first < columns; first += width) {
        pieces.push_back({expert, top + row, std::min(height, rows - row), first, std::min(width, columns - first), packed});
      }
    }
  }
};

// Hands pieces to threads: to each from a range of its own, and when that is done what others have not begun. Equal ranges alone are not
// enough, as experts have different numbers of rows, and other processes take turns on the cores.
class Share {
 public:
  Share(int64_t pieces, int64_t threads) : pieces_(pieces), threads_(threads), next_(new Next[static_cast<size_t>(threads)]) {
    for (int64_t thread = 0; thread < threads; ++thread) {
      next_[static_cast<size_t>(thread)].piece = begin(thread);
    }
  }

  // The next piece for a thread, -1 where all are taken.
  int64_t take(int64_t thread) const {
    for (int64_t i = 0; i < threads_; ++i) {
      const int64_t owner = (thread + i) % threads_;
      std::atomic<int64_t>& next = next_[static_cast<size_t>(owner)].piece;
      if (next.load(std::memory_order_relaxed) < begin(owner + 1)) {
        const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
        if (piece < begin(owner + 1)) {
          return piece;
        }
      }
    }
    return -1;
  }

 private:
  struct alignas(64) Next {  // each in a cache line of its own
    std::atomic<int64_t> piece;
  };
  int64_t begin(int64_t thread) const { return pieces_ * thread / threads_; }
  int64_t pieces_, threads_;
  std::unique_ptr<Next[]> next_;
};

}  // namespace day0
