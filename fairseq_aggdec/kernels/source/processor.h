// The sets of instructions: for which a file is compiled, and which the processor has.

#pragma once

#include <cstdint>

#include "products.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace {

// library.py has the same order. Where a processor has several, the last is the fastest.
enum Instructions { PLAIN, AVX2, AVX_VNNI, AVX512, AMX, NEON };

constexpr Instructions compiled_for() {
#if defined(AGGDEC_AMX)
    return AMX;
#elif defined(AGGDEC_AVX512)
    return AVX512;
#elif defined(AGGDEC_AVX2) && defined(__AVXVNNI__)
    return AVX_VNNI;
#elif defined(AGGDEC_AVX2)
    return AVX2;
#elif defined(AGGDEC_NEON)
    return NEON;
#else
    return PLAIN;
#endif
}

#if defined(__x86_64__)

// Whether the processor has tiles and the system lets this process use them, which Linux wants to be asked for: see
// Documentation/arch/x86/xstate.rst of Linux.
inline bool has_tiles() {
    constexpr unsigned TILES = 7u << 22, OSXSAVE = 1u << 27, STATE = 3u << 17;  // bfloat16, tiles, 8 bits
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & TILES) != TILES) return false;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & STATE) == STATE && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

inline bool has_avx_vnni() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 4));
}

#endif

// A bit for each of what the processor can run.
inline int supported() {
    int bits = 1 << PLAIN;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    if (avx2) bits |= 1 << AVX2;
    if (avx2 && has_avx_vnni()) bits |= 1 << AVX_VNNI;
    if (avx512) bits |= 1 << AVX512;
    if (avx512 && has_tiles()) bits |= 1 << AMX;
#elif defined(__aarch64__)
    constexpr unsigned long DOT_PRODUCTS = 1ul << 20;  // HWCAP_ASIMDDP
    if (getauxval(AT_HWCAP) & DOT_PRODUCTS) bits |= 1 << NEON;
#endif
    return bits;
}

}  // namespace
