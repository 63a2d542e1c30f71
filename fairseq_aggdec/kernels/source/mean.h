// The mean probabilities of several models, as stock fairseq has them for an ensemble.

#pragma once

#include <limits>

#include "best.h"
#include "threads.h"

namespace {

// Logits (models, rows, V) -> the logarithms of the models' mean probabilities, written to the first of them.
// The order of operations is PyTorch's: log_softmax of each model, logsumexp over them, the logarithm of their number.
void average(float* logits, int64_t models, int64_t rows, int64_t types, int64_t threads) {
    const int64_t apart = rows * types;
    const Floats of_number = same(static_cast<float>(std::log(static_cast<double>(models))));
    share(rows, threads, models * rows * types * 8, [&](int64_t begin, int64_t end) {
        std::vector<Normaliser> norms(models);
        for (int64_t row = begin; row < end; ++row) {
            float* x = logits + row * types;
            for (int64_t m = 0; m < models; ++m) norms[m] = normaliser(x + m * apart, types);
            each_vector(types, [&](int64_t i, int width) {
                const auto log_prob = [&](int64_t m) {
                    return padded(x + m * apart + i, width) - same(norms[m].best) - same(norms[m].log_sum);
                };
                Floats most = log_prob(0), sum = same(0.0f);
                for (int64_t m = 1; m < models; ++m) most = larger(log_prob(m), most);
                // Not -inf, from which -inf is no number.
                const Floats least = larger(most, same(std::numeric_limits<float>::lowest()));
                for (int64_t m = 0; m < models; ++m) sum = sum + exponential(log_prob(m) - least);
                const Floats mean = logarithm(sum) + least - of_number;
                const Floats found = smaller(most, mean);  // -inf where all are
                width == LANES ? store(x + i, found) : store(x + i, found, width);
            });
        }
    });
}

}  // namespace
