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
