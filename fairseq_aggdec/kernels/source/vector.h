// Sixteen numbers at a time, in the instructions that this file is compiled for: see vector/, or whatever the
// compiler makes of plain loops. Only what kernels.cpp needs.
//
// Nothing here may round differently from place to place: sums and products are written out (the compiler is told not
// to fuse them by itself), so that a number depends on its operands only, never on the loop that it stands in.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace aggdec {

constexpr int LANES = 16;

// Every file of vector/ has the types Floats and Ints of that many numbers, the same functions of them, and for 8 bits:
//   store_levels(p, levels, groups)       levels 0 to 255 less LEVEL_SHIFT, LEVEL_BYTES each, `groups` times four of them
//   first_sum(p, groups)                  initial value of a sum over `groups` times four levels
//   four_levels(p)                        four levels that lie side by side, for each of 16 outputs
//   load_bytes(p)                         four weights of each of 16 outputs
//   add_products(sums, inputs, weights)   adds to each of 16 outputs the products of four levels with its weights
// For bfloat16:
//   upper(bits), lower(bits)              the numbers in the upper and the lower halves of 16 words
// For logarithms:
//   exponent(x)                           n of 2^n <= x < 2^(n + 1), for x > 0 from 2^-126 on

}  // namespace aggdec

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define AGGDEC_AVX512
#include "vector/avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#define AGGDEC_AVX2
#include "vector/avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#define AGGDEC_NEON
#include "vector/neon.h"
#else
#include "vector/plain.h"
#endif

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace aggdec {

#if defined(__x86_64__)
inline const bool IS_AMD = (__builtin_cpu_init(), __builtin_cpu_is("amd") != 0);
#else
constexpr bool IS_AMD = false;
#endif

// While such an object exists, its thread takes numbers below 2^-126 for 0, as tiles of bfloat16 do by themselves.
class Flushing {
    uint64_t before_ = 0;

#if defined(__x86_64__)
    static uint64_t get() { return _mm_getcsr(); }
    static void set(uint64_t state) { _mm_setcsr(static_cast<unsigned>(state)); }
    static constexpr uint64_t BITS = 0x8040;  // FTZ, DAZ
#elif defined(__aarch64__)
    static uint64_t get() {
        uint64_t state;
        asm volatile("mrs %0, fpcr" : "=r"(state));
        return state;
    }
    static void set(uint64_t state) { asm volatile("msr fpcr, %0" ::"r"(state)); }
    static constexpr uint64_t BITS = 1u << 24;  // FZ
#else
    static uint64_t get() { return 0; }
    static void set(uint64_t) {}
    static constexpr uint64_t BITS = 0;
#endif

public:
    Flushing() : before_(get()) { set(before_ | BITS); }
    ~Flushing() { set(before_); }
    Flushing(const Flushing&) = delete;
    Flushing& operator=(const Flushing&) = delete;
};

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

// The natural logarithm of x >= 2^-126, in fp32 (a polynomial after Cephes, 1 unit in the last place); of NaN NaN.
inline Floats logarithm(Floats x) {
    const Floats n = exponent(x * same(1.41421356f));
    const Floats z = times_power_of_two(x, same(0.0f) - n) - same(1.0f), square = z * z;
    Floats y = same(7.0376836292e-2f);
    for (float c : {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
                    2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f})
        y = multiply_add(y, z, same(c));
    y = multiply_add(n, same(-2.12194440e-4f), y * z * square);
    return multiply_add(n, same(0.693359375f), z + multiply_add(same(-0.5f), square, y));
}

}  // namespace aggdec
