// The rows of a gated activation, for one instruction set.

template <Activation A>
DAY0_INLINE F32 activated(F32 gate, float alpha) {
  if constexpr (A == Activation::silu) {
    return over_one_plus_exp(gate, set(-alpha) * gate);
  } else if constexpr (A == Activation::gelu_tanh) {
    // (1 + tanh u) / 2 = sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3)
    const F32 cubic = fma(gate * gate * gate, set(0.044715f), gate);
    return over_one_plus_exp(gate, cubic * set(-1.5957691216057308f));
  } else {
    // x (1 + erf(x / sqrt 2)) / 2 = x (1 - c / 2) above zero and x c / 2 below it, with c = erfc(|x| / sqrt 2)
    const F32 half = set(0.5f) * erfc_of_positive(magnitude(gate) * set(0.70710678118654752f));
    return gate * where_less(gate, set(0.0f), half, set(1.0f) - half);
  }
}

// Plain: without limit, alpha 1, beta 0.
template <Activation A, bool plain, typename T>
DAY0_INLINE F32 gated(const Gated<T>& of, F32 gate, F32 up) {
  if constexpr (plain) {
    return activated<A>(gate, 1.0f) * up;
  } else {
    gate = at_most(gate, set(of.limit));
    up = at_least(at_most(up, set(of.limit)), set(-of.limit));
    return activated<A>(gate, of.alpha) * (up + set(of.beta));
  }
}

template <typename T, Activation A, bool interleaved, bool plain>
void rows(const Gated<T>& of, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* in = of.in + row * of.in_stride;
    T* out = of.out + row * of.size;
    int64_t i = 0;
    for (; !interleaved && i + kLanes <= of.size; i += kLanes) {
      store(out + i, gated<A, plain>(of, load(in + i), load(in + of.size + i)), of.write);
    }
    for (; i < of.size; i += kLanes) {
      const int64_t count = of.size - i;
      F32 gate, up;
      if constexpr (interleaved) {
        split_pairs(load(in + 2 * i, 2 * count), load(in + 2 * i + kLanes, count <= kLanes / 2 ? 0 : 2 * count - kLanes), gate, up);
      } else {
        gate = load(in + i, count);
        up = load(in + of.size + i, count);
      }
      store(out + i, gated<A, plain>(of, gate, up), count, of.write);
    }
  }
  finish_stores(of.write);
}
