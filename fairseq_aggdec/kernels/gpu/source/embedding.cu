// What layers read at each position, in one launch: the twins of functions in kernels/gpu/embedding.py.
//
//   embedding  a decoder, at the positions of a window
//   sources    an encoder, at the places of sources on a grid: padding, positions and lengths are found, too

#include "shared.h"

constexpr int MOST_SOURCES = 4096;
constexpr int AT_ONCE = 4;  // tokens of a source that a warp weighs together, so that their loads do not wait for each other

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
    const void* slot;              // (C,), what a slot reads
    Int width, sources;            // positions of a row; S
    Int row_step, mask_step;       // from a row's memory to the next one's, and from its mask
    const void* queries;           // (P, C), what a slot at each position asks its source; none: slots copy nothing
    const void *memory, *mask;     // (R, S, 2 C), keys and embeddings of the source; (R, S), is added, or none
    void* out;                     // (N, C)
};

struct Larger {
    __device__ float operator()(float a, float b) const { return a < b ? b : a; }
};

struct Total {
    __device__ float operator()(float a, float b) const { return a + b; }
};

// How much of each token of its source a slot reads. All threads of the block get them.
template <typename Number>
__device__ void weigh(const Embedding& p, Int place, float (&weights)[MOST_SOURCES]) {
    const Int row = (unsigned)place / (unsigned)p.width;
    const Number* query = (const Number*)p.queries + p.at[place * p.step] * p.channels;
    const Number* keys = (const Number*)p.memory + row * p.row_step;
    const Int warps = blockDim.x / LANES;
    for (Int first = threadIdx.x / LANES; first < p.sources; first += AT_ONCE * warps) {
        float scores[AT_ONCE] = {};
        for (Int from = threadIdx.x % LANES * 8; from < p.channels; from += LANES * 8) {
            const Eight<Number> query_part = eight_at(query + from);
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const Int key = least(first + k * warps, p.sources - 1);
                const Eight<Number> key_part = eight_at(keys + key * 2 * p.channels + from);
#pragma unroll
                for (int i = 0; i < 8; ++i) scores[k] += number_of(query_part, i) * number_of(key_part, i);
            }
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Int key = first + k * warps;
            float score = scores[k];
#pragma unroll  // so that the shuffles of all keys are on their way together
            for (int bits = LANES / 2; bits > 0; bits /= 2) score += of_lane(score, bits);
            if (threadIdx.x % LANES != 0 || key >= p.sources) continue;
            weights[key] = p.mask ? score + widened(((const Number*)p.mask)[row * p.mask_step + key]) : score;
        }
    }
    __syncthreads();
    float most = -INFINITY, sum = 0;
    for (Int key = threadIdx.x; key < p.sources; key += blockDim.x) most = Larger()(most, weights[key]);
    most = joined(most, Larger());
    for (Int key = threadIdx.x; key < p.sources; key += blockDim.x) sum += weights[key] = expf(weights[key] - most);
    sum = joined(sum, Total());
    for (Int key = threadIdx.x; key < p.sources; key += blockDim.x) weights[key] /= sum;
    __syncthreads();
}

struct Embed {
    template <typename Number>
    static __device__ void of(const Embedding& p, float (&weights)[MOST_SOURCES]);
};

template <typename Number>
__device__ void Embed::of(const Embedding& p, float (&weights)[MOST_SOURCES]) {
    const Int place = blockIdx.x, out = place * p.channels;
    const bool slot = p.masked && p.masked[place];
    const Number* read = slot ? (const Number*)p.slot : (const Number*)p.weight + p.tokens[place] * p.channels;
    const Number* added = p.table ? (const Number*)p.table + p.at[place * p.step] * p.channels : nullptr;
    const Int copied = slot && p.queries ? p.sources : 0;
    const Number* source = (const Number*)p.memory + (Int)(blockIdx.x / (unsigned)p.width) * p.row_step + p.channels;
    if (copied) weigh<Number>(p, place, weights);
    for (Int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        float x = (float)p.scale * widened(read[i]);
#pragma unroll 8  // loads of several tokens are on their way at once
        for (Int key = 0; key < copied; ++key) x += weights[key] * widened(source[key * 2 * p.channels + i]);
        narrow(added ? widened(added[i]) + x : x, ((Number*)p.out)[out + i]);
    }
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(FEWER_THREADS, 1) embedding(const Embedding p) {
    __shared__ float weights[MOST_SOURCES];
    wait_for_earlier_kernels();
    by_precision<Embed>(p, weights);
}

// A block for each place: R rows of L, padding before the tokens of each.
struct Sources {
    Int blocks, precision, channels, length, pad;  // R L, .., C, L
    double scale;
    const Int* tokens;             // (R, L)
    const void *weight, *table;    // (V, C); (P, C) of positions, or none
    void *embedded, *x;            // (R, L, C), without and with positions; x is 0 at padding
    void* mask;                    // (R, L), is added: -inf at padding
    unsigned char* hidden;         // (R, L), padding
    int* counts;                   // (R,), tokens of each row
};

struct EmbedSource {
    template <typename Number>
    static __device__ void of(const Sources& p);
};

template <typename Number>
__device__ void EmbedSource::of(const Sources& p) {
    const unsigned length = (unsigned)p.length, row = blockIdx.x / length, column = blockIdx.x - row * length;
    const Int *tokens = p.tokens + row * p.length, token = tokens[column], place = blockIdx.x;
    // The lower half counts the row's tokens up to this place, the upper half (times 2^32) all of them.
    Int counts = 0;
    for (unsigned i = threadIdx.x; i < length; i += blockDim.x) {
        if (tokens[i] != p.pad) counts += ((Int)1 << 32) + (i <= column);
    }
    counts = joined(counts, Sum());
    const Int before = counts & 0xffffffff, at = before > 0 ? before - 1 : 0;
    const bool padding = token == p.pad;
    const Number* weight = (const Number*)p.weight + token * p.channels;
    const Number* added = p.table ? (const Number*)p.table + at * p.channels : nullptr;
    for (Int i = threadIdx.x; i < p.channels; i += blockDim.x) {
        Number embedded, x;
        narrow((float)p.scale * widened(weight[i]), embedded);  // rounded twice, as operators round
        narrow(padding ? 0 : added ? widened(embedded) + widened(added[i]) : widened(embedded), x);
        ((Number*)p.embedded)[place * p.channels + i] = embedded;
        ((Number*)p.x)[place * p.channels + i] = x;
    }
    if (threadIdx.x != 0) return;
    narrow(padding ? -INFINITY : 0, ((Number*)p.mask)[place]);
    p.hidden[place] = padding;
    if (column == 0) p.counts[row] = (int)(counts >> 32);
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(FEWER_THREADS) sources(const Sources p) {
    wait_for_earlier_kernels();
    by_precision<EmbedSource>(p);
}
