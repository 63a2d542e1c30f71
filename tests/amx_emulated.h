// Tiles of AMX as plain memory, see fairseq_aggdec/kernels/source/vector/amx.h, which includes this file.

struct Tiles {
    TileShapes shapes;
    uint8_t bytes[8][TILE_ROWS][TILE_BYTES];
};
inline Tiles& tiles() {
    thread_local Tiles of_thread;
    return of_thread;
}
inline void begin_tiles(const TileShapes& shapes) { tiles() = {shapes, {}}; }
inline void end_tiles() { tiles() = {}; }
template <int T>
void clear_tile() {
    std::memset(tiles().bytes[T], 0, sizeof tiles().bytes[T]);
}
template <int T>
void load_tile(const void* from, int64_t stride) {
    clear_tile<T>();
    for (int row = 0; row < tiles().shapes.rows[T]; ++row)
        std::memcpy(tiles().bytes[T][row], static_cast<const char*>(from) + row * stride, tiles().shapes.bytes[T]);
}
template <int T>
void store_tile(void* to, int64_t stride) {
    for (int row = 0; row < tiles().shapes.rows[T]; ++row)
        std::memcpy(static_cast<char*>(to) + row * stride, tiles().bytes[T][row], tiles().shapes.bytes[T]);
}
inline void add_up(int32_t* sums, const uint8_t* levels, const uint8_t (*weights)[TILE_BYTES], int groups, int bytes) {
    for (int group = 0; group < groups; ++group)
        for (int i = 0; i < bytes; ++i)
            sums[i / 4] += levels[4 * group + i % 4] * static_cast<int8_t>(weights[group][i]);
}
// A number of bfloat16, or of fp32, with 0 in place of what is below 2^-126: neither is read or written by the instruction.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float read_bf16(const uint8_t* at) {
    uint16_t half;
    std::memcpy(&half, at, 2);
    const uint32_t bits = uint32_t(half) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return flushed(x);
}
// As Intel documents TDPBF16PS: of the lower and the upper halves of words a fused chain each from 0 on, added up in the end.
inline void add_up(float* sums, const uint8_t* pairs, const uint8_t (*weights)[TILE_BYTES], int groups, int bytes) {
    for (int i = 0; i < bytes; i += 4) {
        float halves[2] = {};
        for (int group = 0; group < groups; ++group)
            for (int half = 0; half < 2; ++half)
                halves[half] = flushed(std::fma(read_bf16(pairs + 4 * group + 2 * half),
                                                read_bf16(weights[group] + i + 2 * half), halves[half]));
        sums[i / 4] = flushed(flushed(sums[i / 4]) + flushed(halves[0] + halves[1]));
    }
}
template <class SUM, int SUMS, int INPUTS, int WEIGHTS>
void multiply_tiles() {
    const TileShapes& shapes = tiles().shapes;
    for (int row = 0; row < shapes.rows[SUMS]; ++row) {
        SUM sums[TILE_BYTES / 4];
        std::memcpy(sums, tiles().bytes[SUMS][row], TILE_BYTES);
        add_up(sums, tiles().bytes[INPUTS][row], tiles().bytes[WEIGHTS], shapes.rows[WEIGHTS], shapes.bytes[SUMS]);
        std::memcpy(tiles().bytes[SUMS][row], sums, TILE_BYTES);
    }
}
