// What a decoder reads at each position of a window, in one launch: the twin of embedded() in kernels/gpu/embedding.py.

#include "shared.h"

// A block for each position.
struct Embedding {
    Int blocks, channels, precision;  // N, C
    Int step;                         // from a position's number to the next one's, 0: all have the same
    double scale;
    const Int* tokens;
    const void* weight;            // (V, C)
    const Int* at;                 // (N,), rows of the table
    const void* table;             // (P, C), or none
    const unsigned char* masked;   // (N,), whether a position is a mask slot; none: none is
    const void *slot, *copied;     // (C,), what a slot reads; (N, C), what is added to that, or none
    void* out;                     // (N, C)
};

struct Embed {
    template <typename Number>
    static __device__ void of(const Embedding& p);
};

template <typename Number>
__device__ void Embed::of(const Embedding& p) {
    const Int place = blockIdx.x, out = place * p.channels;
    const bool slot = p.masked && p.masked[place];
    const Number* read = slot ? (const Number*)p.slot : (const Number*)p.weight + p.tokens[place] * p.channels;
    const Number* added = p.table ? (const Number*)p.table + p.at[place * p.step] * p.channels : nullptr;
    const Number* copied = slot && p.copied ? (const Number*)p.copied + out : nullptr;
    for (Int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        float x = (float)p.scale * widened(read[i]);
        if (copied) x += widened(copied[i]);
        narrow(added ? widened(added[i]) + x : x, ((Number*)p.out)[out + i]);
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS) embedding(const Embedding p) {
    by_precision<Embed>(p);
}
