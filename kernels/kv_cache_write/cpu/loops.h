// The tokens of a cache write, for one instruction set; C is the cache's type.

// Bytes as they are; `streaming` only where both are whole, aligned vectors.
DAY0_INLINE void copy(void* out, const void* in, int64_t bytes, Write write) {
  if (write == Write::cached) {
    std::memcpy(out, in, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t at = 0; at < bytes; at += 64) {
    F32 bits;
    std::memcpy(static_cast<void*>(&bits), static_cast<const char*>(in) + at, 64);
    store(reinterpret_cast<float*>(static_cast<char*>(out) + at), bits, write);
  }
}

template <typename T, typename C>
DAY0_INLINE void write_token(const Entries& of, int64_t token, int64_t block, int64_t row, Write write) {
  for (int64_t head = 0; head < of.heads; ++head) {
    const T* in = static_cast<const T*>(of.in) + token * of.token_stride + head * of.head_stride;
    C* out = static_cast<C*>(of.cache) + block * of.block_stride + row * of.slot_stride + head * of.cache_head_stride;
    if (of.cache_stride != 1) {
      for (int64_t i = 0; i < of.size; ++i) {
        C number;
        if constexpr (std::is_same_v<T, C>) {
          number = in[i];
        } else {
          store(&number, load(in + i, 1) / set(of.scale[head * of.scale_stride]), 1, Write::cached);
        }
        out[i * of.cache_stride] = number;
      }
    } else if constexpr (std::is_same_v<T, C>) {
      copy(out, in, of.size * static_cast<int64_t>(sizeof(T)), write);
    } else {
      const F32 scale = set(of.scale[head * of.scale_stride]);
      for (int64_t i = 0; i < of.size; i += kLanes) {
        store(out + i, load(in + i, of.size - i) / scale, of.size - i, write);
      }
    }
  }
}

// Slots are anywhere, each in a page of its own: its address is looked up while the tokens before it are written.
DAY0_INLINE void look_up(const Entries& of, int64_t block, int64_t row, int64_t element) {
  __builtin_prefetch(static_cast<const char*>(of.cache) + (block * of.block_stride + row * of.slot_stride) * element, 1);
}

template <typename T, typename C>
void tokens(const CacheWrite& of, int64_t begin, int64_t end) {
  constexpr int64_t ahead = 2;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t later = token + ahead < end ? of.slots[(token + ahead) * of.slots_stride] : -1;
    if (later >= 0) {
      look_up(of.key, later / of.block_size, later % of.block_size, sizeof(C));
      look_up(of.value, later / of.block_size, later % of.block_size, sizeof(C));
    }
    const int64_t slot = of.slots[token * of.slots_stride];
    if (slot >= 0) {
      write_token<T, C>(of.key, token, slot / of.block_size, slot % of.block_size, of.write);
      write_token<T, C>(of.value, token, slot / of.block_size, slot % of.block_size, of.write);
    }
  }
  finish_stores(of.write);
}
