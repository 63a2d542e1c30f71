// AVX-512 with VNNI, a vector a register, see vector.h, which includes this file.

#pragma once

#include <immintrin.h>

namespace aggdec {

struct Floats {
    __m512 v;
};
struct Ints {
    __m512i v;
};

inline __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1); }
inline Floats same(float x) { return {_mm512_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Floats load(const float* p, int count) { return {_mm512_maskz_loadu_ps(first(count), p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline void store(float* p, Floats a, int count) { _mm512_mask_storeu_ps(p, first(count), a.v); }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline float total(Floats a) { return _mm512_reduce_add_ps(a.v); }
// The totals of four, each added up in the same order whatever stands beside it.
inline __m256 folded(Floats a) {
    return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
inline void totals(Floats a, Floats b, Floats c, Floats d, float* out) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(folded(a), folded(b)),
                                        _mm256_hadd_ps(folded(c), folded(d)));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}
inline float largest(Floats a) { return _mm512_reduce_max_ps(a.v); }
inline float smallest(Floats a) { return _mm512_reduce_min_ps(a.v); }
inline Floats whole(Floats a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats times_power_of_two(Floats a, Floats n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline Floats exponent(Floats a) { return {_mm512_getexp_ps(a.v)}; }
// A bit for each of 16 numbers: those that are equal, at least as large, NaN.
inline unsigned equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
inline unsigned at_least(Floats a, Floats b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}
inline unsigned not_numbers(Floats a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
inline Ints zeros() { return {_mm512_setzero_si512()}; }
inline Ints all(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Ints load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(int32_t* p, Ints a) { _mm512_storeu_si512(p, a.v); }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Ints operator*(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline Floats floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
constexpr int LEVEL_BYTES = 1, LEVEL_SHIFT = 0;
inline void store_levels(uint8_t* p, Floats levels, int groups) {
    _mm512_mask_cvtusepi32_storeu_epi8(p, first(4 * groups), _mm512_cvtps_epi32(levels.v));
}
inline int32_t first_sum(const uint8_t*, int64_t) { return 0; }
using Inputs = Ints;
inline Inputs four_levels(const uint8_t* p) {
    int32_t together;
    std::memcpy(&together, p, 4);
    return all(together);
}
inline Ints add_products(Ints sums, Inputs inputs, Ints weights) {
    // Not the intrinsic: GCC 12 copies every sum around it, and runs out of registers.
    asm("vpdpbusd %2, %1, %0" : "+v"(sums.v) : "v"(inputs.v), "v"(weights.v));
    return sums;
}
inline Ints load_bytes(const int8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Floats upper(Ints a) {
    return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(-65536)))};
}
inline Floats lower(Ints a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }

}  // namespace aggdec
