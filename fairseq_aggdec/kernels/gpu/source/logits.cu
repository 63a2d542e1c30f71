// Logits of few slots, with the norm before them and what `look` finds in them, in one launch:
//
//   logits  y = n(x) W^T + b, n a layer norm; what each part of a slot's logits comes to, as of `look`
//
// A block computes a part of the vocabulary for 16 slots: so many of its parts as a GPU has processors, or a multiple.
// It norms its slots once and goes through its part by tiles; the weights of the next tiles are on their way while the
// sums of the last are gathered. So 32 KiB of weights of each processor are under way at any time, as with many small
// blocks, of which each would norm 16 slots for 16 outputs. A warp looks at what its block has written of a slot.
//
// Sums are those of `product` and of `look`, in the same order.

#define PARTS_ONLY
#include "products.cu"
#include "vocabulary.cu"

constexpr int TILES_AT_ONCE = 4;

// Blocks for parts of the vocabulary, and again for every 16 of the N slots.
struct Logits {
    Int blocks, precision, slots, channels, types;  // .., .., N, C, V
    Int parts, each;                                // P; groups of eight logits of a part, for `seen` no more than 32
    Int pad, unk, eos;
    double eps, share;                              // of the norm; 1 / C
    const void *x, *weight, *bias, *gain, *shift;   // (N, C), (V, C), (V,) or none, (C,), (C,)
    void *kept, *y;                                 // (N, C) n(x); (N, V)
    Seen* seen;                                     // (N, P), or not wanted; V is a multiple of 8
};

template <typename Number>
__device__ void project(const Product& p, Common& common, int top, int first, int last) {
    using Tiles = Multiplied<Number, TILES_AT_ONCE, true>;
    Tiles tiles(p, common, top, first);
    tiles.load_weights(tiles.warp, first);
    wait_for_earlier_kernels();
    tiles.load_inputs(tiles.warp);
    tiles.normalise(tiles.warp);
    for (;;) {
        float biases[Tiles::ITEMS];
        tiles.load_biases(biases);
        tiles.multiply(tiles.warp);
        tiles.share();
        const int next = tiles.first + TILES_AT_ONCE * TILE_OUTPUTS;
        if (next < last) tiles.load_weights(tiles.warp, next);
        __syncthreads();
        tiles.gather([&](int item, int row, int output, float y) {
            narrow(y + biases[item], static_cast<Number*>(p.y)[static_cast<Int>(row) * p.across + output]);
        });
        if (next >= last) break;
        __syncthreads();
        tiles.take_up(next);
    }
}

struct Project {
    template <typename Number>
    static __device__ void of(const Logits& p, Common& common) {
        const unsigned parts = static_cast<unsigned>(p.parts), row = blockIdx.x / parts, part = blockIdx.x - row * parts;
        const int top = static_cast<int>(row) * TILE_ROWS, first = static_cast<int>(part * p.each * 8);
        Product product{};
        product.rows = p.slots;
        product.inputs = p.channels;
        product.outputs = least(p.types, first + p.each * 8);
        product.across = p.types;  // from a row to the next one
        product.tiles = TILES_AT_ONCE;
        product.eps = p.eps;
        product.share = p.share;
        product.x = p.x;
        product.weight = p.weight;
        product.bias = p.bias;
        product.gain = p.gain;
        product.shift = p.shift;
        product.kept = p.kept;
        product.y = p.y;
        project<Number>(product, common, top, first, static_cast<int>(product.outputs));
        if (!p.seen) return;
        __syncthreads();
        const int end = static_cast<int>(least(p.slots, top + TILE_ROWS));
        for (int slot = top + static_cast<int>(threadIdx.x / LANES); slot < end; slot += blockDim.x / LANES) {
            const Row logits(p.y, p.precision, slot, p.types);
            Seen seen = nothing_seen(p.types);
            const Int behind = least(logits.groups(), (part + 1) * p.each);
            for (Int group = part * p.each + threadIdx.x % LANES; group < behind; group += LANES) {
                look_at(seen, logits, group, INFINITY, p.pad, p.unk, p.eos);
            }
            seen = joined_lanes(seen, JoinSeen());
            if (threadIdx.x % LANES == 0) p.seen[slot * p.parts + part] = seen;
        }
    }
};

// Read before the wait: weight, gain, shift.
extern "C" __global__ void __launch_bounds__(32 * PRODUCT_WARPS, 1) logits(const Logits p) {
    __shared__ Common common;
    by_precision<Project>(p, common);
}
