// Attention to a source together with the product of its queries, for few slots:
//
//   cross_attend  y = attention of q = n(x) W^T + b over the keys and values of a source, n a layer norm
//
// A block computes the queries of one head for TOGETHER slots and attends with them. The weights of a head (W's D rows)
// are read by a block for every TOGETHER slots: 64 KiB in half precision at base size. So 32 slots of 8 heads are 128
// blocks, about as many as a GPU has processors, and read 8 MiB, from the cache of the second level but for the first
// time; a launch of its own for the queries, which reads them twice, costs more. For one slot there are 8 blocks where
// the product had 64: each has all of its loads on their way at once.
//
// Sums are those of `product` and of `attend`, in the same order: a slot gets the same numbers as from both.

#define PARTS_ONLY
#include "attention.cu"
#include "products.cu"

constexpr int TOGETHER = 2;
constexpr int TEAM = LANES * MOST_WARPS;  // threads that attend for a slot, as many as a block of `attend` has

// Blocks for heads, and again for every TOGETHER of the N slots: R rows of W, H heads of D numbers, C = H D.
struct CrossAttention {
    Int blocks, precision, slots, heads, size, width;  // .., .., N, H, D, W
    Int keys, row_step, key_step, value_step, mask_row;  // of the source, as of an Attention
    double eps, share, scale;                            // of the norm; 1 / C; of the scores
    const void *x, *weight, *bias, *gain, *shift;        // (N, C), (C, C), (C,) or none, (C,), (C,)
    const void *memory, *mask;                           // keys and values; (R, S), is added, or none
    void *kept, *out;                                    // (N, C) n(x), or not wanted; (N, C)
};

// The queries of a head for the rows that a product has from `top` on.
template <typename Number>
__device__ void ask(const Product& p, Common& common, int top, int head, int size, float (*queries)[WIDEST]) {
    using Projection = Multiplied<Number, sizeof(Number) == 2 ? 8 : 4, true>;
    Projection projection(p, common, top, head * size);
    const int end = (head + 1) * size, first = head * size;
    projection.load_weights(projection.warp, first);
    wait_for_earlier_kernels();
    projection.load_inputs(projection.warp);
    projection.normalise(projection.warp);
    for (int from = first;;) {
        float biases[Projection::ITEMS];
        projection.load_biases(biases);
        projection.multiply(projection.warp);
        projection.share();
        __syncthreads();
        projection.gather([&](int item, int row, int output, float y) {
            Number narrowed;
            narrow(y + biases[item], narrowed);
            queries[row - top][output - first] = widened(narrowed);
        });
        __syncthreads();
        from += projection.tiles * TILE_OUTPUTS;
        if (from >= end) break;
        projection.take_up(from);
        projection.load_weights(projection.warp, from);
    }
}

struct Cross {
    template <typename Number>
    static __device__ void of(const CrossAttention& p, Common& common, float (&queries)[TOGETHER][WIDEST]) {
        __shared__ Joint<1> joints[TOGETHER];
        const unsigned heads = (unsigned)p.heads, group = blockIdx.x / heads;
        const int head = (int)(blockIdx.x - group * heads), top = (int)group * TOGETHER, width = (int)p.width;
        Product product{};
        product.rows = least(p.slots, top + TOGETHER);
        product.inputs = p.heads * p.size;
        product.outputs = (head + 1) * p.size;
        product.tiles = sizeof(Number) == 2 ? 8 : 4;
        product.eps = p.eps;
        product.share = p.share;
        product.x = p.x;
        product.weight = p.weight;
        product.bias = p.bias;
        product.gain = p.gain;
        product.shift = p.shift;
        product.kept = p.kept;
        ask<Number>(product, common, top, head, (int)p.size, queries);
        Attention attention{};
        attention.width = p.width;
        attention.heads = p.heads;
        attention.size = p.size;
        attention.keys = p.keys;
        attention.row_step = p.row_step;
        attention.key_step = p.key_step;
        attention.value_step = p.value_step;
        attention.mask_row = p.mask_row;
        attention.span = -1;
        attention.scale = p.scale;
        attention.kept = const_cast<void*>(p.memory);
        attention.mask = p.mask;
        attention.out = p.out;
        const int threads = (int)least(blockDim.x, TEAM), thread = (int)threadIdx.x % threads;
        for (int i = (int)threadIdx.x / threads; i < TOGETHER; i += (int)blockDim.x / threads) {
            // All teams meet: behind the last slot one attends for it once more.
            const int slot = (int)least(top + i, p.slots - 1), row = (int)((unsigned)slot / (unsigned)width);
            Tile<Number, 1> tile(attention, row, head, slot - row * width, thread, queries + (slot - top));
            attend_tile(tile, joints[i], thread, threads);
        }
    }
};

// Read before the wait: weight, gain, shift.
extern "C" __global__ void __launch_bounds__(TOGETHER* TEAM, 1) cross_attend(const CrossAttention p) {
    __shared__ Common common;
    __shared__ float queries[TOGETHER][WIDEST];
    by_precision<Cross>(p, common, queries);
}
