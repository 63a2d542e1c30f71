// Tiles of AMX as plain memory, see fairseq_aggdec/kernels/source/vector/amx.h, which includes this file.

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
