// The kernels of a GPU as C++, where a block is one thread.
// Compiled by bookkeeping.py with -I to the folder of the sources.

#include <math.h>
#include <string.h>

#include <vector>

struct Place {
    unsigned x;
};
static thread_local Place threadIdx, blockIdx, blockDim;

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

static inline void __syncthreads() {}

// What shared.h has for a GPU's numbers and warps.
constexpr int LANES = 1;

static inline void warp_meets() {}

struct Half;
struct Bfloat;

template <typename Value>
static inline Value of_lane(const Value& mine, int) {
    return mine;
}

static inline unsigned bits_of(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float of_bits(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float widened_half(unsigned bits) {
    const unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31  ? (fraction ? NAN : INFINITY)
                       : exponent == 0 ? ldexpf(static_cast<float>(fraction), -24)
                                       : ldexpf(static_cast<float>(fraction + 1024), static_cast<int>(exponent) - 25);
    return bits >> 15 ? -size : size;
}

// To the nearest, of two the even one, as nearbyintf rounds.
static inline unsigned short narrowed_half(float x) {
    const unsigned sign = bits_of(x) >> 31 << 15;
    const float size = fabsf(x);
    if (x != x) return 0x7fff;
    if (size >= 65520) return static_cast<unsigned short>(sign | 0x7c00);
    const int exponent = size < 0x1p-14f ? -14 : ilogbf(size);
    const unsigned steps = static_cast<unsigned>(nearbyintf(ldexpf(size, 10 - exponent)));  // of the last digit
    return static_cast<unsigned short>(sign | (static_cast<unsigned>(exponent + 14) * 1024 + steps));
}

static float widened(Half x);
static void narrow(float x, Half& to);

#include "shared.h"

static inline float widened(Half x) {
    static const std::vector<float> all = [] {
        std::vector<float> made(1 << 16);
        for (unsigned bits = 0; bits < made.size(); ++bits) made[bits] = widened_half(bits);
        return made;
    }();
    return all[x.bits];
}
static inline void narrow(float x, Half& to) { to.bits = narrowed_half(x); }

#include "attention.cu"
#include "bookkeeping.cu"
#include "chain.cu"
#include "embedding.cu"
#include "vocabulary.cu"
#include "beam.cu"
#include "products.cu"
#include "cross.cu"
#include "logits.cu"

template <typename Parameters>
static void run(void (*kernel)(Parameters), const void* parameters, Int blocks) {
    blockDim.x = 1;
    for (Int block = 0; block < blocks; ++block) {
        blockIdx.x = static_cast<unsigned>(block);
        kernel(*static_cast<const Parameters*>(parameters));
    }
}

#define RUN(name, Parameters)                                                      \
    extern "C" int words_of_##name() { return sizeof(Parameters) / 8; } \
    extern "C" void run_##name(const void* parameters, Int blocks) { run<Parameters>(name, parameters, blocks); }

RUN(begin, Begin)
RUN(slots, SlotWindow)
RUN(embedding, Embedding)
RUN(sources, Sources)
RUN(hear, Chain)
RUN(follow, Chain)
RUN(copy_block, CopyBlock)
RUN(ban, VerificationCall)
RUN(look, VerificationCall)
RUN(verify, VerificationCall)
RUN(largest, Largest)
RUN(leaders, Candidates)
RUN(best, Candidates)
RUN(beam_step, BeamStep)
RUN(best_step, BeamStep)
RUN(attend, Attention)
RUN(attend_slots, Attention)
RUN(cross_attend, CrossAttention)
RUN(logits, Logits)
RUN(product, Product)
RUN(layer_norm, Norm)
