// The work of a call shared among threads, and how it fails. Exceptions end in this library: Python calls it through C, where
// one ends the process. All of them are lacks of memory.

#pragma once

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>

namespace {

constexpr int64_t NO_MEMORY = -1;
constexpr int64_t MISFIT = -2;  // sizes of arguments do not fit each other: nothing was read or written

// What f() gives, NO_MEMORY where it throws; 0 for an f that gives nothing.
template <class F>
int64_t tried(const F& f) noexcept {
    try {
        if constexpr (std::is_void_v<decltype(f())>) {
            f();
            return 0;
        } else {
            return f();
        }
    } catch (...) {
        return NO_MEMORY;
    }
}

// Throws again what tried() has caught, or where sizes did not fit.
inline void must(int64_t result) {
    if (result < 0) throw std::bad_alloc();
}

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

// The threads that PyTorch itself uses, where it was built with OpenMP as GCC has it; else there is one.
struct OpenMp {
    Parallel run = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    int (*self)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
    int (*team)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_num_threads"));
};

const OpenMp& openmp() {
    static const OpenMp omp;
    return omp;
}

constexpr int64_t WORTH_A_THREAD = 1 << 18;  // multiplications

// f(begin, end) over parts of 0 to count, on up to `threads` threads if `work` multiplications are worth it.
template <class F>
void share(int64_t count, int64_t threads, int64_t work, const F& f) {
    const OpenMp& omp = openmp();
    threads = std::min({threads, count, 1 + work / WORTH_A_THREAD});
    if (threads <= 1 || !omp.run || !omp.self || !omp.team) {
        f(int64_t{0}, count);
        return;
    }
    struct Task {
        const F& f;
        int64_t count;
        std::atomic<bool> failed;
    } task{f, count, {false}};
    omp.run(
        [](void* data) {
            Task& task = *static_cast<Task*>(data);
            const int64_t self = openmp().self(), team = openmp().team();
            const auto part = [&] { task.f(task.count * self / team, task.count * (self + 1) / team); };
            if (tried(part)) task.failed = true;  // what a thread throws ends the process
        },
        &task, static_cast<unsigned>(threads), 0);
    if (task.failed) throw std::bad_alloc();
}

// Memory of a thread, kept from call to call: fresh memory of the system is slow to touch.
class Memory {
    void* data_ = nullptr;
    size_t bytes_ = 0;

  public:
    Memory() = default;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { std::free(data_); }

    // Memory of at least `bytes` bytes, not initialised, aligned to a cache line; from 2 MB on in huge pages.
    void* of(size_t bytes) {
        constexpr size_t LINE = 64, HUGE_PAGE = size_t{1} << 21;
        if (bytes <= bytes_) return data_;
        bytes = std::max(bytes, bytes_ + bytes_ / 4);
        const size_t unit = bytes < HUGE_PAGE ? LINE : HUGE_PAGE;
        bytes = (bytes + unit - 1) / unit * unit;
        std::free(data_);
        bytes_ = 0;
        data_ = std::aligned_alloc(unit, bytes);
        if (!data_) throw std::bad_alloc();
        bytes_ = bytes;
#if defined(MADV_HUGEPAGE)
        if (unit == HUGE_PAGE) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
        return data_;
    }
};

// What scratch memory holds. A thread has one of each, so two that are in use at a time need two names.
enum class Scratch {
    LEVELS, LEVEL_SCALES, LEVEL_ZEROS, LEVEL_STARTS, ROUNDED,  // products: the rows in 8 bits, in bfloat16
    ATTENTION_SCORES, PLACES,
    INNER, WIDE, FEED_FORWARD, UNPADDED, ALL_SLOTS, COPY,  // layers
    HEADS_HIDDEN, HEADS_ADDED,
    DIRECTIONS, SLOT_LOGITS, CHAINED, FIRST_SLOTS, FIRST_LOGITS,  // drafts of slots
    ACCEPTED, WAYS,  // verification
    WINDOW_FEATURES, WINDOW_HIDDEN, WINDOW_HEAD, WINDOW_LOGITS, LISTED_LOGITS,  // whole searches
};

template <class T, Scratch>
T* scratch(int64_t size) {
    thread_local Memory memory;
    return static_cast<T*>(memory.of(sizeof(T) * static_cast<size_t>(size)));
}

}  // namespace
