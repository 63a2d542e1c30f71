// Drafting along a chain, see drafters/chain.py: which of the likely tokens of every slot go together.
//
//   hear    what each slot hears of the tokens that may stand before it
//   follow  the best token of every slot behind the best of the slot before
//
// R rows of k slots, M candidates of each. Before the first slot stands the last token of the row, M times.

#include "shared.h"

constexpr int MOST_CANDIDATES = 8, MOST_SLOTS = 64;

// Of `hear`, with a block for each token before a slot, and of `follow`, with one for each row.
struct Chain {
    Int blocks, size, most, channels, precision;  // .., k, M, C, ..
    const Int *last, *best;                       // (R,), (R, k, M)
    const void *heard, *slots;                    // (V, C), (R k, C)
    void* chained;                                // (R k M, C), of `hear`
    const void *features, *written;               // (R k, C), (R k M, C)
    const void *weight, *bias;                    // (V, C), (V,) or none, of the projection to the vocabulary
    Int* block;                                   // (R, k), of `follow`
};

// A candidate; -1, where a row has fewer of them, is any token.
__device__ inline Int candidate(const Chain& p, Int at) { return p.best[at] < 0 ? 0 : p.best[at]; }

struct Hear {
    template <typename Number>
    static __device__ void of(const Chain& p);
};

template <typename Number>
__device__ void Hear::of(const Chain& p) {
    const unsigned place = blockIdx.x / (unsigned)p.most, size = (unsigned)p.size;  // to divide 8 bytes is slow
    const Int entry = blockIdx.x, slot = place, row = place / size;
    const Int token = place % size ? candidate(p, entry - p.most) : p.last[row];
    const Number *of_token = (const Number*)p.heard + token * p.channels,
                 *of_slot = (const Number*)p.slots + slot * p.channels;
    for (Int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        const float sum = widened(of_token[i]) + widened(of_slot[i]);
        narrow(sum < 0 ? 0 : sum, ((Number*)p.chained)[entry * p.channels + i]);
    }
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) hear(const Chain p) {
    wait_for_earlier_kernels();
    by_precision<Hear>(p);
}

// The best candidate of a slot behind one of the slot before; a warp finds it.
template <typename Number>
__device__ int best_behind(const Chain& p, Int entry) {
    const Int slot = (unsigned)entry / (unsigned)p.most;
    const Number *features = (const Number*)p.features + slot * p.channels;
    const Number *written = (const Number*)p.written + entry * p.channels, *weight = (const Number*)p.weight;
    unsigned rows[MOST_CANDIDATES];  // where they begin in the weight
    float scores[MOST_CANDIDATES] = {};
#pragma unroll
    for (int i = 0; i < MOST_CANDIDATES; ++i) rows[i] = (unsigned)(candidate(p, slot * p.most + least(i, p.most - 1)) * p.channels);
    for (Int from = threadIdx.x % LANES * 8; from < p.channels; from += LANES * 8) {
        const Eight<Number> of_slot = eight_at(features + from), of_entry = eight_at(written + from);
        float conditioned[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            Number rounded;
            narrow(number_of(of_slot, j) + number_of(of_entry, j), rounded);
            conditioned[j] = widened(rounded);
        }
#pragma unroll
        for (int i = 0; i < MOST_CANDIDATES; ++i) {
            const Eight<Number> numbers = eight_at(weight + rows[i] + from);
#pragma unroll
            for (int j = 0; j < 8; ++j) scores[i] += conditioned[j] * number_of(numbers, j);
        }
    }
    int best = 0;
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < MOST_CANDIDATES; ++i) {
        float score = scores[i];
#pragma unroll
        for (int bits = LANES / 2; bits > 0; bits /= 2) score += of_lane(score, bits);
        if (p.bias && i < p.most) score += widened(((const Number*)p.bias)[rows[i] / (unsigned)p.channels]);
        if (i < p.most && score > most) {
            most = score;
            best = i;
        }
    }
    return best;
}

struct Follow {
    template <typename Number>
    static __device__ void of(const Chain& p);
};

template <typename Number>
__device__ void Follow::of(const Chain& p) {
    __shared__ unsigned char choices[MOST_SLOTS * MOST_CANDIDATES];
    const Int row = blockIdx.x, first = row * p.size * p.most, entries = p.size * p.most;
    for (Int entry = threadIdx.x / LANES; entry < entries; entry += blockDim.x / LANES) {
        if (entry && entry < p.most) continue;  // before the first slot all are the same
        const int choice = best_behind<Number>(p, first + entry);
        if (threadIdx.x % LANES == 0) choices[entry] = (unsigned char)choice;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    int before = 0;
    for (Int slot = 0; slot < p.size; ++slot) {
        before = choices[slot * p.most + before];
        p.block[row * p.size + slot] = candidate(p, first + slot * p.most + before);
    }
}

// In half precision with as many registers as there are, else some are spilt; in fp32 it is the other way round.
#if defined(PRECISION) && PRECISION == 0
#define FOLLOWS __launch_bounds__(512)
#else
#define FOLLOWS __launch_bounds__(512, 1)
#endif

// Read before the wait: nothing.
extern "C" __global__ void FOLLOWS follow(const Chain p) {
    wait_for_earlier_kernels();
    by_precision<Follow>(p);
}
