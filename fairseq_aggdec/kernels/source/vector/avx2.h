// AVX2 and FMA, a vector two registers; with AVX-VNNI for 8 bits where the processor has it, see vector.h, which includes this file.

#pragma once

#include <immintrin.h>

namespace aggdec {

struct Floats {
    __m256 a, b;
};
struct Ints {
    __m256i a, b;
};

inline Floats same(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Floats load(const float* p, int count) {
    alignas(32) float copy[LANES] = {};
    std::memcpy(copy, p, sizeof(float) * count);
    return load(copy);
}
inline void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline void store(float* p, Floats x, int count) {
    alignas(32) float copy[LANES];
    store(copy, x);
    std::memcpy(p, copy, sizeof(float) * count);
}
inline Floats operator+(Floats x, Floats y) {
    return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline Floats operator-(Floats x, Floats y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
inline Floats operator*(Floats x, Floats y) {
    return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
inline Floats larger(Floats x, Floats y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
inline Floats smaller(Floats x, Floats y) {
    return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
inline Floats multiply_add(Floats x, Floats y, Floats z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline float total(Floats x) {
    __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
// The totals of four, each added up in the same order whatever stands beside it.
inline __m256 folded(Floats x) { return _mm256_add_ps(x.a, x.b); }
inline void totals(Floats a, Floats b, Floats c, Floats d, float* out) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(folded(a), folded(b)),
                                        _mm256_hadd_ps(folded(c), folded(d)));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}
inline float largest(Floats x) {
    const __m256 s = _mm256_max_ps(x.a, x.b);
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
inline float smallest(Floats x) {
    const __m256 s = _mm256_min_ps(x.a, x.b);
    __m128 h = _mm_min_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_min_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_min_ss(h, _mm_shuffle_ps(h, h, 1)));
}
inline Floats whole(Floats x) {
    constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, NEAREST), _mm256_round_ps(x.b, NEAREST)};
}
inline __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Floats times_power_of_two(Floats x, Floats n) {
    return {_mm256_mul_ps(x.a, power_of_two(n.a)), _mm256_mul_ps(x.b, power_of_two(n.b))};
}
inline __m256 exponent(__m256 x) {
    const __m256i biased = _mm256_srli_epi32(_mm256_castps_si256(x), 23);
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)));
}
inline Floats exponent(Floats x) { return {exponent(x.a), exponent(x.b)}; }
inline unsigned bits(__m256 low, __m256 high) {
    return static_cast<unsigned>(_mm256_movemask_ps(low)) |
           static_cast<unsigned>(_mm256_movemask_ps(high)) << 8;
}
inline unsigned equal(Floats x, Floats y) {
    return bits(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ));
}
inline unsigned at_least(Floats x, Floats y) {
    return bits(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ));
}
inline unsigned not_numbers(Floats x) {
    return bits(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q));
}
inline Ints zeros() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Ints all(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ints load(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void store(int32_t* p, Ints x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline Ints operator+(Ints x, Ints y) {
    return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
inline Ints operator-(Ints x, Ints y) {
    return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
inline Ints operator*(Ints x, Ints y) {
    return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
}
inline Floats floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
// The numbers of two vectors of eight as bytes in their order; packing goes by halves of a register.
inline __m128i in_order(__m256i bytes) {
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
}
inline Ints load_bytes(const int8_t* p) { return load(reinterpret_cast<const int32_t*>(p)); }
inline Floats upper(Ints x) {
    const __m256i mask = _mm256_set1_epi32(-65536);
    return {_mm256_castsi256_ps(_mm256_and_si256(x.a, mask)), _mm256_castsi256_ps(_mm256_and_si256(x.b, mask))};
}
inline Floats lower(Ints x) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16))};
}

#if defined(__AVXVNNI__)

constexpr int LEVEL_BYTES = 1, LEVEL_SHIFT = 0;
inline void store_levels(uint8_t* p, Floats levels, int groups) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(levels.a), _mm256_cvtps_epi32(levels.b));
    const __m128i bytes = in_order(_mm256_packus_epi16(words, words));
    std::memcpy(p, &bytes, 4 * static_cast<size_t>(groups));
}
inline int32_t first_sum(const uint8_t*, int64_t) { return 0; }
using Inputs = __m256i;
inline Inputs four_levels(const uint8_t* p) {
    int32_t together;
    std::memcpy(&together, p, 4);
    return _mm256_set1_epi32(together);
}
inline Ints add_products(Ints sums, Inputs inputs, Ints weights) {
    // Not the intrinsic, as in avx512.h.
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums.a) : "x"(inputs), "x"(weights.a));
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums.b) : "x"(inputs), "x"(weights.b));
    return sums;
}

#else

// AVX2 adds two products of bytes in 16 bits. Two of a level up to 255 do not fit. Two of a level of -128 to 127 do, if
// its magnitude is multiplied and its sign goes to the weights: 2 * 128 * 128 <= 2^15. All bits of a weight are turned
// over in place of its sign, which makes -w - 1 of w and takes any of four units, not one of two: the sums begin with the
// magnitudes of all levels below 0. So four levels are stored as bytes that are -1 below 0, else 0, then their magnitudes.
constexpr int LEVEL_BYTES = 2, LEVEL_SHIFT = 128;
inline void store_levels(uint8_t* p, Floats levels, int groups) {
    const __m256i shift = _mm256_set1_epi32(LEVEL_SHIFT);
    const __m256i a = _mm256_sub_epi32(_mm256_cvtps_epi32(levels.a), shift);
    const __m256i b = _mm256_sub_epi32(_mm256_cvtps_epi32(levels.b), shift);
    const __m256i words = _mm256_packs_epi32(a, b);
    const __m128i bytes = in_order(_mm256_packs_epi16(words, words)), magnitudes = _mm_abs_epi8(bytes);
    const __m128i below = _mm_cmpgt_epi8(_mm_setzero_si128(), bytes);
    __m128i parts[2] = {_mm_unpacklo_epi32(below, magnitudes), _mm_unpackhi_epi32(below, magnitudes)};
    std::memcpy(p, parts, 8 * static_cast<size_t>(groups));
}
inline int32_t first_sum(const uint8_t* p, int64_t groups) {
    __m128i sum = _mm_setzero_si128();
    for (int64_t g = 0; g < groups; ++g) {
        const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * g));
        sum = _mm_add_epi32(sum, _mm_sad_epu8(_mm_and_si128(four, _mm_srli_epi64(four, 32)), _mm_setzero_si128()));
    }
    return _mm_cvtsi128_si32(sum);
}
struct Inputs {
    __m256i below, magnitudes;
};
inline Inputs four_levels(const uint8_t* p) {
    int32_t below, magnitudes;
    std::memcpy(&below, p, 4);
    std::memcpy(&magnitudes, p + 4, 4);
    return {_mm256_set1_epi32(below), _mm256_set1_epi32(magnitudes)};
}
inline __m256i eight_products(__m256i sums, Inputs inputs, __m256i w) {
    // The intrinsics, which the compiler interleaves: a block of assembly for each addition was a third slower (Zen 3, weights in L1).
    const __m256i pairs = _mm256_maddubs_epi16(inputs.magnitudes, _mm256_xor_si256(w, inputs.below));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Ints add_products(Ints sums, Inputs inputs, Ints weights) {
    return {eight_products(sums.a, inputs, weights.a), eight_products(sums.b, inputs, weights.b)};
}

#endif

}  // namespace aggdec
