// The rows of residual + RMSNorm, for one instruction set: a row is read once, its sum kept in float32 in the first-level cache until the
// scale is known.

template <typename T>
DAY0_INLINE F32 add(const Rows<T>& of, const T* x, const T* residual, T* total, float* sum, int64_t at, int64_t count, F32 squares) {
  const F32 value = load(x + at, count) + load(residual + at, count);
  store(sum + at, value);
  store(total + at, value, count, of.write);
  return fma(value, value, squares);
}

template <typename T>
void rows(const Rows<T>& of, int64_t begin, int64_t end) {
  const int64_t hidden = of.hidden, whole = hidden / kLanes * kLanes, pairs = hidden / (2 * kLanes) * (2 * kLanes);
  float* const sum = static_cast<float*>(std::malloc(static_cast<size_t>(whole + kLanes) * sizeof(float)));
  for (int64_t row = begin; row < end; ++row) {
    const T* x = of.x + row * of.x_stride;
    const T* residual = of.residual + row * of.residual_stride;
    T* total = of.total + row * hidden;
    T* normed = of.normed + row * hidden;
    F32 first = set(0.0f), second = set(0.0f);
    int64_t at = 0;
    for (; at < pairs; at += 2 * kLanes) {
      first = add(of, x, residual, total, sum, at, kLanes, first);
      second = add(of, x, residual, total, sum, at + kLanes, kLanes, second);
    }
    for (; at < hidden; at += kLanes) {
      second = add(of, x, residual, total, sum, at, hidden - at, second);
    }
    alignas(64) float each[kLanes];
    store(each, first + second);
    double squares = 0;
    for (float lane : each) {
      squares += lane;
    }
    const F32 scale = set(static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(hidden) + of.eps)));
    for (at = 0; at < whole; at += kLanes) {
      store(normed + at, load(sum + at) * scale * load(of.weight + at), of.write);
    }
    if (at < hidden) {
      store(normed + at, load(sum + at) * scale * load(of.weight + at, hidden - at), hidden - at, of.write);
    }
  }
  std::free(sum);
  finish_stores(of.write);
}
