// Runs the kernels of the instructions that it is compiled for over fixed cases, and prints a hash of what each gives.
//
// Numbers come from a generator of integers, so that every processor has the same ones. A line: the kind of case, the
// case, the hash. Kinds: "int8" and "bf16", which all instructions give alike, and "fp32", alike with fused multiplications.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "attention.h"
#include "best.h"
#include "processor.h"
#include "products.h"

namespace {

uint32_t state = 1;

uint32_t next() {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state;
}

std::vector<float> numbers(int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& one : x) one = (static_cast<float>(next() >> 8) - 8388608.0f) / 4194304.0f;  // -2 to 2
    return x;
}

void print(const char* kind, const std::string& name, const std::vector<float>& found) {
    uint64_t hash = 14695981039346656037u;
    for (float one : found) {
        uint32_t bits = 1;  // of any NaN: processors have different ones
        if (one == one) std::memcpy(&bits, &one, 4);
        hash = (hash ^ bits) * 1099511628211u;
    }
    std::printf("%s %s %016llx\n", kind, name.c_str(), static_cast<unsigned long long>(hash));
}

std::string named(std::initializer_list<int64_t> numbers) {
    std::string name;
    for (int64_t one : numbers) name += (name.empty() ? "" : ",") + std::to_string(one);
    return name;
}

// Weights (O, K) as library.py lays them out: padded, in strips.
template <class T>
std::vector<T> laid_out(const std::vector<T>& weight, int64_t outputs, int64_t inputs, int64_t unit, int64_t depth) {
    const int64_t steps = (inputs + depth - 1) / depth * depth / unit, padded = (outputs + PANEL - 1) / PANEL * PANEL;
    std::vector<T> out(static_cast<size_t>(padded * steps * unit));
    for (int64_t o = 0; o < outputs; ++o)
        for (int64_t k = 0; k < inputs; ++k)
            out[static_cast<size_t>(((o / STRIP * steps + k / unit) * STRIP + o % STRIP) * unit + k % unit)] =
                weight[static_cast<size_t>(o * inputs + k)];
    return out;
}

void products(int64_t inputs, int64_t outputs, bool int8) {
    const int64_t padded = (outputs + PANEL - 1) / PANEL * PANEL;
    const std::vector<float> bias = numbers(outputs);
    std::vector<float> scales(static_cast<size_t>(padded), 0.0f), in_fp32;
    std::vector<int32_t> sums(static_cast<size_t>(padded), 0);
    std::vector<int8_t> in_int8;
    for (int64_t i = 0; i < outputs * inputs; ++i) {
        const auto level = static_cast<int>(next() % 255) - 127;
        if (int8) in_int8.push_back(static_cast<int8_t>(i % 97 ? level : 127));
        else in_fp32.push_back(static_cast<float>(level) / 64.0f + 1e-3f);
        if (int8) sums[static_cast<size_t>(i / inputs)] += in_int8.back();
    }
    for (int64_t o = 0; o < outputs; ++o) scales[static_cast<size_t>(o)] = 0.01f + 1e-4f * static_cast<float>(o);
    in_fp32 = laid_out(in_fp32, int8 ? 0 : outputs, inputs, 1, 1);
    in_int8 = laid_out(in_int8, int8 ? outputs : 0, inputs, 4, DEPTH);
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 16, 17, 31, 40}) {
        const bool relu = rows % 2, added = rows % 3 == 0;
        Product p{inputs, outputs, in_fp32.data(), rows % 5 ? bias.data() : nullptr, nullptr, nullptr, relu, false};
        if (int8) p.weight = in_int8.data(), p.scales = scales.data(), p.sums = sums.data();
        std::vector<float> x = numbers(rows * inputs), y = numbers(rows * outputs);
        if (rows > 6) x[static_cast<size_t>(2 * inputs)] = NAN, x[static_cast<size_t>(4 * inputs)] = INFINITY;
        product(p, x.data(), rows, y.data(), added ? y.data() : nullptr, 1);
        print(int8 ? "int8" : "fp32", "product " + named({inputs, outputs, rows}), y);
    }
}

// As `in_pairs` of library.py.
std::vector<uint32_t> in_pairs(const std::vector<uint32_t>& weight, int64_t outputs, int64_t inputs) {
    const int64_t steps = (inputs + BLOCK - 1) / BLOCK * (BLOCK / 2), padded = (outputs + PANEL - 1) / PANEL * PANEL;
    std::vector<uint32_t> out(static_cast<size_t>(padded * steps));
    for (int64_t o = 0; o < outputs; ++o)
        for (int64_t k = 0; k < inputs; ++k) {
            const int64_t place = k / (2 * APART) * APART + k % APART;
            const uint32_t bits = weight[static_cast<size_t>(o * inputs + k)];
            out[static_cast<size_t>((o / STRIP * steps + place) * STRIP + o % STRIP)] |= k / APART % 2 ? bits >> 16 : bits;
        }
    return out;
}

void products_in_bf16(int64_t inputs, int64_t outputs) {
    const std::vector<float> bias = numbers(outputs);
    std::vector<uint32_t> weight(static_cast<size_t>(outputs * inputs));
    for (uint32_t& one : weight) one = (next() & 0x807F0000u) | (120 + next() % 8) << 23;
    weight = in_pairs(weight, outputs, inputs);
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 16, 17, 31, 40}) {
        const bool relu = rows % 2, added = rows % 3 == 0;
        const Product p{inputs, outputs, weight.data(), rows % 5 ? bias.data() : nullptr, nullptr, nullptr, relu, true};
        std::vector<float> x = numbers(rows * inputs), y = numbers(rows * outputs);
        if (rows > 6) x[static_cast<size_t>(2 * inputs)] = NAN, x[static_cast<size_t>(4 * inputs)] = INFINITY;
        if (rows > 6) x[static_cast<size_t>(5 * inputs)] = 3e-39f, x[static_cast<size_t>(6 * inputs)] = 3.4e38f;
        product(p, x.data(), rows, y.data(), added ? y.data() : nullptr, 1);
        print("bf16", "product " + named({inputs, outputs, rows}), y);
    }
}

void norms(int64_t size) {
    const std::vector<float> x = numbers(5 * size), weight = numbers(size), bias = numbers(size);
    std::vector<float> y(x.size());
    normalise_rows({weight.data(), bias.data(), 1e-5}, x.data(), 5, size, y.data());
    print("fp32", "norm " + named({size}), y);
}

// `count` queries over `places` keys, some of them hidden.
void attention(int64_t channels, int64_t heads, int count, int64_t places, bool masked) {
    const std::vector<float> q = numbers(count * channels), keys = numbers(2 * places * channels);
    std::vector<float> mask(static_cast<size_t>(places)), y(q.size());
    for (float& one : mask) one = next() % 3 ? 0.0f : -INFINITY;
    std::vector<int32_t> left(mask.size());
    const KeyView all{keys.data(), keys.data() + channels, 2 * channels, channels / heads, places, nullptr};
    std::vector<KeyView> views(static_cast<size_t>(count), seen(all, masked ? mask.data() : nullptr, left.data()));
    for (int i = 0; i < count; i += QUERIES)
        attend(q.data() + i * channels, channels, &views[static_cast<size_t>(i)], std::min(QUERIES, count - i),
               channels, heads, y.data() + i * channels, channels);
    print("fp32", "attention " + named({channels, heads, count, places, masked}), y);
}

void largest_of(int64_t size) {
    std::vector<float> found;
    for (int row = 0; row < 20; ++row) {
        std::vector<float> x = numbers(size);
        for (float& one : x) one = std::nearbyint(one * 2.0f);  // ties
        if (row == 7) x[static_cast<size_t>(size / 2)] = NAN;
        found.push_back(static_cast<float>(first_largest(x.data(), size)));
    }
    print("int8", "largest " + named({size}), found);
}

}  // namespace

int main() {
    std::printf("instructions %d\nsupported %d\n", static_cast<int>(compiled_for()), supported());
    const int64_t shapes[][2] = {{24, 40}, {61, 130}, {530, 64}, {512, 1100}, {1, 1}, {3, 5}, {5, 64}, {17, 130}, {64, 64}, {257, 70}};
    for (const auto& shape : shapes)
        for (bool int8 : {true, false}) products(shape[0], shape[1], int8);
    for (const auto& shape : shapes) products_in_bf16(shape[0], shape[1]);
    for (int64_t size : {1, 5, 16, 40, 64, 257}) norms(size);
    for (int64_t channels : {128, 64, 24})
        for (int count : {1, 4, 6})
            for (int64_t places : {1, 7, 16, 45})
                for (bool masked : {false, true}) attention(channels, 2, count, places, masked);
    for (int64_t size : {1, 16, 37, 320}) largest_of(size);
}
