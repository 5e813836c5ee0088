// Sixteen float32 numbers, and how they are read from and written to float32, bfloat16, float16 and float8_e4m3fn memory.
//
// Included by multiversion.h once for each instruction set, inside its namespace; no include guard. Sixteen everywhere (one
// AVX-512 register, two AVX2 registers), so that a kernel's loops are the same for all. Arithmetic is IEEE float32 with fused
// multiply-add where the machine has it; conversions round to nearest even, NaN stays NaN.

constexpr int kLanes = 16;

#if DAY0_VECTORS == 512

struct F32 {
  __m512 v;
};
DAY0_INLINE F32 set(float x) { return {_mm512_set1_ps(x)}; }
DAY0_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
DAY0_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
DAY0_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
DAY0_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c
DAY0_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The smaller or larger number; where x is NaN, NaN (as torch.clamp has it for its input).
DAY0_INLINE F32 at_most(F32 x, F32 limit) { return {_mm512_min_ps(limit.v, x.v)}; }
DAY0_INLINE F32 at_least(F32 x, F32 limit) { return {_mm512_max_ps(limit.v, x.v)}; }
DAY0_INLINE F32 magnitude(F32 x) { return {_mm512_abs_ps(x.v)}; }
// where a < b: x, else y (and y where a or b is NaN)
DAY0_INLINE F32 where_less(F32 a, F32 b, F32 x, F32 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// Lanes 0 1 2 3 ... as 1 0 3 2 ...
DAY0_INLINE F32 swap_pairs(F32 x) { return {_mm512_permute_ps(x.v, 0xb1)}; }
// Sixteen pairs in order, as their first and their second numbers.
DAY0_INLINE void split_pairs(F32 a, F32 b, F32& first, F32& second) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  first = {_mm512_permutex2var_ps(a.v, even, b.v)};
  second = {_mm512_permutex2var_ps(a.v, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b.v)};
}
DAY0_INLINE float sum(F32 x) { return _mm512_reduce_add_ps(x.v); }
DAY0_INLINE __m512 sum_of_two(__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }
DAY0_INLINE __m512 sum_of_four(const F32* x) {
  const __m512 a = sum_of_two(x[0].v, x[1].v), b = sum_of_two(x[2].v, x[3].v);
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}
DAY0_INLINE __m512 sum_of_quarters(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
// The sums of sixteen vectors, in order.
DAY0_INLINE F32 sums(const F32* x) {
  return {sum_of_quarters(sum_of_quarters(sum_of_four(x), sum_of_four(x + 4)), sum_of_quarters(sum_of_four(x + 8), sum_of_four(x + 12)))};
}
// x * 2^n for whole n, rounding into the subnormal range, saturating to infinity.
DAY0_INLINE F32 scale_by_power(F32 x, F32 n) { return {_mm512_scalef_ps(x.v, n.v)}; }
DAY0_INLINE F32 nearest(F32 x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// The larger of a, which has no sign, and x's magnitude, as integers: NaN is above infinity, so that a NaN is kept.
DAY0_INLINE F32 max_magnitude(F32 a, F32 x) {
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(_mm512_abs_ps(x.v))))};
}
DAY0_INLINE float highest_magnitude(F32 a) {
  const int bits = _mm512_reduce_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a.v)));
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}
DAY0_INLINE float highest(F32 a) { return _mm512_reduce_max_ps(a.v); }

DAY0_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
DAY0_INLINE F32 load(const BFloat16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
DAY0_INLINE F32 load(const Half* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
// e4m3fn has float16's layout but for three exponent and three fraction bits fewer: shifted into place it is the number * 2^-8.
DAY0_INLINE F32 load(const Float8_e4m3fn* p) {
  const __m256i bits = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i rest = _mm256_and_si256(bits, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_sub_epi16(bits, rest), 8);
  __m256i half = _mm256_or_si256(sign, _mm256_slli_epi16(rest, 7));
  half = _mm256_mask_mov_epi16(half, _mm256_cmpeq_epi16_mask(rest, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7e00));
  return {_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f))};
}

// e4m3fn as bfloat16, exactly: the 128 magnitudes are looked up in four registers.
struct Magnitudes {
  alignas(64) uint16_t bits[128];
  constexpr Magnitudes() : bits() {
    for (int code = 0; code < 127; ++code) {
      const int exponent = code >> 3;
      int fraction = code & 7, power = exponent - 7 + 127;
      if (exponent == 0) {
        power = fraction ? 121 : 0;  // 2^-6
        while (fraction && !(fraction & 8)) {
          fraction <<= 1;
          --power;
        }
        fraction &= 7;
      }
      bits[code] = static_cast<uint16_t>(power << 7 | fraction << 4);
    }
    bits[127] = 0x7fc0;
  }
};
constexpr Magnitudes kMagnitudes;
DAY0_INLINE __m512i bfloat16_of(__m256i e4m3fn) {
  const __m512i codes = _mm512_cvtepu8_epi16(e4m3fn);
  const __m512i* table = reinterpret_cast<const __m512i*>(kMagnitudes.bits);
  const __m512i low = _mm512_permutex2var_epi16(table[0], codes, table[1]);
  const __m512i high = _mm512_permutex2var_epi16(table[2], codes, table[3]);
  const __m512i magnitude = _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40)), high);
  return _mm512_or_si512(magnitude, _mm512_slli_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(0x80)), 8));
}
// Thirty-two at once, in fewer steps than two times sixteen.
DAY0_INLINE void load_two(const Float8_e4m3fn* p, F32& first, F32& second) {
  const __m512i bits = bfloat16_of(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  first = {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits)), 16))};
  second = {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bits, 1)), 16))};
}

DAY0_INLINE void stream_or_store(__m512i bits, void* p, Write write) {
  write == Write::streaming ? _mm512_stream_si512(reinterpret_cast<__m512i*>(p), bits) : _mm512_storeu_si512(p, bits);
}
DAY0_INLINE void stream_or_store(__m256i bits, void* p, Write write) {
  write == Write::streaming ? _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits)
                            : _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
}
DAY0_INLINE void stream_or_store(__m128i bits, void* p, Write write) {
  write == Write::streaming ? _mm_stream_si128(reinterpret_cast<__m128i*>(p), bits)
                            : _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bits);
}
#if defined(DAY0_BF16)
DAY0_INLINE __m256i bfloat16_bits(F32 x) { return (__m256i)_mm512_cvtneps_pbh(x.v); }
#else
DAY0_INLINE __m256i bfloat16_bits(F32 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
  return _mm512_cvtepi32_epi16(rounded);
}
#endif
DAY0_INLINE void store(float* p, F32 x, Write write = Write::cached) { stream_or_store(_mm512_castps_si512(x.v), p, write); }
DAY0_INLINE void store(BFloat16* p, F32 x, Write write = Write::cached) { stream_or_store(bfloat16_bits(x), p, write); }
DAY0_INLINE void store(Half* p, F32 x, Write write = Write::cached) {
  stream_or_store(_mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), p, write);
}
// Saturates at 448; NaN stays. Below 2^-6 (subnormal) the sum with 2^14 leaves the rounded multiple of 2^-9 in the low bits.
DAY0_INLINE __m128i float8_bits(F32 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  const __m512 size = _mm512_min_ps(_mm512_set1_ps(448.0f), _mm512_abs_ps(x.v));
  const __m512i size_bits = _mm512_castps_si512(size);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(size_bits, 20), _mm512_set1_epi32(1));
  __m512i code = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(size_bits, odd), _mm512_set1_epi32(0x7ffff - (120 << 23))), 20);
  const __m512i small = _mm512_castps_si512(_mm512_add_ps(size, _mm512_set1_ps(16384.0f)));
  code = _mm512_mask_sub_epi32(code, _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ), small,
                               _mm512_castps_si512(_mm512_set1_ps(16384.0f)));
  code = _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7f));
  return _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign));
}
DAY0_INLINE void store(Float8_e4m3fn* p, F32 x, Write write = Write::cached) { stream_or_store(float8_bits(x), p, write); }

DAY0_INLINE void finish_stores(Write write) {
  if (write == Write::streaming) {
    _mm_sfence();
  }
}

#elif DAY0_VECTORS == 256

struct F32 {
  __m256 lo, hi;
};
#define DAY0_BOTH(expression_lo, expression_hi) \
  { expression_lo, expression_hi }
DAY0_INLINE F32 set(float x) { return DAY0_BOTH(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
DAY0_INLINE F32 operator+(F32 a, F32 b) { return DAY0_BOTH(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
DAY0_INLINE F32 operator-(F32 a, F32 b) { return DAY0_BOTH(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
DAY0_INLINE F32 operator*(F32 a, F32 b) { return DAY0_BOTH(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
DAY0_INLINE F32 operator/(F32 a, F32 b) { return DAY0_BOTH(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)); }
DAY0_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return DAY0_BOTH(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
DAY0_INLINE F32 at_most(F32 x, F32 limit) { return DAY0_BOTH(_mm256_min_ps(limit.lo, x.lo), _mm256_min_ps(limit.hi, x.hi)); }
DAY0_INLINE F32 at_least(F32 x, F32 limit) { return DAY0_BOTH(_mm256_max_ps(limit.lo, x.lo), _mm256_max_ps(limit.hi, x.hi)); }
DAY0_INLINE __m256 magnitude8(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
DAY0_INLINE F32 magnitude(F32 x) { return DAY0_BOTH(magnitude8(x.lo), magnitude8(x.hi)); }
DAY0_INLINE F32 where_less(F32 a, F32 b, F32 x, F32 y) {
  return DAY0_BOTH(_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                   _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)));
}
DAY0_INLINE F32 swap_pairs(F32 x) { return DAY0_BOTH(_mm256_permute_ps(x.lo, 0xb1), _mm256_permute_ps(x.hi, 0xb1)); }
DAY0_INLINE __m256 ordered(__m256 x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8)); }
DAY0_INLINE void split_pairs(F32 a, F32 b, F32& first, F32& second) {
  first = F32 DAY0_BOTH(ordered(_mm256_shuffle_ps(a.lo, a.hi, 0x88)), ordered(_mm256_shuffle_ps(b.lo, b.hi, 0x88)));
  second = F32 DAY0_BOTH(ordered(_mm256_shuffle_ps(a.lo, a.hi, 0xdd)), ordered(_mm256_shuffle_ps(b.lo, b.hi, 0xdd)));
}
DAY0_INLINE float sum(F32 x) {
  const __m256 eight = _mm256_add_ps(x.lo, x.hi);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
DAY0_INLINE __m256 power8(__m256i n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); }
// In two steps, each within the normal exponents, because 2^n itself may lie beyond them.
DAY0_INLINE __m256 scale8(__m256 x, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return _mm256_mul_ps(_mm256_mul_ps(x, power8(half)), power8(_mm256_sub_epi32(whole, half)));
}
DAY0_INLINE F32 scale_by_power(F32 x, F32 n) { return DAY0_BOTH(scale8(x.lo, n.lo), scale8(x.hi, n.hi)); }
DAY0_INLINE F32 nearest(F32 x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return DAY0_BOTH(_mm256_round_ps(x.lo, mode), _mm256_round_ps(x.hi, mode));
}
DAY0_INLINE __m256 max_magnitude8(__m256 a, __m256 b) {
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(magnitude8(b))));
}
DAY0_INLINE F32 max_magnitude(F32 a, F32 b) { return DAY0_BOTH(max_magnitude8(a.lo, b.lo), max_magnitude8(a.hi, b.hi)); }
DAY0_INLINE float highest_magnitude(F32 a) {
  alignas(32) int32_t bits[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(bits), _mm256_castps_si256(max_magnitude8(a.lo, a.hi)));
  const int32_t most = *std::max_element(bits, bits + 8);
  float result;
  std::memcpy(&result, &most, 4);
  return result;
}
DAY0_INLINE F32 load(const float* p);
DAY0_INLINE F32 sums(const F32* x) {
  alignas(32) float each[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    each[i] = sum(x[i]);
  }
  return load(each);
}
DAY0_INLINE float highest(F32 a) {
  alignas(32) float values[8];
  _mm256_store_ps(values, _mm256_max_ps(a.lo, a.hi));
  return *std::max_element(values, values + 8);
}

DAY0_INLINE F32 load(const float* p) { return DAY0_BOTH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
DAY0_INLINE __m256 load8(const BFloat16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
DAY0_INLINE F32 load(const BFloat16* p) { return DAY0_BOTH(load8(p), load8(p + 8)); }
DAY0_INLINE __m256 load8(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
DAY0_INLINE F32 load(const Half* p) { return DAY0_BOTH(load8(p), load8(p + 8)); }
DAY0_INLINE F32 load(const Float8_e4m3fn* p) {  // as in the AVX-512 set
  const __m256i bits = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i rest = _mm256_and_si256(bits, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_sub_epi16(bits, rest), 8);
  __m256i half = _mm256_or_si256(sign, _mm256_slli_epi16(rest, 7));
  half = _mm256_blendv_epi8(half, _mm256_set1_epi16(0x7e00), _mm256_cmpeq_epi16(rest, _mm256_set1_epi16(0x7f)));
  const __m256 factor = _mm256_set1_ps(256.0f);
  return DAY0_BOTH(_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), factor),
                   _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), factor));
}

DAY0_INLINE void stream_or_store(__m256i bits, void* p, Write write) {
  write == Write::streaming ? _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits)
                            : _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
}
DAY0_INLINE void stream_or_store(__m128i bits, void* p, Write write) {
  write == Write::streaming ? _mm_stream_si128(reinterpret_cast<__m128i*>(p), bits)
                            : _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bits);
}
DAY0_INLINE __m256i bfloat16_lanes(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
// 32-bit lanes of two registers to 16 bits, in order (the pack works within halves of 128 bits).
DAY0_INLINE __m256i pack16(__m256i lo, __m256i hi) { return _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8); }
DAY0_INLINE void store(float* p, F32 x, Write write = Write::cached) {
  stream_or_store(_mm256_castps_si256(x.lo), p, write);
  stream_or_store(_mm256_castps_si256(x.hi), p + 8, write);
}
DAY0_INLINE void store(BFloat16* p, F32 x, Write write = Write::cached) {
  stream_or_store(pack16(bfloat16_lanes(x.lo), bfloat16_lanes(x.hi)), p, write);
}
DAY0_INLINE void store(Half* p, F32 x, Write write = Write::cached) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  stream_or_store(_mm256_cvtps_ph(x.lo, mode), p, write);
  stream_or_store(_mm256_cvtps_ph(x.hi, mode), p + 8, write);
}
DAY0_INLINE __m256i float8_lanes(__m256 x) {
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 24), _mm256_set1_epi32(0x80));
  const __m256 size = _mm256_min_ps(_mm256_set1_ps(448.0f), magnitude8(x));
  const __m256i size_bits = _mm256_castps_si256(size);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(size_bits, 20), _mm256_set1_epi32(1));
  const __m256i normal =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(size_bits, odd), _mm256_set1_epi32(0x7ffff - (120 << 23))), 20);
  const __m256 shift = _mm256_set1_ps(16384.0f);
  const __m256i small = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(size, shift)), _mm256_castps_si256(shift));
  __m256i code = _mm256_blendv_epi8(normal, small, _mm256_castps_si256(_mm256_cmp_ps(size, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ)));
  code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  return _mm256_or_si256(code, sign);
}
DAY0_INLINE void store(Float8_e4m3fn* p, F32 x, Write write = Write::cached) {
  const __m256i words = pack16(float8_lanes(x.lo), float8_lanes(x.hi));
  stream_or_store(_mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)), p, write);
}
DAY0_INLINE void finish_stores(Write write) {
  if (write == Write::streaming) {
    _mm_sfence();
  }
}
#undef DAY0_BOTH

#else

struct F32 {
  float v[kLanes];
};
#define DAY0_EACH(expression)        \
  F32 result;                        \
  for (int i = 0; i < kLanes; ++i) { \
    result.v[i] = expression;        \
  }                                  \
  return result
DAY0_INLINE F32 set(float x) { DAY0_EACH(x); }
DAY0_INLINE F32 operator+(F32 a, F32 b) { DAY0_EACH(a.v[i] + b.v[i]); }
DAY0_INLINE F32 operator-(F32 a, F32 b) { DAY0_EACH(a.v[i] - b.v[i]); }
DAY0_INLINE F32 operator*(F32 a, F32 b) { DAY0_EACH(a.v[i] * b.v[i]); }
DAY0_INLINE F32 operator/(F32 a, F32 b) { DAY0_EACH(a.v[i] / b.v[i]); }
DAY0_INLINE F32 fma(F32 a, F32 b, F32 c) { DAY0_EACH(a.v[i] * b.v[i] + c.v[i]); }
DAY0_INLINE F32 at_most(F32 x, F32 limit) { DAY0_EACH(limit.v[i] < x.v[i] ? limit.v[i] : x.v[i]); }
DAY0_INLINE F32 at_least(F32 x, F32 limit) { DAY0_EACH(limit.v[i] > x.v[i] ? limit.v[i] : x.v[i]); }
DAY0_INLINE F32 magnitude(F32 x) { DAY0_EACH(std::fabs(x.v[i])); }
DAY0_INLINE F32 where_less(F32 a, F32 b, F32 x, F32 y) { DAY0_EACH(a.v[i] < b.v[i] ? x.v[i] : y.v[i]); }
DAY0_INLINE F32 swap_pairs(F32 x) { DAY0_EACH(x.v[i ^ 1]); }
DAY0_INLINE void split_pairs(F32 a, F32 b, F32& first, F32& second) {
  for (int i = 0; i < kLanes / 2; ++i) {
    first.v[i] = a.v[2 * i];
    second.v[i] = a.v[2 * i + 1];
    first.v[i + kLanes / 2] = b.v[2 * i];
    second.v[i + kLanes / 2] = b.v[2 * i + 1];
  }
}
DAY0_INLINE float sum(F32 x) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      x.v[i] += x.v[i + width];
    }
  }
  return x.v[0];
}
DAY0_INLINE F32 scale_by_power(F32 x, F32 n) {
  DAY0_EACH(std::ldexp(x.v[i], n.v[i] == n.v[i] ? static_cast<int>(n.v[i]) : 0));
}
DAY0_INLINE F32 nearest(F32 x) { DAY0_EACH(std::nearbyint(x.v[i])); }
DAY0_INLINE F32 max_magnitude(F32 a, F32 b) {
  DAY0_EACH(std::fabs(b.v[i]) > a.v[i] || b.v[i] != b.v[i] ? std::fabs(b.v[i]) : a.v[i]);
}
DAY0_INLINE float highest_magnitude(F32 a) {
  float most = 0.0f;
  for (int i = 0; i < kLanes; ++i) {
    const float size = std::fabs(a.v[i]);
    most = size > most || size != size ? size : most;
  }
  return most;
}
DAY0_INLINE F32 sums(const F32* x) { DAY0_EACH(sum(x[i])); }
DAY0_INLINE float highest(F32 a) { return *std::max_element(a.v, a.v + kLanes); }
template <typename T>
DAY0_INLINE F32 load(const T* p) {
  DAY0_EACH(static_cast<float>(p[i]));
}
DAY0_INLINE void store(float* p, F32 x, Write = Write::cached) { std::memcpy(p, x.v, sizeof(x.v)); }
template <typename T>
DAY0_INLINE void store(T* p, F32 x, Write = Write::cached) {
  for (int i = 0; i < kLanes; ++i) {
    p[i] = static_cast<T>(x.v[i]);
  }
}
template <>
DAY0_INLINE void store(Float8_e4m3fn* p, F32 x, Write) {  // torch's conversion does not saturate
  for (int i = 0; i < kLanes; ++i) {
    const float limited = x.v[i] > 448.0f ? 448.0f : x.v[i] < -448.0f ? -448.0f : x.v[i];
    p[i] = static_cast<Float8_e4m3fn>(limited);
  }
}
DAY0_INLINE void finish_stores(Write) {}
#undef DAY0_EACH

#endif

template <typename T>
DAY0_INLINE void load_two(const T* p, F32& first, F32& second) {
  first = load(p);
  second = load(p + kLanes);
}

// The first `count` of sixteen; the others are zero, and nothing past the end is read or written.
template <typename T>
DAY0_INLINE F32 load(const T* p, int64_t count) {
  if (count >= kLanes) {
    return load(p);
  }
  T buffer[kLanes];
  std::memset(static_cast<void*>(buffer), 0, sizeof(buffer));
  if (count > 0) {
    std::memcpy(static_cast<void*>(buffer), p, static_cast<size_t>(count) * sizeof(T));
  }
  return load(buffer);
}
template <typename T>
DAY0_INLINE void store(T* p, F32 x, int64_t count, Write write) {
  if (count >= kLanes) {
    store(p, x, write);
    return;
  }
  T buffer[kLanes];
  store(buffer, x);
  std::memcpy(static_cast<void*>(p), buffer, static_cast<size_t>(count) * sizeof(T));
}

// Operands of a dot product: where the machine multiplies pairs of bfloat16 (exactly, added in float32), thirty-two at once as they are.
#if defined(DAY0_BF16)
template <typename T>
constexpr bool kDot = std::is_same_v<T, BFloat16>;
typedef __m512i Pairs;
DAY0_INLINE Pairs load_pairs(const BFloat16* p, int64_t count) {
  return count >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((1u << count) - 1, p);
}
DAY0_INLINE Pairs load_pairs(const Float8_e4m3fn* p, int64_t count) {
  const __m256i bytes = count >= 32 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)) : _mm256_maskz_loadu_epi8((1u << count) - 1, p);
  return bfloat16_of(bytes);
}
DAY0_INLINE F32 multiply(Pairs a, Pairs b, F32 sum) { return {_mm512_dpbf16_ps(sum.v, (__m512bh)a, (__m512bh)b)}; }
#else
template <typename T>
constexpr bool kDot = false;
#endif
DAY0_INLINE F32 multiply(F32 a, F32 b, F32 sum) { return fma(a, b, sum); }
template <typename T>
constexpr int64_t kStep = kDot<T> ? 32 : kLanes;

// Up to kStep<T> numbers of an operand of type W, of a product in T.
template <typename T, typename W>
DAY0_INLINE auto operand(const W* p, int64_t count) {
#if defined(DAY0_BF16)
  if constexpr (kDot<T>) {
    return load_pairs(p, count);
  } else
#endif
    return load(p, count);
}

// e^x to about one unit in the last place: x = n ln 2 + r, |r| <= ln(2)/2, and a polynomial in r (Cephes expf, Moshier 1989).
DAY0_INLINE F32 exp(F32 x) {
  const F32 limited = at_least(at_most(x, set(89.0f)), set(-104.0f));
  const F32 n = nearest(limited * set(1.44269504088896341f));
  F32 r = fma(n, set(-0.693359375f), limited);
  r = fma(n, set(2.12194440e-4f), r);
  F32 p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  return scale_by_power(fma(p, r * r, r + set(1.0f)), n);
}

// x sigmoid(a x) and, with x = 1, the sigmoid: one division.
DAY0_INLINE F32 over_one_plus_exp(F32 x, F32 exponent) { return x / (set(1.0f) + exp(exponent)); }
DAY0_INLINE F32 sigmoid(F32 x) { return over_one_plus_exp(set(1.0f), set(0.0f) - x); }

// 1 - erf(x) for x >= 0, relative error below 1.2e-7 (Numerical Recipes, 2nd edition, section 6.2, erfcc).
DAY0_INLINE F32 erfc_of_positive(F32 x) {
  const F32 t = set(1.0f) / fma(x, set(0.5f), set(1.0f));
  F32 p = set(0.17087277f);
  p = fma(p, t, set(-0.82215223f));
  p = fma(p, t, set(1.48851587f));
  p = fma(p, t, set(-1.13520398f));
  p = fma(p, t, set(0.27886807f));
  p = fma(p, t, set(-0.18628806f));
  p = fma(p, t, set(0.09678418f));
  p = fma(p, t, set(0.37409196f));
  p = fma(p, t, set(1.00002368f));
  p = fma(p, t, set(-1.26551223f));
  return t * exp(fma(x, set(0.0f) - x, p));
}

// To about two units in the last place: a polynomial near zero (Cephes tanhf, Moshier 1989), beyond it by the sigmoid.
DAY0_INLINE F32 tanh(F32 x) {
  const F32 z = x * x;
  F32 p = set(-5.70498872745e-3f);
  p = fma(p, z, set(2.06390887954e-2f));
  p = fma(p, z, set(-5.37397155531e-2f));
  p = fma(p, z, set(1.33314422036e-1f));
  p = fma(p, z, set(-3.33332819422e-1f));
  const F32 near_zero = fma(p * z, x, x);
  return where_less(magnitude(x), set(0.625f), near_zero, fma(sigmoid(x + x), set(2.0f), set(-1.0f)));
}
