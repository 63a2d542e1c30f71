// What all kernels of a GPU are written with.
//
// Every kernel is right for any number of threads in a block that is a power of two: loops have strides, and threads
// meet at __syncthreads. So the same text is C++ for the tests on a CPU. It includes no header: NVRTC has none at hand.
//
// A parameter is a struct of words of 8 bytes, in the order of the schema in operators.py. Integers are int64 as in
// PyTorch.

#pragma once

#ifndef INFINITY  // as with NVRTC
#define INFINITY __int_as_float(0x7f800000)
#endif

typedef long long Int;

constexpr int MOST_THREADS = 1024;
constexpr int FEWER_THREADS = 256;  // the most of a block whose threads need many registers, or room in shared memory

// Waits until every kernel before has ended and what it wrote can be read. Then the next kernel may begin, as far as its
// own wait: in a captured graph it is launched that early, see dependent.py. So every thread calls this, on every path,
// before it writes and before it reads what a kernel writes. A comment beside each kernel lists what it reads earlier:
// weights alone, as no kernel of a graph writes them. GPUs before 9.0 launch one kernel behind the other.
__device__ inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

constexpr Int NO_DRAFT = -1;
// Columns of the board's numbers, see search/board.py.
constexpr int POSITION = 0, BEFORE = 1, ENDED = 2, ROUNDS = 3, END = 4, FLOOR = 5, STRICT_FLOOR = 6, COLUMNS = 7;

__device__ inline Int least(Int a, Int b) { return b < a ? b : a; }

struct Least {
    __device__ Int operator()(Int a, Int b) const { return b < a ? b : a; }
};

struct Most {
    __device__ Int operator()(Int a, Int b) const { return a < b ? b : a; }
};

struct Sum {
    __device__ Int operator()(Int a, Int b) const { return a + b; }
};

// Numbers of 2 bytes as they are in memory.
struct Half {
    unsigned short bits;
};
struct Bfloat {
    unsigned short bits;
};

#ifdef __CUDACC__  // the tests have the same for C++, where every thread is alone
constexpr int LANES = 32;  // threads of a warp

__device__ inline void warp_meets() { __syncwarp(); }

// Reads the value of the lane whose number differs from this lane's in these bits: words of 4 bytes. All lanes call it.
template <typename Value>
__device__ inline Value of_lane(const Value& mine, int bits) {
    Value theirs;
#pragma unroll
    for (unsigned i = 0; i < sizeof(Value) / 4; ++i) {
        reinterpret_cast<int*>(&theirs)[i] = __shfl_xor_sync(0xffffffff, reinterpret_cast<const int*>(&mine)[i], bits);
    }
    return theirs;
}

__device__ inline unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ inline float of_bits(unsigned bits) { return __uint_as_float(bits); }

__device__ inline float widened(Half x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

__device__ inline void narrow(float x, Half& to) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
#endif

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(Bfloat x) { return of_bits((unsigned)x.bits << 16); }

__device__ inline void narrow(float x, float& to) { to = x; }

// To the nearest, of two the even one.
__device__ inline void narrow(float x, Bfloat& to) {
    const unsigned bits = bits_of(x), odd = bits >> 16 & 1;
    to.bits = (unsigned short)(x == x ? (bits + 0x7fff + odd) >> 16 : 0x7fff);
}

// 16 bytes, which are read and written at once: their address is a multiple of 16.
struct alignas(16) Sixteen {
    unsigned words[4];
};

// Eight numbers as they are in memory.
template <typename Number>
struct Eight {
    Sixteen parts[sizeof(Number) / 2];
};

template <typename Number>
__device__ inline Eight<Number> eight_at(const Number* from) {
    return *reinterpret_cast<const Eight<Number>*>(from);
}

__device__ inline float number_of(const Eight<float>& all, int i) { return of_bits(all.parts[i / 4].words[i % 4]); }

template <typename Number>
__device__ inline float number_of(const Eight<Number>& all, int i) {
    return widened(Number{(unsigned short)(all.parts[0].words[i / 2] >> i % 2 * 16)});
}

// PRECISIONS in operators.py.
enum Precision { IN_FP32, IN_FP16, IN_BF16 };

// A source may be compiled for one precision at a time, as the compiler takes a second for each.
#ifdef PRECISION
constexpr int COMPILED_FOR = PRECISION;
#else
constexpr int COMPILED_FOR = -1;  // all
#endif

// Work::of, a template, with the type of the numbers.
template <typename Work, typename Parameters, typename... More>
__device__ inline void by_precision(const Parameters& p, More&... more) {
    if constexpr (COMPILED_FOR == -1 || COMPILED_FOR == IN_FP16) {
        if (COMPILED_FOR == IN_FP16 || p.precision == IN_FP16) return Work::template of<Half>(p, more...);
    }
    if constexpr (COMPILED_FOR == -1 || COMPILED_FOR == IN_BF16) {
        if (COMPILED_FOR == IN_BF16 || p.precision == IN_BF16) return Work::template of<Bfloat>(p, more...);
    }
    if constexpr (COMPILED_FOR == -1 || COMPILED_FOR == IN_FP32) Work::template of<float>(p, more...);
}

// A row of V numbers of a precision, read eight at a time. Groups begin at multiples of 16 bytes (fp32: 32), so the
// first and the last group may be shared with other rows. The precision is checked for each group: a kernel of one form
// is compiled three times as fast as one of three.
struct Row {
    const unsigned char* numbers;
    Int size;
    int precision, before;  // before: numbers of the first group that are another row's

    __device__ Row(const void* all, Int precision, Int row, Int size) : size(size), precision((int)precision) {
        const int shift = precision == IN_FP32 ? 2 : 1;  // of bytes
        numbers = static_cast<const unsigned char*>(all) + (row * size << shift);
        before = static_cast<int>(reinterpret_cast<unsigned long long>(numbers) >> shift & 7);
    }

    __device__ Int groups() const { return (size + before + 7) / 8; }

    __device__ float operator[](Int i) const {
        if (precision == IN_FP16) return widened(reinterpret_cast<const Half*>(numbers)[i]);
        if (precision == IN_BF16) return widened(reinterpret_cast<const Bfloat*>(numbers)[i]);
        return reinterpret_cast<const float*>(numbers)[i];
    }

    // The eight numbers of a group, -inf where they are another row's. Returns the place of the first: it may be
    // negative.
    __device__ Int read(Int group, float (&to)[8]) const {
        const Int first = group * 8 - before;
        if (first < 0 || first + 8 > size) {
#pragma unroll
            for (int i = 0; i < 8; ++i) to[i] = first + i >= 0 && first + i < size ? (*this)[first + i] : -INFINITY;
        } else if (precision == IN_FP16) {
            read_as<Half>(first, to);
        } else if (precision == IN_BF16) {
            read_as<Bfloat>(first, to);
        } else {
            read_as<float>(first, to);
        }
        return first;
    }

    template <typename Number>
    __device__ void read_as(Int first, float (&to)[8]) const {
        const Eight<Number> all = eight_at(reinterpret_cast<const Number*>(numbers) + first);
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = number_of(all, i);
    }
};

// Whether a number is larger than another, or as large and the first: NaN is the largest, as in Tensor.max.
__device__ inline bool goes_before(float a, int at, float b, int other) {
    if (a != a) return b == b || at < other;
    return a > b || (a == b && at < other);
}

// Adds eight numbers to a sum of exp(x - most). The sum is NaN where one of them is, or +inf; it is 0 for -inf alone.
__device__ inline void add_exponentials(const float (&x)[8], float& most, float& sum) {
    float largest = most;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = x[i] > largest ? x[i] : largest;
    if (largest > most) {
        sum *= expf(most - largest);
        most = largest;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (most > -INFINITY || x[i] != x[i]) sum += expf(x[i] - most);
    }
}

// Joins what every lane of a warp has; lane 0 gets the result. A loop: each turn waits for the one before.
template <typename Value, typename Join>
__device__ inline Value joined_lanes(Value mine, Join join) {
#pragma unroll 1
    for (int bits = LANES / 2; bits > 0; bits /= 2) mine = join(mine, of_lane(mine, bits));
    return mine;
}

// Joins what every thread of the block has; all get the result.
template <typename Value, typename Join>
__device__ Value joined(Value mine, Join join) {
    __shared__ Value all[MOST_THREADS / LANES];
    mine = joined_lanes(mine, join);
    if (threadIdx.x % LANES == 0) all[threadIdx.x / LANES] = mine;
    __syncthreads();
    Value result = all[0];
    for (unsigned warp = 1; warp < blockDim.x / LANES; ++warp) result = join(result, all[warp]);
    __syncthreads();
    return result;
}
