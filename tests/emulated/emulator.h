// What CUDA has for the sources of the kernels, on one thread of a CPU, see emulator.cpp. A source is compiled behind it.

#pragma once

#include <math.h>
#include <string.h>

#define __global__
#define __device__
#define __shared__ __attribute__((section("shared_memory"))) static
#define __launch_bounds__(...)

struct Place {
    unsigned x;
};
extern Place threadIdx, blockIdx, blockDim;

namespace gpu {

// Pages of a tensor.
struct Pages {
    unsigned char* begin;
    long long bytes, before;  // before: what of mprotect is allowed before the wait
    const char* name;
};

// A launch, see emulator.py.
struct Launch {
    const void* parameters;
    long long blocks, threads, order, seed;
    long long waits;       // who waits for earlier kernels
    const char* file;      // a barrier that is left out: its file and line
    long long line;
    const Pages* pages;
    long long count;
};

const char* run(const Launch& launch, void (*work)(const void*));
[[noreturn]] void fail(const char* what);
bool meet_block(bool mine, const char* file, int line);
void meet_warp(const char* file, int line);
int shuffle(unsigned mask, int mine, int bits, int line);

// What the sources say in PTX; emulator.py makes a call of each.
void ptx(int line, const char* text, const char*);
void ptx(int line, const char* text, float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1);

inline void ptx(int, const char* text, float& wide, unsigned short bits) {
    if (strcmp(text, "cvt.f32.f16 %0, %1;") != 0) fail(text);
    _Float16 x;
    memcpy(&x, &bits, sizeof x);
    wide = x;
}

inline void ptx(int, const char* text, unsigned short& bits, float x) {
    if (strcmp(text, "cvt.rn.f16.f32 %0, %1;") != 0) fail(text);
    const _Float16 narrow = static_cast<_Float16>(x);
    memcpy(&bits, &narrow, sizeof bits);
}

inline unsigned word(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float number(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

template <typename Parameters>
void call(void (*kernel)(Parameters), const void* parameters) {
    kernel(*static_cast<const Parameters*>(parameters));
}
}  // namespace gpu

#define __syncthreads() gpu::meet_block(false, __FILE__, __LINE__)
#define __syncthreads_or(mine) gpu::meet_block((mine) != 0, __FILE__, __LINE__)
#define __syncwarp() gpu::meet_warp(__FILE__, __LINE__)
#define __shfl_xor_sync(mask, mine, bits) gpu::shuffle(mask, mine, bits, __LINE__)
#define __float_as_uint gpu::word
#define __uint_as_float gpu::number

static inline float rsqrtf(float x) { return 1 / sqrtf(x); }

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900

// Behind a source, for each of its kernels.
#define RUN(name)                                                                                          \
    extern "C" __attribute__((visibility("default"))) const char* run_##name(const gpu::Launch& launch) { \
        return gpu::run(launch, [](const void* parameters) { gpu::call(name, parameters); });              \
    }
