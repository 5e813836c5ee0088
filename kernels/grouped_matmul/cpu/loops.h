// The pieces of a grouped product, for one instruction set.

#include "direct.h"
#if defined(DAY0_BF16)
#include "packed.h"
#endif

// All pieces that a thread can get.
template <typename T, typename W>
void pieces(const Grouped<T, W>& of, const Work& work, const Share& share, int64_t thread) {
  constexpr bool scaled = !std::is_same_v<T, W>;
  float* const result = static_cast<float*>(std::malloc(static_cast<size_t>((work.most_direct + kDirectTileRows) * kDirectColumns) * sizeof(float)));
  T* const converted = static_cast<T*>(scaled ? std::malloc(static_cast<size_t>(direct_part(of) * kDirectColumns) * sizeof(T)) : nullptr);
#if defined(DAY0_BF16)
  Scratch scratch{};
  if constexpr (kDot<T>) {
    scratch = work.most_packed > 0 ? scratch_of(of, work.most_packed) : scratch;
  }
#endif
  for (int64_t i = share.take(thread); i >= 0; i = share.take(thread)) {
    const Piece& piece = work.pieces[static_cast<size_t>(i)];
#if defined(DAY0_BF16)
    if constexpr (kDot<T>) {
      if (piece.packed) {
        packed_piece(of, piece, scratch);
        continue;
      }
    }
#endif
    direct_piece<scaled>(of, piece, result, converted);
  }
#if defined(DAY0_BF16)
  release(scratch);
#endif
  std::free(result);
  std::free(converted);
}
