// Pieces of sequences, for one instruction set: scores of all a piece's tokens, their softmax, and the weighted sum of values. The query
// heads that share a key head are taken together, so that each key and value is read from memory once.

#if DAY0_VECTORS == 512
constexpr int kTile = 4;  // heads by tokens whose scores are in registers at once
#else
constexpr int kTile = 2;
#endif

// scores[head * kPiece + token] of kTile heads and kTile tokens. `query` is padded to whole vectors.
template <typename T, typename Q, typename C>
DAY0_INLINE void score_tile(const Q* query, int64_t padded, const C* const* keys, int64_t size, float* scores) {
  F32 total[16];
  for (F32& each : total) {
    each = set(0.0f);
  }
  for (int64_t d = 0; d < size; d += kStep<T>) {
    decltype(operand<T>(query, 0)) key[kTile];
#pragma GCC unroll 4
    for (int token = 0; token < kTile; ++token) {
      key[token] = operand<T>(keys[token] + d, size - d);
    }
#pragma GCC unroll 4
    for (int head = 0; head < kTile; ++head) {
      const auto q = operand<T>(query + head * padded + d, kStep<T>);
#pragma GCC unroll 4
      for (int token = 0; token < kTile; ++token) {
        total[head * kTile + token] = multiply(q, key[token], total[head * kTile + token]);
      }
    }
  }
  if constexpr (kTile == 4) {
    alignas(64) float each[16];
    store(each, sums(total));
    for (int head = 0; head < kTile; ++head) {
      std::memcpy(scores + head * kPiece, each + head * kTile, kTile * sizeof(float));
    }
  } else {
    for (int head = 0; head < kTile; ++head) {
      for (int token = 0; token < kTile; ++token) {
        scores[head * kPiece + token] = sum(total[head * kTile + token]);
      }
    }
  }
}

// sums[head * stride + i] += weights[head * kPiece + token] * values[token][i] for `width` vectors of a value.
template <int heads, int width, typename C>
DAY0_INLINE void weigh(const float* weights, const C* const* values, int64_t offset, int64_t count, int64_t tokens, float* sums, int64_t stride) {
  F32 total[heads][width];
  for (int head = 0; head < heads; ++head) {
    for (int i = 0; i < width; ++i) {
      total[head][i] = set(0.0f);
    }
  }
  for (int64_t token = 0; token < tokens; ++token) {
    F32 value[width];
    if constexpr (width == 1) {
      value[0] = load(values[token] + offset, count);
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < width; i += 2) {
        load_two(values[token] + offset + i * kLanes, value[i], value[i + 1]);
      }
    }
#pragma GCC unroll 8
    for (int head = 0; head < heads; ++head) {
      const F32 weight = set(weights[head * kPiece + token]);
#pragma GCC unroll 8
      for (int i = 0; i < width; ++i) {
        total[head][i] = fma(weight, value[i], total[head][i]);
      }
    }
  }
  for (int head = 0; head < heads; ++head) {
    for (int i = 0; i < width; ++i) {
      store(sums + head * stride + offset + i * kLanes, total[head][i]);
    }
  }
}

template <int heads, typename C>
DAY0_INLINE void weigh_all(const float* weights, const C* const* values, int64_t size, int64_t tokens, float* sums, int64_t stride) {
  constexpr int width = kTile == 4 ? (heads == 8 ? 2 : 4) : (heads == 8 ? 1 : 2);
  int64_t d = 0;
  for (; width > 1 && d + width * kLanes <= size; d += width * kLanes) {
    weigh<heads, width>(weights, values, d, size - d, tokens, sums, stride);
  }
  for (; d < size; d += kLanes) {
    weigh<heads, 1>(weights, values, d, size - d, tokens, sums, stride);
  }
}

// What a query is held in: as it is for dot products of bfloat16, else in float32.
template <typename T>
using Held = std::conditional_t<kDot<T>, T, float>;

template <typename T>
DAY0_INLINE void prefetch(const T* row, int64_t size) {
  for (int64_t byte = 0; byte < size * static_cast<int64_t>(sizeof(T)); byte += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
  }
}

// Where the piece's keys and values lie.
template <typename T, typename C>
DAY0_INLINE void find_rows(const Attention<T, C>& of, const Piece& piece, int64_t head, const C** keys, const C** values) {
  const int32_t* block = of.table + piece.sequence * of.table_stride + piece.begin / of.block_size;
  int64_t row = piece.begin % of.block_size;
  for (int64_t t = 0; t < piece.end - piece.begin; ++t) {
    keys[t] = of.keys + *block * of.key_strides[0] + row * of.key_strides[1] + head * of.key_strides[2];
    values[t] = of.values + *block * of.value_strides[0] + row * of.value_strides[1] + head * of.value_strides[2];
    if (++row == of.block_size) {
      row = 0;
      ++block;
    }
  }
}

// A row of the cache as what the query is held in, padded to whole vectors.
template <typename T, typename C>
DAY0_INLINE void widen(T* to, const C* from, int64_t size) {
#if defined(DAY0_BF16)
  if constexpr (kDot<T> && std::is_same_v<C, Float8_e4m3fn>) {
    for (int64_t d = 0; d < size; d += kStep<T>) {
      _mm512_storeu_si512(to + d, load_pairs(from + d, size - d));
    }
    return;
  }
#endif
  for (int64_t d = 0; d < size; d += kLanes) {
    store(to + d, load(from + d, size - d));
  }
}

// Scores of all the piece's tokens, not scaled yet. The values are fetched meanwhile: they are needed next, a column of vectors at a time.
template <typename T, typename C>
DAY0_INLINE void score(const Attention<T, C>& of, const Held<T>* query, int64_t padded, int64_t heads, int64_t tokens, const C** keys, const C* const* values, Held<T>* widened, float* scores) {
  constexpr int64_t ahead = 16;
  for (int64_t t = 0; t < tokens; t += kTile) {
    for (int64_t token = t; token < std::min(t + kTile, tokens); ++token) {
      prefetch(keys[std::min(token + ahead, tokens - 1)], of.key_size);
      prefetch(values[token], of.value_size);
    }
    if constexpr (std::is_same_v<C, Held<T>>) {
      for (int64_t g = 0; g < heads; g += kTile) {
        score_tile<T>(query + g * padded, padded, keys + t, of.key_size, scores + g * kPiece + t);
      }
    } else {
      // Converted once for all heads.
      const Held<T>* rows[kTile];
      for (int token = 0; token < kTile; ++token) {
        rows[token] = widened + token * padded;
        widen(widened + token * padded, keys[t + token], of.key_size);
      }
      for (int64_t g = 0; g < heads; g += kTile) {
        score_tile<T>(query + g * padded, padded, rows, of.key_size, scores + g * kPiece + t);
      }
    }
  }
}

template <typename T, typename C>
DAY0_INLINE void attend(const Attention<T, C>& of, int64_t index, int64_t head, float* scratch) {
  const Piece piece = of.pieces[index];
  const int64_t tokens = piece.end - piece.begin, heads = (of.group + kTile - 1) / kTile * kTile;
  const int64_t padded = (of.key_size + kStep<T> - 1) / kStep<T> * kStep<T>, stride = of.partial_size();
  float* const scores = scratch;
  const C** const keys = reinterpret_cast<const C**>(scores + heads * kPiece);
  const C** const values = keys + kPiece + kTile;
  Held<T>* const query = reinterpret_cast<Held<T>*>(values + kPiece + kTile);
  Held<T>* const widened = query + heads * padded;

  std::memset(static_cast<void*>(query), 0, static_cast<size_t>(heads * padded) * sizeof(Held<T>));
  for (int64_t g = 0; g < of.group; ++g) {
    const T* from = of.query + ((piece.sequence * of.heads + head) * of.group + g) * of.key_size;
    for (int64_t d = 0; d < of.key_size; ++d) {
      query[g * padded + d] = static_cast<Held<T>>(from[d]);
    }
  }
  find_rows(of, piece, head, keys, values);
  for (int64_t t = tokens; t < tokens + kTile; ++t) {
    keys[t] = keys[tokens - 1];  // scored, and not used
  }
  score(of, query, padded, heads, tokens, keys, values, widened, scores);

  const F32 scale = set(of.scale * (of.key_scale ? of.key_scale[head * of.key_scale_stride] : 1.0f));
  const int64_t whole = (tokens + kLanes - 1) / kLanes * kLanes;
  float* const partial = of.partial + ((index * of.heads + head) * of.group) * stride;
  for (int64_t g = 0; g < of.group; ++g) {
    float* const row = scores + g * kPiece;
    for (int64_t t = 0; t < tokens; t += kLanes) {
      F32 value = load(row + t) * scale;
      if (of.soft_cap > 0.0f) {
        value = set(of.soft_cap) * tanh(value / set(of.soft_cap));
      }
      store(row + t, value);
    }
    for (int64_t t = tokens; t < whole; ++t) {
      row[t] = -std::numeric_limits<float>::infinity();
    }
    F32 most = set(-std::numeric_limits<float>::infinity());
    for (int64_t t = 0; t < whole; t += kLanes) {
      most = at_least(most, load(row + t));
    }
    const float largest = highest(most);
    const F32 shift = set(largest == -std::numeric_limits<float>::infinity() ? 0.0f : largest);
    F32 total = set(0.0f);
    for (int64_t t = 0; t < whole; t += kLanes) {
      const F32 weight = exp(load(row + t) - shift);
      store(row + t, weight);
      total = total + weight;
    }
    partial[g * stride + stride - 2] = largest;
    partial[g * stride + stride - 1] = sum(total);
  }
  int64_t g = 0;
  for (; g + 8 <= of.group; g += 8) {
    weigh_all<8>(scores + g * kPiece, values, of.value_size, tokens, partial + g * stride, stride);
  }
  for (; g + 4 <= of.group; g += 4) {
    weigh_all<4>(scores + g * kPiece, values, of.value_size, tokens, partial + g * stride, stride);
  }
  for (; g < of.group; ++g) {
    weigh_all<1>(scores + g * kPiece, values, of.value_size, tokens, partial + g * stride, stride);
  }
}

// A range over all pieces and heads.
template <typename T, typename C>
void pieces(const Attention<T, C>& of, int64_t begin, int64_t end) {
  const int64_t heads = (of.group + kTile - 1) / kTile * kTile, padded = (of.key_size + kStep<T> - 1) / kStep<T> * kStep<T>;
  const int64_t held = (heads + kTile) * padded * static_cast<int64_t>(sizeof(Held<T>)), pointers = 2 * (kPiece + kTile) * static_cast<int64_t>(sizeof(void*));
  float* const scratch = static_cast<float*>(std::malloc(static_cast<size_t>(heads * kPiece * static_cast<int64_t>(sizeof(float)) + pointers + held)));
  for (int64_t i = begin; i < end; ++i) {
    attend(of, i / of.heads, i % of.heads, scratch);
  }
  std::free(scratch);
}

// A range over all sequences and query heads: the pieces' results, each by the share of its weights.
template <typename T, typename C>
void merge(const Attention<T, C>& of, int64_t begin, int64_t end) {
  const int64_t query_heads = of.heads * of.group, stride = of.partial_size();
  for (int64_t i = begin; i < end; ++i) {
    const int64_t sequence = i / query_heads, head = i % query_heads;
    const int64_t first = of.first_piece[sequence], last = of.first_piece[sequence + 1];
    float* const partial = of.partial + head * stride;
    const int64_t step = query_heads * stride;
    float largest = -std::numeric_limits<float>::infinity(), total = 0.0f;
    for (int64_t p = first; p < last; ++p) {
      largest = std::max(largest, partial[p * step + stride - 2]);
    }
    for (int64_t p = first; p < last; ++p) {
      float& own = partial[p * step + stride - 2];  // from here on the piece's share
      own = own == largest ? 1.0f : std::exp(own - largest);
      total += own * partial[p * step + stride - 1];
    }
    const float scale = of.value_scale ? of.value_scale[head / of.group * of.value_scale_stride] : 1.0f;
    T* const out = of.out + i * of.value_size;
    for (int64_t d = 0; d < of.value_size; d += kLanes) {
      F32 sum = set(0.0f);
      for (int64_t p = first; p < last; ++p) {
        sum = fma(set(partial[p * step + stride - 2]), load(partial + p * step + d), sum);
      }
      const F32 result = first == last ? set(0.0f) : sum / set(total) * set(scale);
      store(out + d, result, of.value_size - d, Write::cached);
    }
  }
}
