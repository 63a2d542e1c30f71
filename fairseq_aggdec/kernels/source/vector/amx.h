// Tiles of AMX for products of 8 bits: eight registers of up to 16 rows of 64 bytes. Each thread has its own.
//
// AGGDEC_EMULATE_AMX makes them plain memory, for processors without: the tests compile that.

#pragma once

#include <cstdint>
#include <cstring>

namespace aggdec {

constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 64;

// The rows and bytes of a row of each tile, as the instruction reads them.
struct TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
    void set(int tile, int64_t count) {
        rows[tile] = static_cast<uint8_t>(count), bytes[tile] = TILE_BYTES;
    }
};
static_assert(sizeof(TileShapes) == 64);

#if defined(AGGDEC_EMULATE_AMX)

struct Tiles {
    TileShapes shapes;
    uint8_t bytes[8][TILE_ROWS][TILE_BYTES];
};
inline Tiles& tiles() {
    thread_local Tiles own;
    return own;
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
template <int SUMS, int LEVELS, int WEIGHTS>
void multiply_tiles() {
    const TileShapes& shapes = tiles().shapes;
    for (int row = 0; row < shapes.rows[SUMS]; ++row) {
        int32_t sums[TILE_BYTES / 4];
        std::memcpy(sums, tiles().bytes[SUMS][row], TILE_BYTES);
        for (int group = 0; group < shapes.rows[WEIGHTS]; ++group)
            for (int i = 0; i < shapes.bytes[SUMS]; ++i)
                sums[i / 4] += tiles().bytes[LEVELS][row][4 * group + i % 4] *
                               static_cast<int8_t>(tiles().bytes[WEIGHTS][group][i]);
        std::memcpy(tiles().bytes[SUMS][row], sums, TILE_BYTES);
    }
}

#else

// Not the intrinsics, which take only numbers that are written out.
inline void begin_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void end_tiles() { asm volatile("tilerelease"); }
template <int T>
void clear_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
}
template <int T>
void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
}
// Adds to sums of 32 bits the products of levels 0 to 255, rows of x, with weights, rows of four for each output.
template <int SUMS, int LEVELS, int WEIGHTS>
void multiply_tiles() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(LEVELS), "i"(WEIGHTS));
}

#endif

}  // namespace aggdec
