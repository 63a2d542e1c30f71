// What all kernels of a GPU are written with.
//
// Every kernel is right for any number of threads in a block that is a power of two: loops have strides, and threads
// meet at __syncthreads. So the same text is C++ for the tests on a CPU. It includes no header: NVRTC has none at hand.
//
// A parameter is a struct of words of 8 bytes, in the order of the schema in operators.py. Integers are int64 as in
// PyTorch.

#pragma once

#ifndef INFINITY  // as with NVRTC
#define INFINITY __int_as_float(0x7f800000)
#endif

typedef long long Int;

constexpr int MOST_THREADS = 1024;

__device__ inline Int least(Int a, Int b) { return b < a ? b : a; }

struct Least {
    __device__ Int operator()(Int a, Int b) const { return b < a ? b : a; }
};

struct Most {
    __device__ Int operator()(Int a, Int b) const { return a < b ? b : a; }
};

struct Sum {
    __device__ Int operator()(Int a, Int b) const { return a + b; }
};

// Joins what every thread of the block has found; all get the result.
template <typename Value, typename Join>
__device__ Value joined(Value mine, Join join) {
    __shared__ Value all[MOST_THREADS];
    const unsigned own = threadIdx.x;
    all[own] = mine;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (own < half) all[own] = join(all[own], all[own + half]);
        __syncthreads();
    }
    const Value found = all[0];
    __syncthreads();
    return found;
}

// Numbers of 2 bytes as they are in memory.
struct Half {
    unsigned short bits;
};
struct Bfloat {
    unsigned short bits;
};

#ifdef __CUDACC__  // the tests have the same for C++, where every thread is alone
constexpr int LANES = 32;  // threads of a warp

// What the lane has whose number differs from the own one in these bits. All lanes call it.
__device__ inline float of_lane(float mine, int bits) { return __shfl_xor_sync(0xffffffff, mine, bits); }

__device__ inline unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ inline float of_bits(unsigned bits) { return __uint_as_float(bits); }

__device__ inline float widened(Half x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

__device__ inline void narrow(float x, Half& to) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
#endif

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(Bfloat x) { return of_bits((unsigned)x.bits << 16); }

__device__ inline void narrow(float x, float& to) { to = x; }

// To the nearest, of two the even one.
__device__ inline void narrow(float x, Bfloat& to) {
    const unsigned bits = bits_of(x), odd = bits >> 16 & 1;
    to.bits = (unsigned short)(x == x ? (bits + 0x7fff + odd) >> 16 : 0x7fff);
}

// 16 bytes, which are read and written at once: their address is a multiple of 16.
struct alignas(16) Sixteen {
    unsigned words[4];
};

// Eight numbers as they are in memory.
template <typename Number>
struct Eight {
    Sixteen parts[sizeof(Number) / 2];
};

template <typename Number>
__device__ inline Eight<Number> eight_at(const Number* from) {
    return *reinterpret_cast<const Eight<Number>*>(from);
}

__device__ inline float number_of(const Eight<float>& all, int i) { return of_bits(all.parts[i / 4].words[i % 4]); }

template <typename Number>
__device__ inline float number_of(const Eight<Number>& all, int i) {
    return widened(Number{(unsigned short)(all.parts[0].words[i / 2] >> i % 2 * 16)});
}

// PRECISIONS in operators.py.
enum Precision { IN_FP32, IN_FP16, IN_BF16 };

// A source may be compiled for one precision at a time, as the compiler takes a second for each.
#ifdef PRECISION
constexpr int COMPILED_FOR = PRECISION;
#else
constexpr int COMPILED_FOR = -1;  // all
#endif

// Work::of, a template, with the type of the numbers.
template <typename Work, typename Parameters, typename... More>
__device__ inline void by_precision(const Parameters& p, More&... more) {
    if constexpr (COMPILED_FOR == -1 || COMPILED_FOR == IN_FP16) {
        if (COMPILED_FOR == IN_FP16 || p.precision == IN_FP16) return Work::template of<Half>(p, more...);
    }
    if constexpr (COMPILED_FOR == -1 || COMPILED_FOR == IN_BF16) {
        if (COMPILED_FOR == IN_BF16 || p.precision == IN_BF16) return Work::template of<Bfloat>(p, more...);
    }
    if constexpr (COMPILED_FOR == -1 || COMPILED_FOR == IN_FP32) Work::template of<float>(p, more...);
}
