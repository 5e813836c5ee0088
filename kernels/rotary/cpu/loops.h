// The tokens of a rotary embedding, for one instruction set.

template <typename T>
DAY0_INLINE void turn_halves(const Heads<T>& of, int64_t token, int64_t size, int64_t rotary, const float* cos, const float* sin, Write write) {
  const int64_t half = rotary / 2;
  for (int64_t head = 0; head < of.heads; ++head) {
    const T* in = of.in + token * of.token_stride + head * of.head_stride;
    T* out = of.out + token * of.out_token_stride + head * of.out_head_stride;
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t count = half - i;
      const F32 c = load(cos + i), s = load(sin + i);
      const F32 first = load(in + i, count), second = load(in + half + i, count);
      store(out + i, first * c - second * s, count, write);
      store(out + half + i, second * c + first * s, count, write);
    }
    if (size > rotary && out != in) {
      std::memcpy(static_cast<void*>(out + rotary), in + rotary, static_cast<size_t>(size - rotary) * sizeof(T));
    }
  }
}

// cos and sin hold one number for each number of the head: the pair's, and the sine negative for the first of a pair.
template <typename T>
DAY0_INLINE void turn_pairs(const Heads<T>& of, int64_t token, int64_t size, int64_t rotary, const float* cos, const float* sin, Write write) {
  for (int64_t head = 0; head < of.heads; ++head) {
    const T* in = of.in + token * of.token_stride + head * of.head_stride;
    T* out = of.out + token * of.out_token_stride + head * of.out_head_stride;
    for (int64_t i = 0; i < rotary; i += kLanes) {
      const F32 x = load(in + i, rotary - i);
      store(out + i, x * load(cos + i) + swap_pairs(x) * load(sin + i), rotary - i, write);
    }
    if (size > rotary && out != in) {
      std::memcpy(static_cast<void*>(out + rotary), in + rotary, static_cast<size_t>(size - rotary) * sizeof(T));
    }
  }
}

template <typename T, typename C>
void tokens(const Rotation<T, C>& of, int64_t begin, int64_t end) {
  const int64_t rotary = of.rotary, half = rotary / 2, padded = rotary + 2 * kLanes;
  float* const cos = static_cast<float*>(std::calloc(static_cast<size_t>(2 * padded), sizeof(float)));
  float* const sin = cos + padded;
  for (int64_t token = begin; token < end; ++token) {
    const C* row = of.cos_sin + of.positions[token * of.position_stride] * of.cos_sin_stride;
    for (int64_t i = 0; i < half; ++i) {
      const float c = static_cast<float>(row[i]), s = static_cast<float>(row[half + i]);
      if (of.interleaved) {
        cos[2 * i] = cos[2 * i + 1] = c;
        sin[2 * i] = -s;
        sin[2 * i + 1] = s;
      } else {
        cos[i] = c;
        sin[i] = s;
      }
    }
    for (const Heads<T>* heads : {&of.query, &of.key}) {
      if (of.interleaved) {
        turn_pairs(*heads, token, of.size, rotary, cos, sin, of.write);
      } else {
        turn_halves(*heads, token, of.size, rotary, cos, sin, of.write);
      }
    }
  }
  std::free(cos);
  finish_stores(of.write);
}
