// NEON of ARM64 with dot products, a vector four registers, see vector.h, which includes this file.
//
// Sums are added up in the order of AVX2 and AVX-512, so that all three give the same bits.

#pragma once

#include <arm_neon.h>

namespace aggdec {

struct Floats {
    float32x4_t v[4];
};
struct Ints {
    int32x4_t v[4];
};

template <class Out, class F>
inline Out each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
}
inline Floats same(float x) {
    return each<Floats>([&](int) { return vdupq_n_f32(x); });
}
inline Floats load(const float* p) {
    return each<Floats>([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline Floats load(const float* p, int count) {
    float copy[LANES] = {};
    std::memcpy(copy, p, sizeof(float) * count);
    return load(copy);
}
inline void store(float* p, Floats x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
inline void store(float* p, Floats x, int count) {
    float copy[LANES];
    store(copy, x);
    std::memcpy(p, copy, sizeof(float) * count);
}
inline Floats operator+(Floats x, Floats y) {
    return each<Floats>([&](int i) { return vaddq_f32(x.v[i], y.v[i]); });
}
inline Floats operator-(Floats x, Floats y) {
    return each<Floats>([&](int i) { return vsubq_f32(x.v[i], y.v[i]); });
}
inline Floats operator*(Floats x, Floats y) {
    return each<Floats>([&](int i) { return vmulq_f32(x.v[i], y.v[i]); });
}
// Where one of two is NaN the second counts, as on x86; vmaxq_f32 would give NaN.
inline Floats larger(Floats x, Floats y) {
    return each<Floats>([&](int i) { return vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
inline Floats smaller(Floats x, Floats y) {
    return each<Floats>([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
inline Floats multiply_add(Floats x, Floats y, Floats z) {
    return each<Floats>([&](int i) { return vfmaq_f32(z.v[i], x.v[i], y.v[i]); });
}
inline float total(Floats x) {
    const float32x4_t h = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    const float32x2_t pair = vadd_f32(vget_low_f32(h), vget_high_f32(h));
    return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}
inline void totals(Floats a, Floats b, Floats c, Floats d, float* out) {
    const auto half = [&](int i) {  // of the eight numbers that the two halves of 16 add up to
        const auto part = [&](const Floats& x) { return vaddq_f32(x.v[i], x.v[i + 2]); };
        return vpaddq_f32(vpaddq_f32(part(a), part(b)), vpaddq_f32(part(c), part(d)));
    };
    vst1q_f32(out, vaddq_f32(half(0), half(1)));
}
inline float largest(Floats x) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[2]), vmaxq_f32(x.v[1], x.v[3])));
}
inline float smallest(Floats x) {
    return vminvq_f32(vminq_f32(vminq_f32(x.v[0], x.v[2]), vminq_f32(x.v[1], x.v[3])));
}
inline Floats whole(Floats x) {
    return each<Floats>([&](int i) { return vrndnq_f32(x.v[i]); });
}
inline Floats times_power_of_two(Floats x, Floats n) {
    return each<Floats>([&](int i) {
        const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127));
        return vmulq_f32(x.v[i], vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
    });
}
inline Floats exponent(Floats x) {
    return each<Floats>([&](int i) {
        const uint32x4_t biased = vshrq_n_u32(vreinterpretq_u32_f32(x.v[i]), 23);
        return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(biased), vdupq_n_s32(127)));
    });
}
// A bit for each of 16 numbers.
template <class F>
inline unsigned bits(F of_four) {
    const uint32x4_t weights = {1, 2, 4, 8};
    unsigned mask = 0;
    for (int i = 0; i < 4; ++i) mask |= vaddvq_u32(vandq_u32(of_four(i), weights)) << 4 * i;
    return mask;
}
inline unsigned equal(Floats x, Floats y) {
    return bits([&](int i) { return vceqq_f32(x.v[i], y.v[i]); });
}
inline unsigned at_least(Floats x, Floats y) {
    return bits([&](int i) { return vcgeq_f32(x.v[i], y.v[i]); });
}
inline unsigned not_numbers(Floats x) { return 0xFFFFu & ~equal(x, x); }
inline Ints all(int32_t x) {
    return each<Ints>([&](int) { return vdupq_n_s32(x); });
}
inline Ints zeros() { return all(0); }
inline Ints load(const int32_t* p) {
    return each<Ints>([&](int i) { return vld1q_s32(p + 4 * i); });
}
inline void store(int32_t* p, Ints x) {
    for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, x.v[i]);
}
inline Ints operator+(Ints x, Ints y) {
    return each<Ints>([&](int i) { return vaddq_s32(x.v[i], y.v[i]); });
}
inline Ints operator-(Ints x, Ints y) {
    return each<Ints>([&](int i) { return vsubq_s32(x.v[i], y.v[i]); });
}
inline Ints operator*(Ints x, Ints y) {
    return each<Ints>([&](int i) { return vmulq_s32(x.v[i], y.v[i]); });
}
inline Floats floats(Ints x) {
    return each<Floats>([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}
// The instruction multiplies signed bytes.
constexpr int LEVEL_BYTES = 1, LEVEL_SHIFT = 128;
inline void store_levels(uint8_t* p, Floats levels, int groups) {
    const Ints shifted = each<Ints>([&](int i) { return vcvtnq_s32_f32(levels.v[i]); }) - all(LEVEL_SHIFT);
    const int16x8_t low = vcombine_s16(vmovn_s32(shifted.v[0]), vmovn_s32(shifted.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(shifted.v[2]), vmovn_s32(shifted.v[3]));
    const int8x16_t bytes = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
    std::memcpy(p, &bytes, 4 * static_cast<size_t>(groups));
}
inline int32_t first_sum(const uint8_t*, int64_t) { return 0; }
using Inputs = int8x16_t;
inline Inputs four_levels(const uint8_t* p) {
    int32_t together;
    std::memcpy(&together, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(together));
}
inline Ints add_products(Ints sums, Inputs inputs, Ints weights) {
    return each<Ints>([&](int i) {
        return vdotq_s32(sums.v[i], vreinterpretq_s8_s32(weights.v[i]), inputs);
    });
}
inline Ints load_bytes(const int8_t* p) { return load(reinterpret_cast<const int32_t*>(p)); }
inline Floats upper(Ints x) {
    return each<Floats>([&](int i) { return vreinterpretq_f32_s32(vandq_s32(x.v[i], vdupq_n_s32(-65536))); });
}
inline Floats lower(Ints x) {
    return each<Floats>([&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(x.v[i], 16)); });
}

}  // namespace aggdec
