// Plain loops, see vector.h, which includes this file.

#pragma once

namespace aggdec {

struct Floats {
    float v[LANES];
};
struct Ints {
    int32_t v[LANES];
};

template <class Out, class F>
inline Out each(F f) {
    Out out;
    for (int i = 0; i < LANES; ++i) out.v[i] = f(i);
    return out;
}
inline Floats same(float x) {
    return each<Floats>([&](int) { return x; });
}
inline Floats load(const float* p) {
    return each<Floats>([&](int i) { return p[i]; });
}
inline Floats load(const float* p, int count) {
    return each<Floats>([&](int i) { return i < count ? p[i] : 0.0f; });
}
inline void store(float* p, Floats a) { std::memcpy(p, a.v, sizeof a.v); }
inline void store(float* p, Floats a, int count) { std::memcpy(p, a.v, sizeof(float) * count); }
inline Floats operator+(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Floats operator-(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Floats operator*(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Floats larger(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats smaller(Floats a, Floats b) {
    return each<Floats>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
inline float total(Floats a) {
    float sum = 0;
    for (float x : a.v) sum += x;
    return sum;
}
inline void totals(Floats a, Floats b, Floats c, Floats d, float* out) {
    out[0] = total(a), out[1] = total(b), out[2] = total(c), out[3] = total(d);
}
inline float largest(Floats a) {
    float most = a.v[0];
    for (float x : a.v) most = x > most ? x : most;
    return most;
}
inline float smallest(Floats a) {
    float least = a.v[0];
    for (float x : a.v) least = x < least ? x : least;
    return least;
}
inline Floats whole(Floats a) {
    return each<Floats>([&](int i) { return std::nearbyint(a.v[i]); });
}
inline Floats times_power_of_two(Floats a, Floats n) {
    return each<Floats>([&](int i) { return std::ldexp(a.v[i], static_cast<int>(n.v[i])); });
}
inline Floats exponent(Floats a) {
    return each<Floats>([&](int i) { return std::logb(a.v[i]); });
}
inline unsigned equal(Floats a, Floats b) {
    unsigned mask = 0;
    for (int i = 0; i < LANES; ++i) mask |= static_cast<unsigned>(a.v[i] == b.v[i]) << i;
    return mask;
}
inline unsigned at_least(Floats a, Floats b) {
    unsigned mask = 0;
    for (int i = 0; i < LANES; ++i) mask |= static_cast<unsigned>(a.v[i] >= b.v[i]) << i;
    return mask;
}
inline unsigned not_numbers(Floats a) { return 0xFFFFu & ~equal(a, a); }
inline Ints zeros() { return {}; }
inline Ints all(int32_t x) {
    return each<Ints>([&](int) { return x; });
}
inline Ints load(const int32_t* p) {
    return each<Ints>([&](int i) { return p[i]; });
}
inline void store(int32_t* p, Ints a) { std::memcpy(p, a.v, sizeof a.v); }
inline Ints operator+(Ints a, Ints b) {
    return each<Ints>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Ints operator-(Ints a, Ints b) {
    return each<Ints>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Ints operator*(Ints a, Ints b) {
    return each<Ints>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Floats floats(Ints a) {
    return each<Floats>([&](int i) { return static_cast<float>(a.v[i]); });
}
constexpr int LEVEL_BYTES = 1, LEVEL_SHIFT = 0;
inline void store_levels(uint8_t* p, Floats levels, int groups) {
    for (int i = 0; i < 4 * groups; ++i) p[i] = static_cast<uint8_t>(std::nearbyint(levels.v[i]));
}
inline int32_t first_sum(const uint8_t*, int64_t) { return 0; }
using Inputs = const uint8_t*;
inline Inputs four_levels(const uint8_t* p) { return p; }
inline Ints add_products(Ints sums, Inputs x, Ints weights) {
    int8_t w[4 * LANES];
    std::memcpy(w, weights.v, sizeof w);
    return each<Ints>([&](int i) {
        const int8_t* of = w + 4 * i;
        return sums.v[i] + x[0] * of[0] + x[1] * of[1] + x[2] * of[2] + x[3] * of[3];
    });
}
inline Ints load_bytes(const int8_t* p) {
    Ints out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
}
inline float as_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
inline Floats upper(Ints a) {
    return each<Floats>([&](int i) { return as_float(static_cast<uint32_t>(a.v[i]) & 0xFFFF0000u); });
}
inline Floats lower(Ints a) {
    return each<Floats>([&](int i) { return as_float(static_cast<uint32_t>(a.v[i]) << 16); });
}

}  // namespace aggdec
