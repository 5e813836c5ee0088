// Routing of a range of tokens, for one instruction set.
//
// Scores are ordered as integers: floats' bits, those of negative numbers inverted, order as the floats do, and NaN is made
// the largest. The least integer is no float's, and stands for nothing.

constexpr int32_t kNothing = std::numeric_limits<int32_t>::min();
constexpr int32_t kNan = std::numeric_limits<int32_t>::max();

inline int32_t order_of(float score) {
  int32_t bits;
  std::memcpy(&bits, &score, 4);
  return (bits & 0x7fffffff) > 0x7f800000 ? kNan : bits ^ ((bits >> 31) & 0x7fffffff);
}

inline float score_of(int32_t order) {
  if (order == kNan) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const int32_t bits = order ^ ((order >> 31) & 0x7fffffff);
  float score;
  std::memcpy(&score, &bits, 4);
  return score;
}

// Which of sixteen are above the limit, one bit each.
inline uint32_t above(const int32_t* order, int32_t limit) {
#if DAY0_VECTORS == 512
  return _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(order), _mm512_set1_epi32(limit));
#elif DAY0_VECTORS == 256
  const __m256i least = _mm256_set1_epi32(limit);
  const __m256i lo = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(order)), least);
  const __m256i hi = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(order + 8)), least);
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lo)) | _mm256_movemask_ps(_mm256_castsi256_ps(hi)) << 8);
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) {
    bits |= static_cast<uint32_t>(order[i] > limit) << i;
  }
  return bits;
#endif
}

// The best k seen, best first; of equals the one that came first stays before.
struct Best {
  int32_t* order;
  int32_t* index;
  int64_t k, count;

  int32_t limit() const { return count < k ? kNothing : order[k - 1]; }
  void insert(int32_t value, int32_t at) {
    int64_t place = count < k ? count++ : k - 1;
    for (; place > 0 && order[place - 1] < value; --place) {
      order[place] = order[place - 1];
      index[place] = index[place - 1];
    }
    order[place] = value;
    index[place] = at;
  }
  void scan(const int32_t* all, int64_t begin, int64_t end) {
    for (int64_t base = begin; base < end; base += kLanes) {
      uint32_t candidates = above(all + base, limit());
      if (end - base < kLanes) {
        candidates &= (1u << (end - base)) - 1;
      }
      for (; candidates; candidates &= candidates - 1) {
        const int64_t at = base + __builtin_ctz(candidates);
        if (all[at] > limit()) {
          insert(all[at], static_cast<int32_t>(at));
        }
      }
    }
  }
};

struct BestTwo {
  int32_t best, next;

  void take(int32_t value) {
    next = std::max(next, std::min(best, value));
    best = std::max(best, value);
  }
};

// What a group counts as: its best score, or the sum of its best two.
inline int32_t group_order(const int32_t* order, int64_t size, bool pair) {
  int32_t first[kLanes], second[kLanes];
  std::fill(first, first + kLanes, kNothing);
  std::fill(second, second + kLanes, kNothing);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int32_t value = order[i + lane];
      second[lane] = std::max(second[lane], std::min(first[lane], value));
      first[lane] = std::max(first[lane], value);
    }
  }
  BestTwo two{kNothing, kNothing};
  for (; i < size; ++i) {
    two.take(order[i]);
  }
  for (int lane = 0; size >= kLanes && lane < kLanes; ++lane) {
    two.take(first[lane]);
    two.next = std::max(two.next, second[lane]);
  }
  return pair && two.next != kNothing ? order_of(score_of(two.best) + score_of(two.next)) : two.best;
}

// The root of log(1 + e^x), in the form that neither overflows nor loses the digits of small ones; a NaN stays one.
inline float sqrt_softplus(float x) {
  return std::sqrt((x > 0.0f ? x : 0.0f) + std::log1p(std::exp(-std::fabs(x))));
}

// Scores of a row into `scores`, which is as long as whole vectors.
template <typename T>
DAY0_INLINE void score(const T* logits, int64_t experts, Scoring by, float* scores) {
  if (by == Scoring::sqrtsoftplus) {
    for (int64_t i = 0; i < experts; ++i) {
      scores[i] = sqrt_softplus(static_cast<float>(logits[i]));
    }
    return;
  }
  if (by == Scoring::sigmoid) {
    for (int64_t i = 0; i < experts; i += kLanes) {
      store(scores + i, sigmoid(load(logits + i, experts - i)));
    }
    return;
  }
  F32 most = set(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < experts; i += kLanes) {
    store(scores + i, load(logits + i, experts - i));
    for (int64_t past = experts; past < i + kLanes; ++past) {
      scores[past] = -std::numeric_limits<float>::infinity();
    }
    most = at_least(load(scores + i), most);
  }
  // A NaN makes the sum one, and so each score of the row.
  const F32 largest = set(highest(most));
  F32 total = set(0.0f);
  for (int64_t i = 0; i < experts; i += kLanes) {
    const F32 e = exp(load(scores + i) - largest);
    store(scores + i, e);
    total = total + e;
  }
  const F32 divisor = set(sum(total));
  for (int64_t i = 0; i < experts; i += kLanes) {
    store(scores + i, load(scores + i) / divisor);
  }
}

template <typename T>
void tokens(const Router<T>& of, int64_t begin, int64_t end) {
  const int64_t padded = (of.experts + kLanes - 1) / kLanes * kLanes + kLanes, size = of.experts / of.groups;
  float* const scores = static_cast<float*>(std::malloc(static_cast<size_t>(2 * padded + 2 * of.k + 3 * of.groups) * 4));
  int32_t* const order = reinterpret_cast<int32_t*>(scores) + padded;
  Best best{order + padded, order + padded + of.k, of.k, 0};
  int32_t* const groups = best.index + of.k;
  for (int64_t token = begin; token < end; ++token) {
    score(of.logits + token * of.stride, of.experts, of.scoring, scores);
    for (int64_t expert = 0; expert < of.experts; ++expert) {
      order[expert] = order_of(of.bias ? scores[expert] + of.bias[expert] : scores[expert]);
    }
    best.count = 0;
    if (of.groups == 1) {
      best.scan(order, 0, of.experts);
    } else {
      for (int64_t group = 0; group < of.groups; ++group) {
        groups[group] = group_order(order + group * size, size, of.bias != nullptr);
      }
      Best kept{groups + of.groups, groups + 2 * of.groups, of.groups_kept, 0};
      for (int64_t group = 0; group < of.groups; ++group) {
        if (groups[group] > kept.limit()) {
          kept.insert(groups[group], static_cast<int32_t>(group));
        }
      }
      std::sort(kept.index, kept.index + kept.count);
      for (int64_t i = 0; i < kept.count; ++i) {
        best.scan(order, kept.index[i] * size, (kept.index[i] + 1) * size);
      }
    }
    float* weights = of.weights + token * of.k;
    float total = 0.0f;
    for (int64_t i = 0; i < of.k; ++i) {
      of.ids[token * of.k + i] = best.index[i];
      weights[i] = scores[best.index[i]];
      total += weights[i];
    }
    for (int64_t i = 0; i < of.k; ++i) {
      weights[i] = (of.renormalise ? weights[i] / total : weights[i]) * of.scale;
    }
  }
  std::free(scores);
}
