// Blocks of four threads against blocks of one: the same memory afterwards. With -fsanitize=thread an access that no
// __syncthreads orders ends the program, with -fsanitize=address one outside the memory that is given.

#include <stdio.h>

#include <random>

#include "bookkeeping.cpp"

static std::mt19937 chance;

static Int below(Int count) { return static_cast<Int>(chance() % static_cast<unsigned>(count)); }

static std::vector<Int> numbers_below(Int size, Int count) {
    std::vector<Int> made(static_cast<size_t>(size));
    for (Int& one : made) one = below(count);
    return made;
}

constexpr Int SENTENCES = 3, ROWS = 4, WIDTH = 5, ROOM = 24, TYPES = 37, PLACES = 19, CHANNELS = 6, PREFIX = 2, READ = 17;

// All that the kernels read and write, of a fourth row that is no sentence too.
struct Memory {
    std::vector<Int> last, numbers, tokens, owners, block, shown, outputs, length, texts, runs, stands, forced, largest;
    std::vector<Int> emitted, drafted, stood, flags, given, places, seen, picked;
    std::vector<float> logits, scores;
    std::vector<unsigned short> features, kept;
    std::vector<unsigned char> masked;

    bool operator==(const Memory& other) const {
        return numbers == other.numbers && tokens == other.tokens && block == other.block && shown == other.shown &&
               outputs == other.outputs && length == other.length && runs == other.runs && stands == other.stands &&
               emitted == other.emitted && drafted == other.drafted && stood == other.stood && flags == other.flags &&
               kept == other.kept && given == other.given && places == other.places && seen == other.seen &&
               picked == other.picked && masked == other.masked && largest == other.largest && last == other.last;
    }
};

static Memory random_memory() {
    Memory memory;
    const size_t rows = ROWS, width = WIDTH;
    memory.numbers.assign((SENTENCES + 1) * COLUMNS, 0);
    for (Int row = 0; row <= SENTENCES; ++row) {
        Int* own = &memory.numbers[static_cast<size_t>(row * COLUMNS)];
        own[ENDED] = row == SENTENCES || below(5) == 0;
        own[POSITION] = row == SENTENCES ? 0 : 1 + below(9);
        own[BEFORE] = own[POSITION] - (own[ENDED] ? 0 : below(least(own[POSITION], WIDTH) + 1));
        own[ROUNDS] = below(3);
        own[END] = 14;
    }
    memory.tokens = numbers_below((SENTENCES + 1) * ROOM, 3);
    memory.owners = {2, 0, SENTENCES, 1};
    memory.block.assign(rows * (width - 1), 0);
    memory.texts = numbers_below((SENTENCES + 1) * (PLACES + 1), 3);
    for (Int row = 0; row <= SENTENCES; ++row) memory.texts[static_cast<size_t>(row * (PLACES + 1) + PLACES)] = NO_DRAFT;
    memory.runs = numbers_below((SENTENCES + 1) * PLACES, 3);
    memory.stands = numbers_below((SENTENCES + 1) * 4, 2);
    memory.forced.assign((SENTENCES + 1) * (PREFIX + 1), 1);
    for (auto* one : {&memory.shown, &memory.outputs, &memory.largest}) one->assign(rows * width, 0);
    for (auto* one : {&memory.last, &memory.length, &memory.flags}) one->assign(rows, 0);
    for (auto* one : {&memory.emitted, &memory.drafted, &memory.stood}) one->assign((SENTENCES + 1) * ROOM, 0);
    memory.logits.resize(rows * width * TYPES);
    for (float& one : memory.logits) one = static_cast<float>(below(7));
    memory.scores.assign(2 * (SENTENCES + 1) * ROOM, 0);
    memory.features.assign(rows * width * CHANNELS, 0);
    for (auto& one : memory.features) one = static_cast<unsigned short>(below(999));
    for (auto* one : {&memory.given, &memory.places, &memory.seen}) one->assign(rows * READ, 0);
    memory.picked.assign(rows * (width - 1), 0);
    memory.masked.assign(rows * READ, 0);
    memory.kept.assign((SENTENCES + 1) * CHANNELS, 0);
    return memory;
}

static void iterate(Memory& m, Int width, Int match, Int threads) {
    const CopyBlock copy{ROWS, WIDTH - 1, ROOM, PLACES, SENTENCES, match, m.numbers.data(), m.tokens.data(), m.owners.data(),
                         m.texts.data(), m.runs.data(), m.stands.data(), m.block.data()};
    if (width > 1) run_copy_block(&copy, ROWS, threads);
    const SlotWindow slot{ROWS, READ, ROOM, match % 2, WIDTH - 1 - match % 2, WIDTH - 1, match / 2, 1, m.numbers.data(),
                          m.tokens.data(), m.owners.data(), m.given.data(), m.places.data(), m.seen.data(), m.masked.data(),
                          m.picked.data(), m.last.data()};
    run_slots(&slot, ROWS, threads);
    const Begin first{ROWS, width, ROOM, 1, 0, m.numbers.data(), m.tokens.data(), m.owners.data(), m.block.data(),
                      m.shown.data(), m.outputs.data(), m.length.data()};
    run_begin(&first, ROWS, threads);
    constexpr Int PARTS = 3;
    Seen seen[ROWS * WIDTH * PARTS], hidden[ROWS * WIDTH];
    const Judgement last{0, width, ROOM, PARTS, TYPES, PREFIX, IN_FP32, 1, 3, 2, 0.5, 0, 1 + match, 2, 3, 1.0, m.owners.data(),
                         m.forced.data(), m.logits.data(), m.shown.data(), m.outputs.data(),
                         width > 1 ? m.length.data() : nullptr, seen, match ? hidden : nullptr, m.numbers.data(), m.tokens.data(), m.scores.data(),
                         m.emitted.data(), m.drafted.data(), m.stood.data(), m.flags.data(),
                         width > 1 ? m.features.data() : nullptr, m.kept.data(), CHANNELS};
    if (match) run_ban(&last, ROWS * width, threads);
    run_look(&last, ROWS * width * PARTS, threads);
    run_judge(&last, ROWS, threads);
    const Largest most{0, TYPES, IN_FP32, m.logits.data(), m.largest.data()};
    run_largest(&most, ROWS * width, threads);
}

// Steps of a beam over random logits: all that is on its board afterwards.
static std::vector<double> search(unsigned seed, Int threads) {
    constexpr Int LENGTH = 6, MASK = 64, KEPT = 3, PARTS = 2;
    chance.seed(seed);
    const Int beam = 3, slots = ROWS * beam;
    const size_t count = static_cast<size_t>(slots), length = LENGTH;
    std::vector<double> sums(count, -INFINITY), totals(count * length), ends(count + ROWS);
    for (Int row = 0; row < ROWS - 1; ++row) sums[static_cast<size_t>(row * beam)] = 0;
    std::vector<Int> last(count), rounds(ROWS), finished(ROWS), flags(ROWS), words(count * length), parents(count * length);
    std::vector<Int> nodes(count + ROWS), written(count * (length + 1)), forced(2 * ROWS, 1), depths(ROWS), places(count);
    const Int bytes = seed % 2 ? 2 : 4;  // of a number of a mask
    std::vector<unsigned> sight(count * MASK);
    for (auto& one : sight) one = static_cast<unsigned>(below(999));
    const std::vector<Int> lengths = numbers_below(ROWS, LENGTH);
    forced[2] = 2;
    for (Int depth = 0; depth < LENGTH; ++depth) {
        const Int clock[] = {LENGTH - 1, 0};
        std::vector<float> logits(count * TYPES), values(count * KEPT), end(count);
        for (float& one : logits) one = static_cast<float>(below(9)) / 4;
        std::vector<Int> tokens(count * KEPT);
        std::vector<Key> keys(count * PARTS * KEPT);
        std::vector<Exponentials> parts(count * PARTS);
        const Candidates asked{0, KEPT, PARTS, TYPES, IN_FP32, beam, 1, 1, 3, 2, 0.5, clock, depths.data(), forced.data(),
                               logits.data(), parts.data(), keys.data(), values.data(), tokens.data(), end.data()};
        run_leaders(&asked, slots * PARTS, threads);
        run_best(&asked, slots, threads);
        for (float& one : values) one = roundf(1000 * one) / 1000;  // sums depend on the number of threads
        for (float& one : end) one = roundf(1000 * one) / 1000;
        const BeamStep step{ROWS, beam, KEPT + 1, 2, 1, 1, LENGTH, MASK, MASK - 8, bytes, LENGTH + 1, clock, values.data(),
                            tokens.data(), end.data(), forced.data(), seed % 3 ? nullptr : lengths.data(), depths.data(),
                            places.data(), last.data(), sums.data(), rounds.data(), finished.data(), flags.data(),
                            words.data(), parents.data(), totals.data(), nodes.data(), ends.data(), sight.data(),
                            written.data()};
        run_beam_step(&step, ROWS, threads);
    }
    std::vector<double> found(sums);
    for (auto* one : {&totals, &ends}) found.insert(found.end(), one->begin(), one->end());
    for (auto* one : {&last, &rounds, &finished, &flags, &words, &parents, &nodes, &written, &depths, &places}) {
        found.insert(found.end(), one->begin(), one->end());
    }
    found.insert(found.end(), sight.begin(), sight.end());
    return found;
}

// A window's embeddings, and the block of a chain among its tokens.
static std::vector<float> draft(unsigned seed, Int threads) {
    constexpr Int SIZE = 5, MOST = 3, CHANNELS = 16, POSITIONS = ROWS * SIZE;
    chance.seed(seed);
    struct alignas(16) Number {
        float numbers[4];
    };
    auto random = [](Int rows) {
        std::vector<Number> made(static_cast<size_t>(rows * CHANNELS / 4));
        for (Number& one : made) {
            for (float& number : one.numbers) number = static_cast<float>(below(3)) - 1;
        }
        return made;
    };
    const auto weight = random(TYPES), table = random(9), slot = random(1), written = random(POSITIONS * MOST);
    auto embedded = random(POSITIONS), told = written;
    const std::vector<Int> tokens = numbers_below(POSITIONS, TYPES), at = numbers_below(POSITIONS, 9);
    const std::vector<Int> last = numbers_below(ROWS, TYPES), best = numbers_below(POSITIONS * MOST, TYPES);
    std::vector<unsigned char> masked(POSITIONS);
    for (auto& one : masked) one = static_cast<unsigned char>(below(2));
    std::vector<Int> block(POSITIONS);
    constexpr Int SOURCES = 7;
    const auto memory = random(ROWS * SOURCES * 2);
    std::vector<float> mask(SOURCES);
    mask[2] = -INFINITY;
    const std::vector<Number> asking(9 * CHANNELS / 4);  // nothing: equal weights are the same sum in any order
    const Embedding window{POSITIONS, CHANNELS, IN_FP32, 1, 2.0, tokens.data(), weight.data(), at.data(), table.data(),
                           masked.data(), slot.data(), SIZE, SOURCES, 2 * SOURCES * CHANNELS, 0,
                           seed % 2 ? asking.data() : nullptr, memory.data(), mask.data(), embedded.data()};
    run_embedding(&window, POSITIONS, threads);
    const Chain chain{0, SIZE, MOST, CHANNELS, IN_FP32, last.data(), best.data(), weight.data(), embedded.data(), told.data(),
                      embedded.data(), written.data(), weight.data(), nullptr, block.data()};
    run_hear(&chain, POSITIONS * MOST, threads);
    run_follow(&chain, ROWS, threads);
    std::vector<float> found(block.begin(), block.end());
    for (auto* one : {&embedded, &told}) {
        for (const Number& four : *one) found.insert(found.end(), four.numbers, four.numbers + 4);
    }
    return found;
}

// A window of rows that use some of their slots: what it attends to, and the cache afterwards.
static std::vector<float> attended(unsigned seed, Int threads) {
    chance.seed(seed);
    const Int width = 1 + below(6), heads = 2, size = 24, keys = 70, channels = heads * size, rows = 3;
    const auto numbers = [](Int count) {
        std::vector<float> made(static_cast<size_t>(count));
        for (float& one : made) one = static_cast<float>(below(99)) / 33 - 1;
        return made;
    };
    std::vector<Int> at;
    for (Int row = 0; row < rows; ++row) {
        const Int first = below(keys - width), used = 1 + below(width);
        for (Int slot = 0; slot < width; ++slot) at.push_back(first + least(slot, used - 1));
    }
    const std::vector<float> qkv = numbers(rows * width * 3 * channels);
    std::vector<float> kept = numbers(rows * keys * 2 * channels), out(static_cast<size_t>(rows * width * channels));
    const bool four = seed % 2 == 0;
    const Int blocks = rows * heads * (four ? (width + 3) / 4 : width);
    const Attention window{blocks, IN_FP32, width, heads, size, keys, 3 * channels, keys * 2 * channels, 2 * channels, channels,
                           0, 0, 0, seed % 3 ? -1 : 5, 0.2, qkv.data(), kept.data(), at.data(), nullptr, nullptr, nullptr,
                           out.data()};
    (four ? run_attend_slots : run_attend)(&window, blocks, threads);
    kept.insert(kept.end(), out.begin(), out.end());
    return kept;
}

// A product of whole numbers with a norm before it or not. Sums of numbers after a norm round by their order, so they are
// compared roughly.
static bool multiplies_alike(unsigned seed) {
    chance.seed(seed);
    const Int kind = seed % 3, rows = 1 + below(20), inputs = 8 * (1 + below(20)), outputs = 1 + below(30);
    const Int bytes = kind == IN_FP32 ? 4 : 2, normed = below(2), added = below(2);
    const Int tiles = kind == IN_FP32 || !normed ? 1 : 1 + below(2), across = (outputs + 8 * tiles - 1) / (8 * tiles);
    auto numbers = [=](Int count) {
        std::vector<Sixteen> made(static_cast<size_t>(count * bytes / 16 + 1));
        for (Int i = 0; i < count; ++i) {
            const float x = static_cast<float>(below(9) - 4);
            if (kind == IN_FP16) narrow(x, reinterpret_cast<Half*>(made.data())[i]);
            else if (kind == IN_BF16) narrow(x, reinterpret_cast<Bfloat*>(made.data())[i]);
            else narrow(x, reinterpret_cast<float*>(made.data())[i]);
        }
        return made;
    };
    auto number = [=](const std::vector<Sixteen>& all, Int i) {
        if (kind == IN_FP16) return widened(reinterpret_cast<const Half*>(all.data())[i]);
        if (kind == IN_BF16) return widened(reinterpret_cast<const Bfloat*>(all.data())[i]);
        return reinterpret_cast<const float*>(all.data())[i];
    };
    const auto x = numbers(rows * inputs), weight = numbers(outputs * inputs), bias = numbers(outputs), gain = numbers(inputs);
    const auto residual = numbers(rows * outputs);
    auto kept = numbers(rows * inputs), y = numbers(rows * outputs), e = numbers(rows * inputs);
    std::vector<std::vector<Sixteen>> found;
    for (Int threads : {1, 4}) {
        const Product product{across * ((rows + 15) / 16), kind, rows, inputs, outputs, across, tiles, seed % 2, added,
                              1e-5, 1.0 / static_cast<double>(inputs), x.data(), weight.data(), bias.data(), normed ? gain.data() : nullptr, gain.data(),
                              added ? residual.data() : nullptr, kept.data(), y.data()};
        run_product(&product, product.blocks, threads);
        const Norm norm{rows, kind, inputs, 1e-5, x.data(), gain.data(), gain.data(), e.data()};
        run_layer_norm(&norm, rows, threads);
        for (const auto* one : {&kept, &y, &e}) found.push_back(*one);
    }
    for (size_t i = 0; i < 3; ++i) {
        for (Int at = 0; at < (i == 1 ? rows * outputs : rows * inputs); ++at) {
            const float one = number(found[i], at), four = number(found[i + 3], at);
            if (fabsf(one - four) > (normed || i == 2 ? 0.05f * (1 + fabsf(one)) : 0)) return false;
        }
    }
    return true;
}

int main() {
    for (unsigned seed = 0; seed < 30; ++seed) {
        if (!multiplies_alike(seed)) {
            printf("seed %u: four threads computed something else\n", seed);
            return 1;
        }
    }
    for (unsigned seed = 0; seed < 24; ++seed) {
        const std::vector<float> one = attended(seed, 1), four = attended(seed, 4);
        for (size_t i = 0; i < one.size(); ++i) {
            if (fabsf(one[i] - four[i]) < 1e-5f) continue;
            printf("seed %u: four threads attended to something else\n", seed);
            return 1;
        }
    }
    for (unsigned seed = 0; seed < 20; ++seed) {
        if (draft(seed, 1) != draft(seed, 4)) {
            printf("seed %u: four threads drafted something else\n", seed);
            return 1;
        }
    }
    for (unsigned seed = 0; seed < 20; ++seed) {
        if (search(seed, 1) != search(seed, 4)) {
            printf("seed %u: four threads chose something else\n", seed);
            return 1;
        }
    }
    for (unsigned seed = 0; seed < 40; ++seed) {
        chance.seed(seed);
        Memory one = random_memory(), four = one;
        for (int iteration = 0; iteration < 2; ++iteration) {
            iterate(one, seed % 2 ? WIDTH : 1, seed / 2 % 4, 1);
            iterate(four, seed % 2 ? WIDTH : 1, seed / 2 % 4, 4);
        }
        if (!(one == four)) {
            printf("seed %u: four threads wrote something else\n", seed);
            return 1;
        }
    }
    return 0;
}
