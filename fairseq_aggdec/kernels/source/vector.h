// Sixteen numbers at a time, in the instructions that this file is compiled for: AVX-512 with VNNI, AVX2, or whatever
// the compiler makes of plain loops. Only what kernels.cpp needs.
//
// Nothing here may round differently from place to place: sums and products are written out (the compiler is told not
// to fuse them by itself), so that a number depends on its operands only, never on the loop that it stands in.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define AGGDEC_AVX512
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__)
#define AGGDEC_AVX2
#include <immintrin.h>
#endif

namespace aggdec {

constexpr int LANES = 16;

#if defined(AGGDEC_AVX512)

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
// A bit for each of 16 numbers: those that are equal, at least as large, NaN.
inline unsigned equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
inline unsigned at_least(Floats a, Floats b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}
inline unsigned not_numbers(Floats a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
inline Ints zeros() { return {_mm512_setzero_si512()}; }
inline Ints all(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Ints load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Ints operator*(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline Floats floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
// Levels 0 to 255, `groups` times four of them, as add_products reads them: less LEVEL_SHIFT, in LEVEL_BYTES each.
constexpr int LEVEL_BYTES = 1, LEVEL_SHIFT = 0;
inline void store_levels(uint8_t* p, Floats levels, int groups) {
    _mm512_mask_cvtusepi32_storeu_epi8(p, first(4 * groups), _mm512_cvtps_epi32(levels.v));
}
// Four levels that lie side by side, for each of 16 outputs.
using Inputs = Ints;
inline Inputs four_levels(const uint8_t* p) {
    int32_t together;
    std::memcpy(&together, p, 4);
    return all(together);
}
// Adds to each of 16 outputs the products of four levels with its weights.
inline Ints add_products(Ints sums, Inputs inputs, Ints weights) {
    // Not the intrinsic: GCC 12 copies every sum around it, and runs out of registers.
    asm("vpdpbusd %2, %1, %0" : "+v"(sums.v) : "v"(inputs.v), "v"(weights.v));
    return sums;
}
inline Ints load_bytes(const int8_t* p) { return {_mm512_loadu_si512(p)}; }

#elif defined(AGGDEC_AVX2)

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
// AVX2 adds two products of bytes in 16 bits. Two of a level up to 255 do not fit. Two of a level of -128 to 127 do, if
// its magnitude is multiplied and its sign goes to the weights: 2 * 128 * 127 < 2^15. So four levels are stored as their
// signed bytes, then their magnitudes.
constexpr int LEVEL_BYTES = 2, LEVEL_SHIFT = 128;
inline void store_levels(uint8_t* p, Floats levels, int groups) {
    const __m256i shift = _mm256_set1_epi32(LEVEL_SHIFT);
    const __m256i a = _mm256_sub_epi32(_mm256_cvtps_epi32(levels.a), shift);
    const __m256i b = _mm256_sub_epi32(_mm256_cvtps_epi32(levels.b), shift);
    // Packing goes by halves of a register: groups 0, 2 | 1, 3 then.
    const __m256i words = _mm256_packs_epi32(a, b);
    const __m256i mixed = _mm256_packs_epi16(words, words);
    const __m128i low = _mm256_castsi256_si128(mixed), high = _mm256_extracti128_si256(mixed, 1);
    const __m128i bytes = _mm_unpacklo_epi32(low, high), magnitudes = _mm_abs_epi8(bytes);
    __m128i parts[2] = {_mm_unpacklo_epi32(bytes, magnitudes), _mm_unpackhi_epi32(bytes, magnitudes)};
    std::memcpy(p, parts, 8 * static_cast<size_t>(groups));
}
struct Inputs {
    __m256i levels, magnitudes;
};
inline Inputs four_levels(const uint8_t* p) {
    int32_t levels, magnitudes;
    std::memcpy(&levels, p, 4);
    std::memcpy(&magnitudes, p + 4, 4);
    return {_mm256_set1_epi32(levels), _mm256_set1_epi32(magnitudes)};
}
inline __m256i eight_products(__m256i sums, Inputs inputs, __m256i w) {
    // Not the intrinsics, as above.
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i pairs;
    asm("vpsignb %3, %2, %1\n\tvpmaddubsw %1, %4, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
        : "+x"(sums), "=&x"(pairs)
        : "x"(w), "x"(inputs.levels), "x"(inputs.magnitudes), "xm"(ones));
    return sums;
}
inline Ints add_products(Ints sums, Inputs inputs, Ints weights) {
    return {eight_products(sums.a, inputs, weights.a), eight_products(sums.b, inputs, weights.b)};
}
inline Ints load_bytes(const int8_t* p) { return load(reinterpret_cast<const int32_t*>(p)); }

#else

struct Floats {
    float v[LANES];
};
struct Ints {
    int32_t v[LANES];
};

template <class Out, class F>
inline Out each(F f) {
    Out out;
    for (int i = 0; i < LANES; ++i) out.v[i] = f(i);
    return out;
}
inline Floats same(float x) {
    return each<Floats>([&](int) { return x; });
}
inline Floats load(const float* p) {
    return each<Floats>([&](int i) { return p[i]; });
}
inline Floats load(const float* p, int count) {
    return each<Floats>([&](int i) { return i < count ? p[i] : 0.0f; });
}
inline void store(float* p, Floats a) { std::memcpy(p, a.v, sizeof a.v); }
inline void store(float* p, Floats a, int count) { std::memcpy(p, a.v, sizeof(float) * count); }
inline Floats operator+(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Floats operator-(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Floats operator*(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Floats larger(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats smaller(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
inline float total(Floats a) {
    float sum = 0;
    for (float x : a.v) sum += x;
    return sum;
}
inline void totals(Floats a, Floats b, Floats c, Floats d, float* out) {
    out[0] = total(a), out[1] = total(b), out[2] = total(c), out[3] = total(d);
}
inline float largest(Floats a) {
    float most = a.v[0];
    for (float x : a.v) most = x > most ? x : most;
    return most;
}
inline float smallest(Floats a) {
    float least = a.v[0];
    for (float x : a.v) least = x < least ? x : least;
    return least;
}
inline Floats whole(Floats a) {
    return each<Floats>([&](int i) { return std::nearbyint(a.v[i]); });
}
inline Floats times_power_of_two(Floats a, Floats n) {
    return each<Floats>([&](int i) { return std::ldexp(a.v[i], static_cast<int>(n.v[i])); });
}
inline unsigned equal(Floats a, Floats b) {
    unsigned found = 0;
    for (int i = 0; i < LANES; ++i) found |= static_cast<unsigned>(a.v[i] == b.v[i]) << i;
    return found;
}
inline unsigned at_least(Floats a, Floats b) {
    unsigned found = 0;
    for (int i = 0; i < LANES; ++i) found |= static_cast<unsigned>(a.v[i] >= b.v[i]) << i;
    return found;
}
inline unsigned not_numbers(Floats a) { return 0xFFFFu & ~equal(a, a); }
inline Ints zeros() { return {}; }
inline Ints all(int32_t x) {
    return each<Ints>([&](int) { return x; });
}
inline Ints load(const int32_t* p) {
    return each<Ints>([&](int i) { return p[i]; });
}
inline Ints operator+(Ints a, Ints b) {
    return each<Ints>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Ints operator-(Ints a, Ints b) {
    return each<Ints>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Ints operator*(Ints a, Ints b) {
    return each<Ints>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Floats floats(Ints a) {
    return each<Floats>([&](int i) { return static_cast<float>(a.v[i]); });
}
constexpr int LEVEL_BYTES = 1, LEVEL_SHIFT = 0;
inline void store_levels(uint8_t* p, Floats levels, int groups) {
    for (int i = 0; i < 4 * groups; ++i) p[i] = static_cast<uint8_t>(std::nearbyint(levels.v[i]));
}
using Inputs = const uint8_t*;
inline Inputs four_levels(const uint8_t* p) { return p; }
inline Ints add_products(Ints sums, Inputs x, Ints weights) {
    int8_t w[4 * LANES];
    std::memcpy(w, weights.v, sizeof w);
    return each<Ints>([&](int i) {
        const int8_t* of = w + 4 * i;
        return sums.v[i] + x[0] * of[0] + x[1] * of[1] + x[2] * of[2] + x[3] * of[3];
    });
}
inline Ints load_bytes(const int8_t* p) {
    Ints out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
}

#endif

// e^x for x <= 0, in fp32 (a polynomial after Cephes, 2 units in the last place); below -87 as there, of NaN NaN.
inline Floats exponential(Floats x) {
    x = larger(same(-87.0f), x);
    const Floats n = whole(x * same(1.44269504f));
    x = multiply_add(n, same(-0.693359375f), x);
    x = multiply_add(n, same(2.12194440e-4f), x);
    Floats y = same(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                    5.0000001201e-1f})
        y = multiply_add(y, x, same(c));
    y = multiply_add(y * x, x, x) + same(1.0f);
    return times_power_of_two(y, n);
}

}  // namespace aggdec
