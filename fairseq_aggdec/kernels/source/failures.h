// Exceptions end in this library: Python calls it through C, where one ends the process. All of them are lacks of memory.

#pragma once

#include <cstdint>
#include <new>
#include <type_traits>

namespace {

constexpr int64_t NO_MEMORY = -1;

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

// Throws again what tried() has caught.
inline void must(int64_t result) {
    if (result == NO_MEMORY) throw std::bad_alloc();
}

}  // namespace
