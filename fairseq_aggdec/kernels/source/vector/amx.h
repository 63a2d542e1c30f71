// Tiles of AMX for products of 8 bits and of bfloat16: eight registers of up to 16 rows of 64 bytes. Each thread has its own.
//
// AGGDEC_EMULATE_AMX names a file that makes them plain memory, for processors without: the tests have one.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

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
#include AGGDEC_EMULATE_AMX
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
// Adds to sums in int32_t the products of levels 0 to 255, rows of x, with weights, rows of four for each output; to sums
// in float those of pairs in bfloat16: the products of the upper halves are added up from 0 on, so are those of the lower
// halves, each step rounded, and the total of both is added.
template <class SUM, int SUMS, int INPUTS, int WEIGHTS>
void multiply_tiles() {
    if constexpr (std::is_same_v<SUM, float>)
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(INPUTS), "i"(WEIGHTS));
    else
        asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(INPUTS), "i"(WEIGHTS));
}

#endif

}  // namespace aggdec
